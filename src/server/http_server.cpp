// The only file that includes Boost: Beast and Asio compile slowly.
#include "server/http_server.h"

#define BOOST_ASIO_NO_DEPRECATED
#define BOOST_ERROR_CODE_HEADER_ONLY
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <unordered_map>

namespace fovea::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Error = boost::system::error_code;

std::chrono::nanoseconds seconds(double s) { return std::chrono::nanoseconds(static_cast<int64_t>(s * 1e9)); }

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One connection may need one descriptor, and the soft limit is often 1024.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

class Connection;

struct HttpServer::Impl {
  explicit Impl(const HttpOptions& options) : options(options) {}

  void accept();
  void accepted(Error error, tcp::socket socket);
  void tick();
  void await_signal();

  const HttpOptions options;
  HttpHandler* handler = nullptr;
  ExchangeId next_exchange = 1;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;  // before io: its handlers hold the connections
  size_t bodies_bytes = 0;  // of requests that are being received: reserved by their declared length
  asio::io_context io{1};
  std::unordered_map<ExchangeId, std::shared_ptr<Connection>> exchanges;
  tcp::acceptor acceptor{io};
  asio::steady_timer timer{io};
  asio::steady_timer retry_accept{io};
  asio::signal_set signals{io};
  bool accepting = true;
};

// A connection reads one request, waits until its reply is written, and reads the next. Everything happens on the server's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, tcp::socket socket) : server_(server), stream_(std::move(socket)) {
    Error error;
    stream_.socket().set_option(tcp::no_delay(true), error);
    const auto peer = stream_.socket().remote_endpoint(error);
    if (!error) peer_ = peer.address().to_string();
  }
  ~Connection() {
    give_back_body();
    server_.connections.erase(this);
  }

  void start() { read_head(server_.options.header_timeout_s); }

  void close_if_idle() {
    if (exchange_ == 0 && idle_) close();
  }

  void reply(HttpReply r) {
    append_head(r, /*is_stream=*/false);
    if (!is_head_) outbox_ += r.body;
    ended_ = true;
    write();
  }

  void begin_stream(HttpReply r) {
    streaming_ = true;
    append_head(r, /*is_stream=*/true);
    send(r.body);
    write();
  }

  void send(std::string_view bytes) {
    if (bytes.empty() || ended_ || cut_off_) return;
    if (chunked_) {
      char size[32];
      std::snprintf(size, sizeof(size), "%zx\r\n", bytes.size());
      outbox_ += size;
    }
    outbox_ += bytes;
    if (chunked_) outbox_ += "\r\n";
    if (outbox_.size() > server_.options.outbox_bytes_max) {
      cut_off_ = true;  // told from the loop, not from within the handler's call
      asio::post(server_.io, [self = shared_from_this()] { self->gone("its reader is too slow"); });
      return;
    }
    write();
  }

  void end_stream() {
    if (chunked_) outbox_ += "0\r\n\r\n";
    ended_ = true;
    write();
  }

 private:
  using Parser = http::request_parser<http::string_body>;

  void close() {
    Error ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.socket().close(ignored);
  }

  // The reply's reader is lost.
  void gone(const char* why) {
    const ExchangeId id = std::exchange(exchange_, 0);
    close();
    if (id == 0) return;
    server_.exchanges.erase(id);
    server_.handler->on_gone(id, why);
  }

  void give_back_body() {
    server_.bodies_bytes -= body_reserved_;
    body_reserved_ = 0;
  }

  // ---- requests ----

  void read_head(double timeout_s) {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(server_.options.header_bytes_max));
    parser_->body_limit(server_.options.body_bytes_max);
    idle_ = buffer_.size() == 0;
    if (!idle_) return read_rest_of_head();
    // Waiting for a request's first byte and reading it have their own limits: a client may be idle for long, and may not dawdle.
    stream_.expires_after(seconds(timeout_s));
    stream_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](Error error, size_t bytes) {
      self->idle_ = false;
      if (error) return self->close();
      self->buffer_.commit(bytes);
      self->read_rest_of_head();
    });
  }

  void read_rest_of_head() {
    idle_ = false;
    stream_.expires_after(seconds(server_.options.header_timeout_s));
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](Error error, size_t) { self->head_read(error); });
  }

  void head_read(Error error) {
    if (error == http::error::header_limit)
      return refuse(431, "the request's headers have more than " + std::to_string(server_.options.header_bytes_max) + " bytes");
    if (error == http::error::body_limit) return refuse_body();
    if (error == beast::error::timeout || error == http::error::end_of_stream) return close();
    if (error)
      return error.category() == http::make_error_code(http::error::bad_method).category() ? refuse(400, "bad HTTP request")
                                                                                           : close();
    const auto& head = parser_->get();
    version_ = head.version();
    keep_alive_ = head.keep_alive();
    is_head_ = head.method() == http::verb::head;
    read_fields();
    HttpReply refusal;
    if (!server_.handler->admit(request_, &refusal)) return answer_and_close(std::move(refusal));
    const auto length = parser_->content_length();
    if (length && *length > server_.options.body_bytes_max) return refuse_body();
    if (head.find(http::field::transfer_encoding) != head.end() && !parser_->chunked())
      return refuse(501, "only chunked transfer encoding is supported");
    const size_t wanted = length ? static_cast<size_t>(*length) : parser_->chunked() ? server_.options.body_bytes_max : 0;
    if (wanted > 0 && server_.bodies_bytes + wanted > server_.options.bodies_bytes_max)
      return refuse(503, "too many large requests are being received: try again later");
    body_reserved_ = wanted;
    server_.bodies_bytes += wanted;
    stream_.expires_after(seconds(server_.options.body_timeout_s));
    if (head[http::field::expect] == "100-continue") return send_continue();
    read_body();
  }

  void send_continue() {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(kContinue), [self = shared_from_this()](Error error, size_t) {
      if (error) return self->close();
      self->read_body();
    });
  }

  void read_body() {
    http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](Error error, size_t) { self->body_read(error); });
  }

  void body_read(Error error) {
    if (error == http::error::body_limit) return refuse_body();
    if (error)
      return error.category() == http::make_error_code(http::error::bad_method).category() ? refuse(400, "bad HTTP request")
                                                                                           : close();
    request_.body = std::move(parser_->get().body());
    parser_.reset();
    begin_exchange();
    HttpRequest request = std::move(request_);
    give_back_body();
    server_.handler->on_request(exchange_, std::move(request));
    watch();
  }

  void read_fields() {
    const auto& head = parser_->get();
    const auto field = [&](http::field f) { return std::string(head[f]); };
    request_ = {};
    request_.method = std::string(head.method_string());
    const std::string_view target(head.target().data(), head.target().size());
    request_.path = std::string(target.substr(0, target.find('?')));
    request_.authorization = field(http::field::authorization);
    request_.origin = field(http::field::origin);
    request_.request_id = std::string(head["X-Request-Id"]);
    request_.user_agent = field(http::field::user_agent);
    request_.access_headers = field(http::field::access_control_request_headers);
    request_.peer = peer_;
  }

  void begin_exchange() {
    exchange_ = server_.next_exchange++;
    server_.exchanges.emplace(exchange_, shared_from_this());
    outbox_.clear();
    streaming_ = chunked_ = ended_ = cut_off_ = false;
    stream_.expires_never();
  }

  void refuse_body() {
    refuse(413, "the request's body has more than " + std::to_string(server_.options.body_bytes_max) + " bytes");
  }

  void refuse(int status, const std::string& why) { answer_and_close(server_.handler->refusal(status, why)); }

  void answer_and_close(HttpReply r) {
    keep_alive_ = false;
    begin_exchange();
    reply(std::move(r));
  }

  // ---- while the reply is made ----

  // A client that leaves is noticed at once: its socket becomes readable, with nothing to read. One that sends its next request
  // early is not watched any more; writing tells.
  void watch() {
    if (exchange_ == 0 || ended_) return;
    stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this(), id = exchange_](Error error) {
      if (error || self->exchange_ != id) return;
      char byte;
      const ssize_t n = ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (n > 0) return;
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return self->watch();
      self->gone("the client closed the connection");
    });
  }

  // ---- replies ----

  void append_head(const HttpReply& r, bool is_stream) {
    if (!server_.accepting) keep_alive_ = false;
    chunked_ = is_stream && version_ >= 11;
    if (is_stream && !chunked_) keep_alive_ = false;
    outbox_ += "HTTP/1.1 " + std::to_string(r.status) + " " +
               std::string(http::obsolete_reason(http::int_to_status(static_cast<unsigned>(r.status))));
    outbox_ += "\r\nServer: fovea\r\n";
    if (!r.content_type.empty()) outbox_ += "Content-Type: " + r.content_type + "\r\n";
    for (const auto& [name, value] : r.headers) outbox_ += name + ": " + value + "\r\n";
    if (chunked_) {
      outbox_ += "Transfer-Encoding: chunked\r\n";
    } else if (!is_stream && r.status != 204) {
      outbox_ += "Content-Length: " + std::to_string(r.body.size()) + "\r\n";
    }
    outbox_ += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  }

  // Writes what has gathered; what comes meanwhile is written next, in one piece.
  void write() {
    if (writing_ || outbox_.empty()) return;
    writing_ = true;
    inflight_.swap(outbox_);
    outbox_.clear();
    write_some(0);
  }

  // Piece by piece, so that the time limit is of a reader that takes nothing, not of one that takes long.
  void write_some(size_t begin) {
    stream_.expires_after(seconds(server_.options.write_timeout_s));
    stream_.async_write_some(asio::buffer(inflight_.data() + begin, inflight_.size() - begin),
                             [self = shared_from_this(), begin](Error error, size_t bytes) {
                               if (error) return self->write_failed(error);
                               if (begin + bytes < self->inflight_.size()) return self->write_some(begin + bytes);
                               self->written();
                             });
  }

  void write_failed(Error error) {
    writing_ = false;
    gone(error == beast::error::timeout ? "its reader takes nothing" : "the client closed the connection");
  }

  void written() {
    writing_ = false;
    inflight_.clear();
    stream_.expires_never();
    if (!outbox_.empty()) return write();
    if (!ended_) return;
    server_.exchanges.erase(std::exchange(exchange_, 0));
    if (!keep_alive_ || !server_.accepting) return finish();
    if (inflight_.capacity() > (64u << 10)) std::string().swap(inflight_);
    Error ignored;
    stream_.socket().cancel(ignored);  // watch()
    read_head(server_.options.idle_timeout_s);
  }

  // Ends it so that the client reads what was written: a close with unread input would reset the connection. What still comes is
  // thrown away, for a while.
  void finish() {
    Error ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(std::chrono::seconds(2));
    drain();
  }
  void drain() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(16384), [self = shared_from_this()](Error error, size_t bytes) {
      if (error || (self->drained_ += bytes) > (64u << 20)) return self->close();
      self->drain();
    });
  }

  HttpServer::Impl& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{64u << 10};
  std::optional<Parser> parser_;
  HttpRequest request_;
  std::string peer_;
  size_t body_reserved_ = 0;
  size_t drained_ = 0;
  unsigned version_ = 11;
  bool keep_alive_ = true, is_head_ = false;
  bool idle_ = false;  // waits for a request's first byte

  ExchangeId exchange_ = 0;  // 0: none
  std::string outbox_, inflight_;
  bool writing_ = false, streaming_ = false, chunked_ = false, ended_ = false, cut_off_ = false;
};

// ---- the server ----

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](Error error, tcp::socket socket) { accepted(error, std::move(socket)); });
}

void HttpServer::Impl::accepted(Error error, tcp::socket socket) {
  if (!accepting || error == asio::error::operation_aborted) return;
  if (error) {  // no descriptor is free: the others' may be soon
    retry_accept.expires_after(std::chrono::milliseconds(50));
    retry_accept.async_wait([this](Error) { accept(); });
    return;
  }
  if (connections.size() < static_cast<size_t>(options.connections_max)) {
    const auto connection = std::make_shared<Connection>(*this, std::move(socket));
    connections.emplace(connection.get(), connection);
    connection->start();
  }
  accept();
}

void HttpServer::Impl::tick() {
  timer.expires_after(std::chrono::milliseconds(250));
  timer.async_wait([this](Error error) {
    if (error) return;
    handler->on_tick(now_s());
    tick();
  });
}

void HttpServer::Impl::await_signal() {
  signals.async_wait([this](Error error, int) {
    if (error) return;
    handler->on_signal();
    await_signal();
  });
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::create(const HttpOptions& options) {
  raise_descriptor_limit();
  auto impl = std::make_unique<Impl>(options);
  const std::string where = "--host " + options.host + " --port " + std::to_string(options.port);
  Error error;
  tcp::resolver resolver(impl->io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty()) return Status::invalid_argument(where + ": " + error.message());
  const tcp::endpoint endpoint = *found.begin();
  impl->acceptor.open(endpoint.protocol(), error);
  if (!error) impl->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) impl->acceptor.bind(endpoint, error);
  if (!error) impl->acceptor.listen(4096, error);
  if (error) return Status::invalid_argument(where + ": " + error.message());
  impl->signals.add(SIGTERM, error);
  impl->signals.add(SIGINT, error);
  std::signal(SIGPIPE, SIG_IGN);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->acceptor.local_endpoint().port(); }

void HttpServer::run(HttpHandler& handler) {
  impl_->handler = &handler;
  impl_->accept();
  impl_->tick();
  impl_->await_signal();
  impl_->io.run();
}

void HttpServer::post(std::function<void()> what) { asio::post(impl_->io, std::move(what)); }

void HttpServer::reply(ExchangeId id, HttpReply reply) {
  if (const auto it = impl_->exchanges.find(id); it != impl_->exchanges.end()) std::shared_ptr(it->second)->reply(std::move(reply));
}

void HttpServer::begin_stream(ExchangeId id, HttpReply head) {
  if (const auto it = impl_->exchanges.find(id); it != impl_->exchanges.end())
    std::shared_ptr(it->second)->begin_stream(std::move(head));
}

void HttpServer::send(ExchangeId id, std::string_view bytes) {
  if (const auto it = impl_->exchanges.find(id); it != impl_->exchanges.end()) std::shared_ptr(it->second)->send(bytes);
}

void HttpServer::end_stream(ExchangeId id) {
  if (const auto it = impl_->exchanges.find(id); it != impl_->exchanges.end()) std::shared_ptr(it->second)->end_stream();
}

void HttpServer::stop_accepting() {
  impl_->accepting = false;
  Error ignored;
  impl_->acceptor.close(ignored);
  for (const auto& [raw, weak] : impl_->connections) {
    if (const auto c = weak.lock()) c->close_if_idle();
  }
}

void HttpServer::stop() { impl_->io.stop(); }
size_t HttpServer::connections() const { return impl_->connections.size(); }
size_t HttpServer::exchanges() const { return impl_->exchanges.size(); }

}  // namespace fovea::server
