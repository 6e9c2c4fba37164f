// The only file of this folder that includes Boost: Beast and Asio compile slowly.
#include "bench/load_client.h"

#include "base/clock.h"
#include "base/descriptor_limit.h"

#define BOOST_ASIO_NO_DEPRECATED
#define BOOST_ERROR_CODE_HEADER_ONLY
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <algorithm>
#include <chrono>
#include <memory>

namespace fovea {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Error = boost::system::error_code;
using Endpoints = tcp::resolver::results_type;

constexpr size_t kRefusalBytesMax = 4096;  // what is kept of an error's body

std::chrono::nanoseconds seconds(double s) { return std::chrono::nanoseconds(static_cast<int64_t>(s * 1e9)); }

http::request<http::string_body> request_of(const HttpTarget& target, http::verb verb, const std::string& endpoint) {
  http::request<http::string_body> r(verb, target.path + endpoint, 11);
  r.set(http::field::host, target.host + ":" + target.port);
  r.set(http::field::user_agent, "fovea bench");
  r.set(http::field::connection, "close");
  if (!target.api_key.empty()) r.set(http::field::authorization, "Bearer " + target.api_key);
  return r;
}

Result<Endpoints> resolve(asio::io_context& io, const HttpTarget& target) {
  Error error;
  tcp::resolver resolver(io);
  Endpoints found = resolver.resolve(target.host, target.port, error);
  if (error || found.empty()) return Status::invalid_argument("--url: " + target.host + ": " + error.message());
  return found;
}

struct Load {
  Load(const HttpTarget& target, const LoadPlan& plan) : target(target), plan(plan) {}
  void start_due();
  void one_ended();
  double now() const { return clock.now_s() - begin_s; }

  const HttpTarget& target;
  const LoadPlan& plan;
  const Clock clock;
  const double begin_s = clock.now_s();
  asio::io_context io{1};
  asio::steady_timer due{io};
  Endpoints endpoints;
  LoadResult result;
  size_t next = 0, open = 0;
};

// A connection for one request: what a client's pool would save is no part of what is measured.
class LoadConnection : public std::enable_shared_from_this<LoadConnection> {
 public:
  LoadConnection(Load& load, size_t index) : load_(load), out_(load.result.outcomes[index]), answer_(&out_), stream_(load.io) {
    request_ = request_of(load.target, http::verb::post, load.plan.endpoint);
    request_.set(http::field::content_type, "application/json");
    request_.body() = load.plan.body(index);
    request_.prepare_payload();
    parser_.body_limit(boost::none);
  }
  ~LoadConnection() { load_.one_ended(); }

  void start() {
    out_.sent_s = load_.now();
    stream_.expires_after(seconds(load_.plan.timeout_s));
    stream_.async_connect(load_.endpoints, [self = shared_from_this()](Error error, const tcp::endpoint&) {
      if (error) return self->lost(error, "no connection");
      self->stream_.socket().set_option(tcp::no_delay(true), error);
      self->write();
    });
  }

 private:
  void write() {
    http::async_write(stream_, request_, [self = shared_from_this()](Error error, size_t) {
      if (error) return self->lost(error, "cut");
      self->request_ = {};
      http::async_read_header(self->stream_, self->buffer_, self->parser_, [self](Error error, size_t) {
        if (error) return self->lost(error, "cut");
        self->take();
      });
    });
  }

  // What of the body has come, then the rest of it.
  void take() {
    const auto& head = parser_.get();
    std::string& body = parser_.get().body();
    if (head.result_int() != 200) {
      refusal_ += body.substr(0, kRefusalBytesMax - refusal_.size());
      if (parser_.is_done() || refusal_.size() == kRefusalBytesMax) return refused();
    } else if (head[http::field::content_type].find("text/event-stream") == std::string_view::npos) {
      out_.error = "no event stream";
      out_.detail = std::string(head[http::field::content_type]);
      return;
    } else {
      const bool was_whole = answer_.whole();
      if (!answer_.add(body, load_.now())) {
        if (!answer_.whole()) return;
        if (!was_whole) stream_.expires_after(seconds(1));  // for HTTP's own end, which the server may still write
      }
      if (parser_.is_done()) return answer_.end("cut");
    }
    body.clear();
    http::async_read_some(stream_, buffer_, parser_, [self = shared_from_this()](Error error, size_t) {
      if (error) return self->lost(error, "cut");
      self->take();
    });
  }

  void refused() {
    out_.error = "HTTP " + std::to_string(parser_.get().result_int());
    out_.detail = refusal_.substr(0, 300);
  }

  void lost(Error error, const char* kind) {
    if (parser_.is_header_done() && parser_.get().result_int() != 200) return refused();
    const bool cut = error == http::error::end_of_stream || error == http::error::partial_message || error == asio::error::eof;
    const bool bad = !cut && error.category() == http::make_error_code(http::error::bad_method).category();
    // An event that came with the error counts before it: a connection may end as soon as its stream has.
    if (parser_.is_header_done()) answer_.add(parser_.get().body(), load_.now());
    answer_.end(error == beast::error::timeout ? "timeout" : bad ? "bad HTTP" : kind);
    if (!out_.error.empty() && out_.events == 0) out_.detail = error.message();
  }

  Load& load_;
  CompletionOutcome& out_;
  CompletionStream answer_;
  beast::tcp_stream stream_;
  http::request<http::string_body> request_;
  http::response_parser<http::string_body> parser_;
  beast::flat_buffer buffer_;
  std::string refusal_;
};

void Load::start_due() {
  while (next < plan.start_s.size() && (plan.concurrency_max == 0 || open < plan.concurrency_max)) {
    if (plan.start_s[next] > now()) {
      due.expires_after(seconds(plan.start_s[next] - now()));
      due.async_wait([this](Error error) {
        if (!error) start_due();
      });
      return;
    }
    result.open_max = std::max(result.open_max, ++open);
    std::make_shared<LoadConnection>(*this, next++)->start();
  }
}

void Load::one_ended() {
  --open;
  result.duration_s = now();
  asio::post(io, [this] { start_due(); });
}

}  // namespace

Result<HttpTarget> parse_target(const std::string& url) {
  const auto bad = [&](const char* why) { return Status::invalid_argument("--url " + url + ": " + why); };
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return bad("must begin with http:// (put a proxy before a server that has TLS alone)");
  HttpTarget t;
  const size_t slash = std::min(url.find('/', kScheme.size()), url.size());
  t.host = url.substr(kScheme.size(), slash - kScheme.size());
  t.path = url.substr(slash);
  while (t.path.ends_with('/')) t.path.pop_back();
  if (!t.path.ends_with("/v1")) t.path += "/v1";
  const size_t bracket = t.host.find(']');  // of an IPv6 address
  const size_t colon = t.host.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon != std::string::npos) {
    t.port = t.host.substr(colon + 1);
    t.host.resize(colon);
  }
  if (t.host.starts_with('[') && t.host.ends_with(']')) t.host = t.host.substr(1, t.host.size() - 2);
  if (t.host.empty() || t.port.empty() || t.port.find_first_not_of("0123456789") != std::string::npos || t.port.size() > 5)
    return bad("must be http://HOST:PORT");
  return t;
}

Result<std::string> http_get(const HttpTarget& target, const std::string& endpoint) {
  asio::io_context io{1};
  FOVEA_ASSIGN(const Endpoints endpoints, resolve(io, target));
  const std::string where = "--url: GET http://" + target.host + ":" + target.port + target.path + endpoint + ": ";
  const auto request = request_of(target, http::verb::get, endpoint);
  beast::tcp_stream stream(io);
  beast::flat_buffer buffer;
  http::response<http::string_body> reply;
  Error failed = asio::error::would_block;
  stream.expires_after(std::chrono::seconds(30));
  stream.async_connect(endpoints, [&](Error error, const tcp::endpoint&) {
    if ((failed = error)) return;
    http::async_write(stream, request, [&](Error error, size_t) {
      if ((failed = error)) return;
      http::async_read(stream, buffer, reply, [&](Error error, size_t) { failed = error; });
    });
  });
  io.run();
  if (failed) return Status::io_error(where + failed.message());
  if (reply.result_int() != 200) return Status::io_error(where + "HTTP " + std::to_string(reply.result_int()));
  return std::move(reply.body());
}

Result<LoadResult> run_load(const HttpTarget& target, const LoadPlan& plan) {
  raise_descriptor_limit();
  Load load(target, plan);
  FOVEA_ASSIGN(load.endpoints, resolve(load.io, target));
  load.result.outcomes.resize(plan.start_s.size());
  load.start_due();
  load.io.run();
  return std::move(load.result);
}

}  // namespace fovea
