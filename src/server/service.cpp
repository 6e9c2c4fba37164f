#include "server/service.h"

#include "server/hex_digest.h"
#include "server/json_fields.h"
#include "server/page.h"

#include <fovea/method_specs.h>

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <utility>

namespace fovea::server {
namespace {

constexpr double kWaitingAfterS = 5;  // a stream without a token so far begins, and says that it lives, every so often

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Without a hint in time of how much of the key was right, or how long it is.
bool same_secret(const std::string& a, const std::string& b) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> da, db;
  SHA256(reinterpret_cast<const unsigned char*>(a.data()), a.size(), da.data());
  SHA256(reinterpret_cast<const unsigned char*>(b.data()), b.size(), db.data());
  return CRYPTO_memcmp(da.data(), db.data(), da.size()) == 0;
}

bool is_label(const std::string& text) {
  return !text.empty() && text.size() <= 128 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

struct Route {
  const char* path;     // ends in '/': with a name behind it
  const char* methods;  // that it takes
  bool needs_key;
  PrepareKind kind;  // of POST
};
constexpr const char *kGet = "GET, HEAD", *kPost = "POST";
constexpr Route kRoutes[] = {
    {"/v1/chat/completions", kPost, true, PrepareKind::chat},
    {"/v1/completions", kPost, true, PrepareKind::completion},
    {"/tokenize", kPost, true, PrepareKind::tokenize},
    {"/detokenize", kPost, true, PrepareKind::detokenize},
    {"/v1/documents", "GET, HEAD, POST", true, PrepareKind::document},
    {"/v1/documents/", "GET, HEAD, DELETE", true, {}},
    {"/v1/models", kGet, true, {}},
    {"/", kGet, false, {}},
    {"/health", kGet, false, {}},
    {"/version", kGet, false, {}},
    {"/metrics", kGet, false, {}},
};
constexpr std::string_view kDocument = "/v1/documents/";

const Route* find_route(std::string_view path) {
  if (path.starts_with(kDocument) && path.size() > kDocument.size()) path = kDocument;
  for (const Route& r : kRoutes) {
    if (path == r.path) return &r;
  }
  return nullptr;
}

bool takes(const Route& route, const std::string& method) {
  const std::string methods = ", " + std::string(route.methods) + ",";
  return methods.find(", " + method + ",") != std::string::npos;
}

// Those that requests may name.
std::vector<std::string> decode_methods(EngineOptions options) {
  std::vector<std::string> names;
  for (const MethodOptions& m : std::vector(options.methods)) {
    const std::string& label = m.label.empty() ? m.name : m.label;
    if (hold_method("", label, /*prefill=*/false, &options).ok()) names.push_back(label);
  }
  return names;
}

}  // namespace

HttpReply Service::error_reply(int status, const std::string& message, const std::string& param) {
  HttpReply r;
  r.status = status;
  r.body = error_body(status, message, param);
  if (status == 429 || status == 503) r.headers.emplace_back("Retry-After", "1");
  if (status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  return r;
}

namespace {

ServiceOptions with_names(ServiceOptions o) {
  o.prepare.model_names = o.model_names;
  return o;
}

// Documents lie beside the slabs of a store, which the engine makes.
Result<std::unique_ptr<Engine>> make_with_documents(const EngineLoop::Make& make, Documents* documents) {
  FOVEA_ASSIGN(std::unique_ptr<Engine> engine, make());
  const StoreOptions& store = engine->options().kv_store;
  if (store.dir.empty()) return engine;
  std::vector<std::string> notes;
  FOVEA_TRY(documents->open(store.dir + "/documents", store.readonly, std::time(nullptr), &notes));
  for (const std::string& note : notes) std::fprintf(stderr, "fovea: a document is left out: %s\n", note.c_str());
  return engine;
}

}  // namespace

Service::Service(ServiceOptions options, HttpServer& http, EngineLoop::Make make)
    : options_(with_names(std::move(options))),
      http_(http),
      metrics_(options_.model_names.front()),
      random_(std::random_device{}()),
      documents_(static_cast<size_t>(options_.documents_max), options_.documents_bytes_max),
      loop_([this, make = std::move(make)] { return make_with_documents(make, &documents_); },
            [this](Status s) { http_.post([this, s = std::move(s)] { engine_made(s); }); },
            [this] { http_.post([this] { take_outputs(); }); }),
      preparer_(2) {}

void Service::engine_made(Status status) {
  if (!status.ok()) {
    failure_ = std::move(status);
    return http_.stop();
  }
  ready_ = true;
  started_ = std::time(nullptr);
  const std::string line =
      "fovea: ready: http port " + std::to_string(http_.port()) + ", model " + options_.model_names.front() + "\n";
  std::fputs(line.c_str(), stderr);
}

std::string Service::random_id() {
  char text[40];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(random_()),
                static_cast<unsigned long long>(random_()));
  return text;
}

// ---- requests ----

// With --isolate-by key a key has documents and prefixes of its own; in every case its requests take turns with others'.
Caller Service::caller_of(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return {};
  const int32_t key = key_index(request.authorization);
  Caller caller;
  caller.fairness_key = "key " + std::to_string(key);
  if (options_.isolate_by_key) caller.owner = hex_digest(options_.api_keys[static_cast<size_t>(key)]).substr(0, 32);
  return caller;
}

int32_t Service::key_index(const std::string& authorization) const {
  if (options_.api_keys.empty()) return 0;
  if (!authorization.starts_with("Bearer ")) return -1;
  const std::string key = authorization.substr(7);
  int32_t found = -1;
  for (size_t i = 0; i < options_.api_keys.size(); ++i) {
    if (same_secret(key, options_.api_keys[i])) found = static_cast<int32_t>(i);
  }
  return found;
}

std::string Service::local_path(const std::string& path) const {
  return path.starts_with(options_.root_path) ? path.substr(options_.root_path.size()) : path;
}

bool Service::admit(const HttpRequest& head, HttpReply* refusal) {
  const auto refuse = [&](HttpReply r) {
    *refusal = std::move(r);
    Call call;
    call.request = head;
    call.begun_s = now_s();
    add_headers(call, refusal);
    metrics_.replied(refusal->status);
    log(call, refusal->status, "refused");
    return false;
  };
  const std::string path = local_path(head.path);
  const Route* route = find_route(path);
  if (head.method == "OPTIONS") return true;  // of browsers, without a key
  if (!route) return refuse(error_reply(404, "there is no " + path.substr(0, 100)));
  if (!takes(*route, head.method)) {
    HttpReply r = error_reply(405, path.substr(0, 100) + " takes " + route->methods);
    r.headers.emplace_back("Allow", std::string(route->methods) + ", OPTIONS");
    return refuse(std::move(r));
  }
  if (route->needs_key && key_index(head.authorization) < 0) return refuse(error_reply(401, "the API key is missing or wrong"));
  if (head.method != "POST") return true;
  if (draining_) return refuse(error_reply(503, "the server is shutting down"));
  if (!ready_) return refuse(error_reply(503, "the model is being loaded: try again later"));
  if (answers_ >= options_.requests_max) return refuse(busy_reply());
  return true;
}

void Service::on_request(ExchangeId id, HttpRequest request) {
  Call& call = calls_[id];
  call.begun_s = call.told_s = now_s();
  std::string body = std::move(request.body);
  std::shared_ptr<void> lease = std::move(request.body_lease);
  call.request_id = is_label(request.request_id) ? request.request_id : random_id();
  call.request = std::move(request);
  const std::string path = local_path(call.request.path);
  if (call.request.method == "OPTIONS") {
    HttpReply r;
    r.status = 204;
    r.content_type.clear();
    if (call.request.access_headers.size() < 1024)
      r.headers.emplace_back("Access-Control-Allow-Headers", call.request.access_headers);
    r.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    r.headers.emplace_back("Access-Control-Max-Age", "600");
    return reply(id, std::move(r));
  }
  const Route* route = find_route(path);
  if (call.request.method != "POST") {
    if (!path.starts_with("/v1/documents")) return get(id, path);
    if (path == "/v1/documents") return list_documents(id, call);
    const std::string document = path.substr(kDocument.size());
    return call.request.method == "DELETE" ? delete_document(id, call, document) : get_document(id, call, document);
  }
  // Again: bodies of many may have been under way at once.
  if (answers_ >= options_.requests_max) return fail_busy(id);
  call.answers = 1;
  answers_ += 1;
  prepare(id, call, route->kind, std::move(body), std::move(lease));
}

void Service::get(ExchangeId id, const std::string& path) {
  HttpReply r;
  if (path == "/health") {
    if (!ready_ || draining_) return fail(id, 503, draining_ ? "the server is shutting down" : "the model is being loaded");
    r.body = "{\"status\":\"ok\"}\n";
  } else if (path == "/") {
    // What it may do it says itself, but for this.
    r.content_type = "text/html; charset=utf-8";
    r.headers = {{"Content-Encoding", "gzip"},
                 {"Cache-Control", "no-cache"},
                 {"X-Content-Type-Options", "nosniff"},
                 {"Content-Security-Policy", "frame-ancestors 'none'"}};
    r.body = std::string(page_gz());
  } else if (path == "/version") {
    r.body = json_text({{"version", options_.version}}) + "\n";
  } else if (path == "/metrics") {
    EngineStats stats;
    if (ready_) stats = loop_.engine()->stats();
    ServerCounts counts{http_.connections(), http_.exchanges()};
    if (ready_) counts.documents = documents_.size();
    for (const auto& [name, held] : loop_.held()) counts.documents_held += held.ready;
    r.content_type = "text/plain; version=0.0.4; charset=utf-8";
    r.body = metrics_.page(ready_ ? &stats : nullptr, counts);
  } else {
    Json models = {{"object", "list"}, {"data", Json::array()}};
    for (const std::string& name : options_.model_names) {
      Json m = {{"id", name},
                {"object", "model"},
                {"created", started_},
                {"owned_by", "fovea"},
                {"root", options_.model_names.front()},
                {"parent", nullptr}};
      if (ready_) m["max_model_len"] = loop_.engine()->model().max_model_len;
      if (ready_) m["fovea"] = {{"decode_methods", decode_methods(loop_.engine()->options())}};
      models["data"].push_back(std::move(m));
    }
    r.body = json_text(models) + "\n";
  }
  reply(id, std::move(r));
}

void Service::prepare(ExchangeId id, Call& call, PrepareKind kind, std::string body, std::shared_ptr<void> lease) {
  call.over = std::make_shared<std::atomic<bool>>(false);
  preparer_.add(
      [this, id, kind, body = std::move(body), lease = std::move(lease), over = call.over, caller = caller_of(call.request)] {
        if (*over) return;
        Prepared p;
        try {
          p = prepare_body(*loop_.engine(), kind, body, options_.prepare, documents_, caller);
        } catch (const std::bad_alloc&) {
          p.http_status = 503;
          p.error = "the request needs more memory than there is";
        }
        http_.post([this, id, p = std::move(p)]() mutable { prepared(id, std::move(p)); });
      });
}

void Service::prepared(ExchangeId id, Prepared p) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;  // the client is gone
  Call& call = it->second;
  if (p.http_status != 200) return fail(id, p.http_status, p.error, field_of(p.error));
  if (p.document && p.requests.empty()) return document_put(id, call, std::move(p));
  if (p.requests.empty()) {
    HttpReply r;
    r.body = std::move(p.body);
    return reply(id, std::move(r));
  }
  const int32_t answers = static_cast<int32_t>(p.requests.size()) * p.reply.answers;
  if (answers > 1 && answers_ - call.answers + answers > options_.requests_max) return fail_busy(id);
  answers_ += answers - call.answers;
  call.answers = answers;
  p.reply.id = (p.reply.is_chat ? "chatcmpl-" : "cmpl-") + random_id();
  p.reply.created = std::time(nullptr);
  for (const int64_t tokens : p.reply.prompt_tokens) call.prompt_tokens += tokens;
  log_prompts(call, p.prompt_log);
  call.stream = p.reply.stream;
  const bool watched = p.reply.reading_map;
  call.writer = std::make_unique<ReplyWriter>(std::move(p.reply));
  call.started = true;
  loop_.start({.call = id, .prompts = std::move(p.requests), .begins_with = std::move(p.begins_with), .watched = watched});
}

// ---- replies ----

void Service::add_headers(const Call& call, HttpReply* r) const {
  if (!call.request_id.empty()) r->headers.emplace_back("X-Request-Id", call.request_id);
  const auto& origins = options_.allowed_origins;
  if (!origins.empty() && std::find(origins.begin(), origins.end(), "*") == origins.end())
    r->headers.emplace_back("Vary", "Origin");
  if (call.request.origin.empty()) return;
  for (const std::string& origin : origins) {
    if (origin != "*" && origin != call.request.origin) continue;
    r->headers.emplace_back("Access-Control-Allow-Origin", origin);
    r->headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    return;
  }
}

void Service::reply(ExchangeId id, HttpReply r) {
  const auto it = calls_.find(id);
  const int status = r.status;
  add_headers(it->second, &r);
  http_.reply(id, std::move(r));
  end(it, status, "");
}

void Service::fail(ExchangeId id, int status, const std::string& message, const std::string& param) {
  reply(id, error_reply(status, message, param));
}

HttpReply Service::busy_reply() const {
  return error_reply(429, std::to_string(answers_) + " answers are computed or wait: try again later");
}

void Service::fail_busy(ExchangeId id) { reply(id, busy_reply()); }

// Replies of the server itself, before a call is known.
HttpReply Service::refusal(int status, const std::string& why) {
  metrics_.replied(status);
  return error_reply(status, why);
}

void Service::begin_stream(ExchangeId id, Call& call) {
  if (std::exchange(call.began, true)) return;
  HttpReply r;
  r.content_type = "text/event-stream; charset=utf-8";
  r.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  add_headers(call, &r);
  http_.begin_stream(id, std::move(r));
}

void Service::take_outputs() {
  std::vector<CallOutput> events;
  loop_.take(&events);
  for (CallOutput& e : events) take_output(std::move(e));
}

void Service::take_output(CallOutput event) {
  const auto it = calls_.find(event.call);
  if (it == calls_.end()) return;  // the client is gone
  Call& call = it->second;
  const double now = now_s();
  const Output& out = event.out;
  if (call.document) {
    if (out.finished) document_read(it, out);
    return;
  }
  if (event.computed_tokens > 0) {
    if (const std::string sent = call.writer->progress(event.prompt, event.computed_tokens); !sent.empty()) {
      begin_stream(event.call, call);
      http_.send(event.call, sent);
    }
    call.told_s = now;
    return;
  }
  if (!out.tokens.empty()) {
    double& last = call.last_event_s[{event.prompt, out.index}];
    if (last > 0) metrics_.token_interval(now - last);
    last = now;
  }
  call.output_tokens += static_cast<int64_t>(out.tokens.size());
  call.told_s = now;
  if (out.finished) metrics_.answered(out, now - call.begun_s);
  const std::string sent = call.writer->take(event.prompt, out, event.read.get());
  if (const Status& error = call.writer->error(); !error.ok()) {
    loop_.cancel(event.call);  // its other prompts
    return end_broken(it, http_status_of(error), client_message(error));
  }
  if (call.stream && !sent.empty()) {
    begin_stream(event.call, call);
    http_.send(event.call, sent);
  }
  if (!call.writer->finished()) return;
  if (call.stream) {
    http_.send(event.call, call.writer->end());
    http_.end_stream(event.call);
    return end(it, 200, "");
  }
  HttpReply r;
  r.body = call.writer->end();
  reply(event.call, std::move(r));
}

// The engine's fields by the names that they have in requests.
std::string Service::client_message(const Status& error) {
  for (const char* ours : {"decode_method", "prefill_method", "budget_tokens"}) {
    if (error.message().starts_with(ours)) return "fovea." + error.message();
  }
  return error.message();
}

// A reply that cannot go on as it was meant.
void Service::end_broken(Calls::iterator it, int status, const std::string& message) {
  if (!it->second.began) return fail(it->first, status, message, field_of(message));
  http_.send(it->first, ReplyWriter::end_with_error(status, message, field_of(message)));
  http_.end_stream(it->first);
  end(it, status, "broke off");
}

void Service::on_gone(ExchangeId id, const char* why) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return stop_if_drained();
  if (it->second.started) loop_.cancel(id);
  end(it, 499, why);
}

void Service::end(Calls::iterator it, int status, const char* how) {
  answers_ -= it->second.answers;
  if (it->second.over) *it->second.over = true;
  metrics_.replied(status);
  log(it->second, status, how);
  calls_.erase(it);
}

// ---- time and signals ----

void Service::on_tick(double now) {
  std::vector<ExchangeId> late;
  for (auto& [id, call] : calls_) {
    if (now - call.begun_s > options_.request_timeout_s) {
      late.push_back(id);
    } else if (call.writer && call.stream && now - call.told_s > kWaitingAfterS) {
      begin_stream(id, call);
      http_.send(id, ": waiting\n\n");
      call.told_s = now;
    }
  }
  expire_documents();
  for (const ExchangeId id : late) {
    const auto it = calls_.find(id);
    if (it->second.started) loop_.cancel(id);
    end_broken(it, 503, "the request took longer than --request-timeout allows");
  }
  stop_if_drained();
}

void Service::on_signal() {
  if (draining_) return http_.stop();
  draining_ = true;
  std::fprintf(stderr, "fovea: shutting down: %zu requests are finished first; a second signal ends them\n", calls_.size());
  http_.stop_accepting();
  stop_if_drained();
}

void Service::stop_if_drained() {
  if (draining_ && calls_.empty() && http_.exchanges() == 0) http_.stop();
}

// Where it was asked for, alone.
void Service::log_prompts(const Call& call, const std::string& text) {
  if (text.empty()) return;
  const std::string line = options_.log_json
                               ? json_text({{"time", std::time(nullptr)}, {"request_id", call.request_id}, {"prompt", text}})
                               : "fovea: prompt of " + call.request_id + ": " + json_text(text);
  std::fprintf(stderr, "%s\n", line.c_str());
}

// Never a prompt, an answer or a key.
void Service::log(const Call& call, int status, const char* how) {
  if (!options_.access_log) return;
  const double seconds = now_s() - call.begun_s;
  std::string line;
  if (options_.log_json) {
    line = json_text({{"time", std::time(nullptr)},
                      {"request_id", call.request_id},
                      {"peer", call.request.peer},
                      {"method", call.request.method},
                      {"path", call.request.path.substr(0, 200)},
                      {"status", status},
                      {"seconds", seconds},
                      {"prompt_tokens", call.prompt_tokens},
                      {"output_tokens", call.output_tokens},
                      {"note", how}});
  } else {
    char when[32], tail[160];
    const std::time_t t = std::time(nullptr);
    std::tm utc{};
    gmtime_r(&t, &utc);
    std::strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
    std::snprintf(tail, sizeof(tail), " %d %.3f s, %lld + %lld tokens", status, seconds, static_cast<long long>(call.prompt_tokens),
                  static_cast<long long>(call.output_tokens));
    // Quoted: a path is a client's text.
    line = std::string(when) + " " + call.request.peer + " " + (call.request_id.empty() ? "-" : call.request_id) + " " +
           json_text(call.request.method + " " + call.request.path.substr(0, 200)) + tail +
           (*how ? std::string(" (") + how + ")" : "");
  }
  line += "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace fovea::server
