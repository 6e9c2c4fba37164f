// HTTP/1.1 on one thread (Boost.Beast over Asio; docs/server.md says why). It knows connections, limits and timeouts, and nothing
// of engines: a handler answers requests by their ids, at once or later, whole or as a stream.
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fovea::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;                         // 0: any that is free
  std::string tls_certificate_file;             // PEM, the chain; empty: no TLS
  std::string tls_key_file;                     // PEM; empty: it stands in the certificate's file
  int32_t connections_max = 8192;               // one more takes the place of one that has asked nothing, or is closed at once
  size_t header_bytes_max = 16u << 10;          // of a request's line and headers
  size_t body_bytes_max = 32u << 20;            // of one request
  size_t bodies_bytes_max = size_t{512} << 20;  // of all that were received and are not decoded
  size_t outbox_bytes_max = 1u << 20;           // of a stream, behind what its reader took: more, and it is cut off
  double header_timeout_s = 20;                 // from the first byte of a request to its headers' end: later is 408
  double body_timeout_s = 120;                  // likewise of its body
  double idle_timeout_s = 75;                   // between requests
  double write_timeout_s = 60;                  // a reader that takes nothing for so long is cut off
};

using ExchangeId = uint64_t;  // a request and its reply

struct HttpRequest {
  std::string method;
  std::string path;   // without the query
  std::string query;  // behind its '?', as it came
  std::string body;
  std::shared_ptr<void> body_lease;                           // to keep as long as the body: it counts among bodies_bytes_max
  std::string authorization, origin, request_id, user_agent;  // headers; empty: none
  std::string access_headers;                                 // Access-Control-Request-Headers
  std::string peer;                                           // the client's address
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// Called by the thread that runs the server.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Before the body is read. false: *refusal is the reply, and the connection closes after it.
  virtual bool admit(const HttpRequest& head, HttpReply* refusal) = 0;
  virtual void on_request(ExchangeId id, HttpRequest request) = 0;
  // What the server itself refuses (limits, bad HTTP): the body of that reply.
  virtual HttpReply refusal(int status, const std::string& why) = 0;
  // The client is gone, or was cut off, before the reply's end: `why`. The id means nothing any more.
  virtual void on_gone(ExchangeId id, const char* why) = 0;
  virtual void on_tick(double now_s) = 0;  // four times a second
  virtual void on_signal() = 0;            // SIGTERM or SIGINT
};

class HttpServer {
 public:
  // Binds and listens. Errors name --host and --port.
  static Result<std::unique_ptr<HttpServer>> create(const HttpOptions& options);
  ~HttpServer();

  uint16_t port() const;
  void run(HttpHandler& handler);  // until stop()
  // From any thread: `what` is called by the thread that runs the server.
  void post(std::function<void()> what);

  // The rest: from the handler's calls and what was posted. Ids that are over are ignored.
  void reply(ExchangeId id, HttpReply reply);
  void begin_stream(ExchangeId id, HttpReply head);  // its body is the stream's beginning
  void send(ExchangeId id, std::string_view bytes);  // may cut the reader off: on_gone() follows from the loop
  void end_stream(ExchangeId id);
  void stop_accepting();  // connections close after the reply they wait for; idle ones at once
  void stop();
  size_t connections() const;
  size_t exchanges() const;  // begun and not over

  struct Impl;  // http_connection.h

 private:
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea::server
