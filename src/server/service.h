// OpenAI's API over an engine: what HTTP requests mean, and what their replies hold. See docs/server.md.
#pragma once

#include "server/documents.h"
#include "server/engine_loop.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/preparer.h"
#include "server/reply_writer.h"
#include "server/request_decoder.h"

#include <fovea/engine.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

namespace fovea::server {

struct ServiceOptions {
  std::vector<std::string> model_names;      // the first is what replies say; never empty
  std::vector<std::string> api_keys;         // none: every key is accepted, and none
  std::vector<std::string> allowed_origins;  // of browsers; "*": all
  std::string root_path;                     // before every path, as a proxy adds it
  std::string version;
  int32_t requests_max = 4096;      // answers that are computed or wait; more are refused with 429
  double request_timeout_s = 3600;  // of a whole request
  bool isolate_by_key = false;      // requests of one key share no prefix with those of another
  bool access_log = true;           // a line for each request on stderr
  bool log_json = false;
  int32_t documents_max = 1000;
  size_t documents_bytes_max = size_t{256} << 20;  // of their texts and tokens
  PrepareScope prepare;                            // its model_names are set by Service
};

class Service final : public HttpHandler {
 public:
  // `make` makes the engine, in a thread of its own.
  Service(ServiceOptions options, HttpServer& http, EngineLoop::Make make);

  // Why the server ended; ok: it was asked to.
  const Status& failure() const { return failure_; }
  bool loading() const { return !ready_ && failure_.ok(); }

  bool admit(const HttpRequest& head, HttpReply* refusal) override;
  void on_request(ExchangeId id, HttpRequest request) override;
  HttpReply refusal(int status, const std::string& why) override;
  void on_gone(ExchangeId id, const char* why) override;
  void on_tick(double now_s) override;
  void on_signal() override;

 private:
  struct Call {
    HttpRequest request;  // without its body
    std::string request_id;
    double begun_s = 0, told_s = 0;
    std::shared_ptr<std::atomic<bool>> over;   // so that nobody decodes for a client that is gone
    std::unique_ptr<ReplyWriter> writer;       // once it was prepared
    std::shared_ptr<const Document> document;  // that it put, and whose reading it waits for
    bool started = false;                      // the engine's loop knows it
    bool stream = false, began = false;
    int32_t answers = 0;                                         // of those counted in answers_
    std::map<std::pair<int32_t, int32_t>, double> last_event_s;  // by prompt and answer
    int64_t prompt_tokens = 0, output_tokens = 0;
  };
  using Calls = std::unordered_map<ExchangeId, Call>;

  Caller caller_of(const HttpRequest& request) const;
  int32_t key_index(const std::string& authorization) const;  // -1: no valid key
  std::string local_path(const std::string& path) const;
  void add_headers(const Call& call, HttpReply* reply) const;
  void reply(ExchangeId id, HttpReply r);
  HttpReply busy_reply() const;
  void fail_busy(ExchangeId id);
  void fail(ExchangeId id, int status, const std::string& message, const std::string& param = "");
  void end(Calls::iterator call, int status, const char* how);
  static HttpReply error_reply(int status, const std::string& message, const std::string& param = "");
  static std::string client_message(const Status& error);
  void log_prompts(const Call& call, const std::string& text);
  void log(const Call& call, int status, const char* how);

  void get(ExchangeId id, const std::string& path);
  // service_documents.cpp
  void list_documents(ExchangeId id, const Call& call);
  void get_document(ExchangeId id, const Call& call, const std::string& document);
  void delete_document(ExchangeId id, const Call& call, const std::string& document);
  void document_put(ExchangeId id, Call& call, Prepared p);
  void document_read(Calls::iterator call, const Output& out);
  void expire_documents();

  void prepare(ExchangeId id, Call& call, PrepareKind kind, std::string body, std::shared_ptr<void> lease);
  void prepared(ExchangeId id, Prepared p);
  void take_outputs();
  void take_output(CallOutput event);
  void begin_stream(ExchangeId id, Call& call);
  void end_broken(Calls::iterator call, int status, const std::string& message);
  void engine_made(Status status);
  void stop_if_drained();

  const ServiceOptions options_;
  HttpServer& http_;
  Metrics metrics_;
  Calls calls_;
  int64_t answers_ = 0;  // of all calls
  bool ready_ = false, draining_ = false;
  int64_t started_ = 0;  // unix seconds
  Status failure_;
  std::mt19937_64 random_;
  std::string random_id();

  Documents documents_;
  EngineLoop loop_;
  Preparer preparer_;  // last: its threads use the loop's engine
};

}  // namespace fovea::server
