// The only file that includes Boost: Beast and Asio compile slowly.
#include "server/http_server.h"

#include "base/descriptor_limit.h"

#define BOOST_ASIO_NO_DEPRECATED
#define BOOST_ERROR_CODE_HEADER_ONLY
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <limits>
#include <list>
#include <optional>
#include <unordered_map>

namespace fovea::server {
namespace {

namespace asio = boost::asio;
namespace ssl = asio::ssl;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Error = boost::system::error_code;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kFarewellS = 2;         // for a client to read the last reply before its connection closes
constexpr size_t kReadBytes = 2u << 10;  // at once; of a body:
constexpr size_t kReadBodyBytes = 64u << 10;
constexpr size_t kBodylessBytes = 16u << 10;        // most that a request that needs no body may bring as one
constexpr size_t kDiscardBytes = size_t{64} << 20;  // of what comes after the last reply

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// How many connections there may be: an eighth of the descriptors stays for files.
size_t connections_within_limit(size_t connections_max) {
  const size_t limit = raise_descriptor_limit();
  const size_t spare = std::max<size_t>(64, limit / 8);
  return std::min(connections_max, limit > 2 * spare ? limit - spare : spare);
}

// A body that is as large as what has arrived. Beast's own takes its declared length at once, which costs its sender one line.
struct ArrivedBody {
  using value_type = std::string;
  static uint64_t size(const value_type& body) { return body.size(); }
  class reader {
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, Error& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, Error& error) {
      error = {};
      const size_t before = body_.size();
      for (const asio::const_buffer b : beast::buffers_range_ref(buffers))
        body_.append(static_cast<const char*>(b.data()), b.size());
      return body_.size() - before;
    }
    void finish(Error& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// Counts bytes of a body among those of all bodies, as long as somebody keeps it.
class BodyLease {
 public:
  explicit BodyLease(std::atomic<size_t>& all) : all_(all) {}
  ~BodyLease() { all_ -= bytes_; }
  BodyLease(const BodyLease&) = delete;
  // false: all would have more than `most`.
  bool grow(size_t bytes, size_t most) {
    bytes_ += bytes;
    return (all_ += bytes) <= most;
  }

 private:
  std::atomic<size_t>& all_;
  size_t bytes_ = 0;
};

bool is_http_error(const Error& error) { return error.category() == http::make_error_code(http::error::bad_method).category(); }

}  // namespace

class Connection;

struct HttpServer::Impl {
  explicit Impl(const HttpOptions& options) : options(options) {}

  void accept();
  void accepted(Error error, tcp::socket socket);
  bool make_room();
  void tick();
  void await_signal();

  const HttpOptions options;
  size_t connections_max = 0;
  std::optional<ssl::context> tls;  // none: plain TCP
  HttpHandler* handler = nullptr;
  ExchangeId next_exchange = 1;
  std::atomic<size_t> bodies_bytes{0};                                     // received, and not decoded yet
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;  // before io: its handlers hold the connections
  std::list<Connection*> headless;  // those without a request so far, longest first: a new connection may have their place
  asio::io_context io{1};
  std::unordered_map<ExchangeId, std::shared_ptr<Connection>> exchanges;
  tcp::acceptor acceptor{io};
  asio::steady_timer timer{io};
  asio::steady_timer retry_accept{io};
  asio::signal_set signals{io};
  bool accepting = true;
};

// A connection reads one request, waits until its reply is written, and reads the next. It reads all the while, for so it notices
// that its client leaves. Everything happens on the server's thread; each phase has a deadline, which the server's tick keeps.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, tcp::socket socket) : server_(server), socket_(std::move(socket)) {
    Error error;
    socket_.set_option(tcp::no_delay(true), error);
    const auto peer = socket_.remote_endpoint(error);
    if (!error) peer_ = peer.address().to_string();
    if (server_.tls) tls_.emplace(socket_, *server_.tls);
  }
  ~Connection() {
    leave_headless();
    server_.connections.erase(this);
  }

  void start() {
    join_headless();
    if (!tls_) return await_request(server_.options.header_timeout_s);
    set_phase(Phase::handshake, server_.options.header_timeout_s);
    tls_->async_handshake(ssl::stream_base::server, [self = shared_from_this()](Error error) {
      if (error || self->phase_ != Phase::handshake) return self->close();
      self->await_request(self->server_.options.header_timeout_s);
    });
  }

  bool is_late(double now) const { return now > deadline_s_ || now > write_deadline_s_; }
  // Its time is over.
  void expire(double now) {
    if (now > write_deadline_s_) return gone("its reader takes nothing");
    if (phase_ == Phase::head) return refuse(408, "the request's headers took longer than --header-timeout allows");
    if (phase_ == Phase::body) return refuse(408, "the request's body took longer than --body-timeout allows");
    close();
  }

  void close_if_idle() {
    if (phase_ == Phase::idle) close();
  }

  void close() {
    leave_headless();
    set_phase(Phase::closed, kNever);
    write_deadline_s_ = kNever;
    Error ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  void reply(HttpReply r) {
    append_head(r, /*is_stream=*/false);
    if (!is_head_) outbox_ += r.body;
    ended_ = true;
    write();
  }

  void begin_stream(HttpReply r) {
    append_head(r, /*is_stream=*/true);
    send(r.body);
    write();
  }

  void send(std::string_view bytes) {
    if (bytes.empty() || ended_ || cut_off_) return;
    // Before it is added: one large event is no slow reader's fault.
    if (outbox_.size() > server_.options.outbox_bytes_max) {
      cut_off_ = true;  // told from the loop, not from within the handler's call
      asio::post(server_.io, [self = shared_from_this()]() { self->gone("its reader is too slow"); });
      return;
    }
    if (chunked_) {
      char size[32];
      std::snprintf(size, sizeof(size), "%zx\r\n", bytes.size());
      outbox_ += size;
    }
    outbox_ += bytes;
    if (chunked_) outbox_ += "\r\n";
    write();
  }

  void end_stream() {
    if (chunked_) outbox_ += "0\r\n\r\n";
    ended_ = true;
    write();
  }

 private:
  using Parser = http::request_parser<ArrivedBody>;
  enum class Phase : uint8_t {
    handshake,
    idle,      // waits for a request's first byte
    head,      // has it, not yet the headers' end
    body,      // has the headers
    reply,     // has the request: the reply is made and written
    farewell,  // has sent its last; what still comes is thrown away
    closed,
  };

  void set_phase(Phase phase, double seconds) {
    phase_ = phase;
    deadline_s_ = seconds == kNever ? kNever : now_s() + seconds;
  }

  void join_headless() { place_ = server_.headless.insert(server_.headless.end(), this); }
  void leave_headless() {
    if (place_) server_.headless.erase(*std::exchange(place_, std::nullopt));
  }

  // The reply's reader is lost.
  void gone(const char* why) {
    const ExchangeId id = std::exchange(exchange_, 0);
    close();
    if (id == 0) return;
    server_.exchanges.erase(id);
    server_.handler->on_gone(id, why);
  }

  // ---- requests ----

  void await_request(double timeout_s) {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(server_.options.header_bytes_max));
    parser_->body_limit(server_.options.body_bytes_max);
    request_ = {};
    version_ = 11;
    keep_alive_ = true;
    is_head_ = false;
    if (!place_) join_headless();
    set_phase(Phase::idle, timeout_s);
    parse();
  }

  // Always into chunk_, never into what is parsed: a read may be under way while a reply ends and the next request is parsed.
  void read() {
    const bool full = phase_ == Phase::reply && in_.size() > server_.options.header_bytes_max;  // early requests: enough of them
    if (reading_ || full || phase_ == Phase::handshake || phase_ == Phase::closed) return;
    reading_ = true;
    chunk_.resize(phase_ == Phase::body ? kReadBodyBytes : kReadBytes);
    auto done = [self = shared_from_this()](Error error, size_t bytes) {
      self->reading_ = false;
      self->arrived(error, bytes);
    };
    if (tls_ && !reads_raw_) {
      tls_->async_read_some(asio::buffer(chunk_), std::move(done));
    } else {
      socket_.async_read_some(asio::buffer(chunk_), std::move(done));
    }
  }

  void arrived(Error error, size_t bytes) {
    if (phase_ == Phase::closed) return;
    if (phase_ == Phase::farewell) {
      // TLS may not read on once its end was said; the bytes still have to be taken, or closing would reset the connection.
      const bool tls_ended = error && tls_ && !std::exchange(reads_raw_, true);
      if ((error && !tls_ended) || (discarded_ += bytes) > kDiscardBytes) return close();
      return read();
    }
    if (error) return input_ended();
    in_.append(chunk_.data(), bytes);
    parse();
  }

  void input_ended() {
    if (phase_ == Phase::reply) return gone("the client closed the connection");
    // It may have closed one direction only.
    if (phase_ == Phase::head || phase_ == Phase::body) return refuse(400, "the request ends within its headers or its body");
    close();
  }

  // Goes as far as what has arrived reaches.
  void parse() {
    while (!in_.empty() && (phase_ == Phase::idle || phase_ == Phase::head || phase_ == Phase::body)) {
      if (phase_ == Phase::idle) {
        // Some clients end a body with a line's end that they do not count.
        in_.erase(0, std::min(in_.find_first_not_of("\r\n"), in_.size()));
        if (in_.empty()) break;
        set_phase(Phase::head, server_.options.header_timeout_s);
      }
      const size_t body_bytes = parser_->get().body().size();
      Error error;
      in_.erase(0, parser_->put(asio::buffer(in_), error));
      if (error && error != http::error::need_more) return refuse_bytes(error);
      // What the parser leaves until more comes is one line or all headers; chunks' have no other limit.
      if (error && in_.size() > server_.options.header_bytes_max + kReadBodyBytes)
        return refuse(400, "bad HTTP request: a line is too long");
      if (phase_ == Phase::head && parser_->is_header_done() && !head_read()) return;
      if (lease_ && !lease_->grow(parser_->get().body().size() - body_bytes, server_.options.bodies_bytes_max))
        return refuse(503, "too many large requests are being received: try again later");
      if (parser_->is_done()) {
        hand_over();
      } else if (error) {
        break;
      }
    }
    read();
  }

  void refuse_bytes(Error error) {
    if (error == http::error::header_limit)
      return refuse(431, "the request's headers have more than " + std::to_string(server_.options.header_bytes_max) + " bytes");
    if (error == http::error::body_limit) return refuse_body(server_.options.body_bytes_max);
    refuse(400, is_http_error(error) ? "bad HTTP request: " + error.message() : "bad HTTP request");
  }

  // false: it was refused.
  bool head_read() {
    leave_headless();
    const auto& head = parser_->get();
    version_ = head.version();
    keep_alive_ = head.keep_alive();
    is_head_ = head.method() == http::verb::head;
    read_fields();
    const auto refused = [&](auto refuse) {
      refuse();
      return false;
    };
    HttpReply refusal;
    if (!server_.handler->admit(request_, &refusal)) return refused([&] { answer_and_close(std::move(refusal)); });
    const bool takes_body = head.method() == http::verb::post || head.method() == http::verb::put;
    const size_t most = takes_body ? server_.options.body_bytes_max : std::min(kBodylessBytes, server_.options.body_bytes_max);
    parser_->body_limit(most);
    const auto length = parser_->content_length();
    if (length && *length > most) return refused([&] { refuse_body(most); });
    if (head.find(http::field::transfer_encoding) != head.end() && !parser_->chunked())
      return refused([&] { refuse(501, "only chunked transfer encoding is supported"); });
    lease_ = std::make_shared<BodyLease>(server_.bodies_bytes);
    set_phase(Phase::body, server_.options.body_timeout_s);
    parser_->eager(true);
    if (!parser_->is_done() && head[http::field::expect] == "100-continue") {
      outbox_ += "HTTP/1.1 100 Continue\r\n\r\n";
      write();
    }
    return true;
  }

  void hand_over() {
    request_.body = std::move(parser_->get().body());
    request_.body_lease = std::move(lease_);
    parser_.reset();
    begin_exchange();
    server_.handler->on_request(exchange_, std::exchange(request_, {}));
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
    leave_headless();
    exchange_ = server_.next_exchange++;
    server_.exchanges.emplace(exchange_, shared_from_this());
    chunked_ = ended_ = cut_off_ = false;
    set_phase(Phase::reply, kNever);
  }

  void refuse_body(size_t most) { refuse(413, "the request's body has more than " + std::to_string(most) + " bytes"); }

  void refuse(int status, const std::string& why) { answer_and_close(server_.handler->refusal(status, why)); }

  void answer_and_close(HttpReply r) {
    keep_alive_ = false;
    lease_.reset();
    parser_.reset();
    std::string().swap(in_);
    begin_exchange();
    reply(std::move(r));
    read();
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
    if (writing_ || outbox_.empty() || phase_ == Phase::closed) return;
    writing_ = true;
    inflight_.swap(outbox_);
    outbox_.clear();
    write_some(0);
  }

  // Piece by piece, so that the time limit is of a reader that takes nothing, not of one that takes long.
  void write_some(size_t begin) {
    write_deadline_s_ = now_s() + server_.options.write_timeout_s;
    const auto rest = asio::buffer(inflight_.data() + begin, inflight_.size() - begin);
    auto done = [self = shared_from_this(), begin](Error error, size_t bytes) {
      if (error) self->writing_ = false;
      if (error) return self->gone("the client closed the connection");
      if (begin + bytes < self->inflight_.size()) return self->write_some(begin + bytes);
      self->written();
    };
    if (tls_) {
      tls_->async_write_some(rest, std::move(done));
    } else {
      socket_.async_write_some(rest, std::move(done));
    }
  }

  void written() {
    writing_ = false;
    write_deadline_s_ = kNever;
    inflight_.clear();
    if (phase_ == Phase::closed) return;
    if (!outbox_.empty()) return write();
    if (phase_ != Phase::reply || !ended_) return;
    server_.exchanges.erase(std::exchange(exchange_, 0));
    if (!keep_alive_ || !server_.accepting) return say_farewell();
    // Idle connections keep little.
    for (std::string* buffer : {&inflight_, &outbox_, &in_}) {
      if (buffer->capacity() > 4096 && buffer->empty()) std::string().swap(*buffer);
    }
    await_request(server_.options.idle_timeout_s);
  }

  // Ends it so that the client reads what was written: a close with unread input would reset the connection.
  void say_farewell() {
    set_phase(Phase::farewell, kFarewellS);
    const auto self = shared_from_this();
    if (tls_) {
      tls_->async_shutdown([self](Error error) {
        if (!error) self->close();
      });
    } else {
      Error ignored;
      socket_.shutdown(tcp::socket::shutdown_send, ignored);
    }
    read();
  }

  HttpServer::Impl& server_;
  tcp::socket socket_;
  std::optional<ssl::stream<tcp::socket&>> tls_;           // over socket_; none: plain
  std::optional<std::list<Connection*>::iterator> place_;  // in headless
  Phase phase_ = Phase::idle;
  double deadline_s_ = kNever, write_deadline_s_ = kNever;
  std::string peer_;

  std::vector<char> chunk_;  // what is being read
  std::string in_;           // read, and not parsed
  bool reading_ = false;
  bool reads_raw_ = false;  // of TLS: not decrypted any more
  std::optional<Parser> parser_;
  HttpRequest request_;
  std::shared_ptr<BodyLease> lease_;
  size_t discarded_ = 0;
  unsigned version_ = 11;
  bool keep_alive_ = true, is_head_ = false;

  ExchangeId exchange_ = 0;  // 0: none
  std::string outbox_, inflight_;
  bool writing_ = false, chunked_ = false, ended_ = false, cut_off_ = false;
};

// ---- the server ----

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](Error error, tcp::socket socket) { accepted(error, std::move(socket)); });
}

void HttpServer::Impl::accepted(Error error, tcp::socket socket) {
  if (!accepting || error == asio::error::operation_aborted) return;
  if (error) {  // no descriptor is free: others' may be soon
    make_room();
    retry_accept.expires_after(std::chrono::milliseconds(50));
    retry_accept.async_wait([this](Error) { accept(); });
    return;
  }
  if (connections.size() < connections_max || make_room()) {
    const auto connection = std::make_shared<Connection>(*this, std::move(socket));
    connections.emplace(connection.get(), connection);
    connection->start();
  }
  accept();
}

// Closes the connection that has been without a request longest, so that those who ask nothing keep out nobody. false: all ask.
bool HttpServer::Impl::make_room() {
  if (headless.empty()) return false;
  headless.front()->close();
  return true;
}

void HttpServer::Impl::tick() {
  timer.expires_after(std::chrono::milliseconds(250));
  timer.async_wait([this](Error error) {
    if (error) return;
    const double now = now_s();
    std::vector<std::shared_ptr<Connection>> late;
    for (const auto& [raw, weak] : connections) {
      if (raw->is_late(now)) late.push_back(weak.lock());
    }
    for (const auto& connection : late) {
      if (connection) connection->expire(now);
    }
    handler->on_tick(now);
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

namespace {

// TLS 1.2 and later, by the files that the options name. Errors name the flag and the file.
Status make_tls(const HttpOptions& options, std::optional<ssl::context>* tls) {
  if (options.tls_certificate_file.empty() && options.tls_key_file.empty()) return {};
  if (options.tls_certificate_file.empty()) return Status::invalid_argument("--ssl-keyfile: needs --ssl-certfile");
  ssl::context& context = tls->emplace(ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.native_handle(), SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  Error error;
  // A key with a passphrase is an error, not a question on the terminal.
  context.set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  const auto failed = [&](const char* flag, const std::string& file) {
    return Status::invalid_argument(std::string(flag) + " " + file + ": " + error.message());
  };
  context.use_certificate_chain_file(options.tls_certificate_file, error);
  if (error) return failed("--ssl-certfile", options.tls_certificate_file);
  const bool in_one = options.tls_key_file.empty();
  const std::string& key = in_one ? options.tls_certificate_file : options.tls_key_file;
  context.use_private_key_file(key, ssl::context::pem, error);
  if (error) return failed(in_one ? "--ssl-certfile (its key; --ssl-keyfile: none)" : "--ssl-keyfile", key);
  return {};
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(const HttpOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  impl->connections_max = connections_within_limit(static_cast<size_t>(options.connections_max));
  FOVEA_TRY(make_tls(options, &impl->tls));
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
