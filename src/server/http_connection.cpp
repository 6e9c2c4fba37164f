#include "server/http_connection.h"

#include <boost/asio/post.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace fovea::server {
namespace {

constexpr double kFarewellS = 2;         // for a client to read the last reply before its connection closes
constexpr size_t kReadBytes = 2u << 10;  // at once; of a body:
constexpr size_t kReadBodyBytes = 64u << 10;
constexpr size_t kBodylessBytes = 16u << 10;        // most that a request that needs no body may bring as one
constexpr size_t kDiscardBytes = size_t{64} << 20;  // of what comes after the last reply

bool is_http_error(const Error& error) { return error.category() == http::make_error_code(http::error::bad_method).category(); }

}  // namespace

Connection::Connection(HttpServer::Impl& server, tcp::socket socket) : server_(server), socket_(std::move(socket)) {
  Error error;
  socket_.set_option(tcp::no_delay(true), error);
  const auto peer = socket_.remote_endpoint(error);
  if (!error) peer_ = peer.address().to_string();
  if (server_.tls) tls_.emplace(socket_, *server_.tls);
}

Connection::~Connection() {
  leave_headless();
  server_.connections.erase(this);
}

void Connection::start() {
  join_headless();
  if (!tls_) return await_request(server_.options.header_timeout_s);
  set_phase(Phase::handshake, server_.options.header_timeout_s);
  tls_->async_handshake(ssl::stream_base::server, [self = shared_from_this()](Error error) {
    if (error || self->phase_ != Phase::handshake) return self->close();
    self->await_request(self->server_.options.header_timeout_s);
  });
}

// Its time is over.
void Connection::expire(double now) {
  if (now > write_deadline_s_) return gone("its reader takes nothing");
  if (phase_ == Phase::head) return refuse(408, "the request's headers took longer than --header-timeout allows");
  if (phase_ == Phase::body) return refuse(408, "the request's body took longer than --body-timeout allows");
  close();
}

void Connection::close_if_idle() {
  if (phase_ == Phase::idle) close();
}

void Connection::close() {
  leave_headless();
  set_phase(Phase::closed, kNever);
  write_deadline_s_ = kNever;
  Error ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

void Connection::reply(HttpReply r) {
  append_head(r, /*is_stream=*/false);
  if (!is_head_) outbox_ += r.body;
  ended_ = true;
  write();
}

void Connection::begin_stream(HttpReply r) {
  append_head(r, /*is_stream=*/true);
  send(r.body);
  write();
}

void Connection::send(std::string_view bytes) {
  if (bytes.empty() || ended_) return;
  // Before it is added: one large event is no slow reader's fault. Nor are many that come at once: what the reader takes of them is
  // known behind the end of the write that is under way.
  if (outbox_.size() > server_.options.outbox_bytes_max && !std::exchange(overfull_, true))
    asio::post(server_.io, [self = shared_from_this(), id = exchange_]() { self->check_reader(id); });
  if (chunked_) {
    char size[32];
    std::snprintf(size, sizeof(size), "%zx\r\n", bytes.size());
    outbox_ += size;
  }
  outbox_ += bytes;
  if (chunked_) outbox_ += "\r\n";
  write();
}

void Connection::check_reader(ExchangeId id) {
  if (exchange_ != id) return;
  overfull_ = false;
  if (outbox_.size() > server_.options.outbox_bytes_max) gone("its reader is too slow");
}

void Connection::end_stream() {
  if (chunked_) outbox_ += "0\r\n\r\n";
  ended_ = true;
  write();
}

void Connection::set_phase(Phase phase, double seconds) {
  phase_ = phase;
  deadline_s_ = seconds == kNever ? kNever : steady_now_s() + seconds;
}

void Connection::leave_headless() {
  if (place_) server_.headless.erase(*std::exchange(place_, std::nullopt));
}

// The reply's reader is lost.
void Connection::gone(const char* why) {
  const ExchangeId id = std::exchange(exchange_, 0);
  close();
  if (id == 0) return;
  server_.exchanges.erase(id);
  server_.handler->on_gone(id, why);
}

// ---- requests ----

void Connection::await_request(double timeout_s) {
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
void Connection::read() {
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

void Connection::arrived(Error error, size_t bytes) {
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

void Connection::input_ended() {
  if (phase_ == Phase::reply) return gone("the client closed the connection");
  // It may have closed one direction only.
  if (phase_ == Phase::head || phase_ == Phase::body) return refuse(400, "the request ends within its headers or its body");
  close();
}

// Goes as far as what has arrived reaches.
void Connection::parse() {
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

void Connection::refuse_bytes(Error error) {
  if (error == http::error::header_limit)
    return refuse(431, "the request's headers have more than " + std::to_string(server_.options.header_bytes_max) + " bytes");
  if (error == http::error::body_limit) return refuse_body(server_.options.body_bytes_max);
  refuse(400, is_http_error(error) ? "bad HTTP request: " + error.message() : "bad HTTP request");
}

// false: it was refused.
bool Connection::head_read() {
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

void Connection::hand_over() {
  request_.body = std::move(parser_->get().body());
  request_.body_lease = std::move(lease_);
  parser_.reset();
  begin_exchange();
  server_.handler->on_request(exchange_, std::exchange(request_, {}));
}

void Connection::read_fields() {
  const auto& head = parser_->get();
  const auto field = [&](http::field f) { return std::string(head[f]); };
  request_ = {};
  request_.method = std::string(head.method_string());
  const std::string_view target(head.target().data(), head.target().size());
  const size_t mark = target.find('?');
  request_.path = std::string(target.substr(0, mark));
  if (mark != std::string_view::npos) request_.query = std::string(target.substr(mark + 1));
  request_.authorization = field(http::field::authorization);
  request_.origin = field(http::field::origin);
  request_.request_id = std::string(head["X-Request-Id"]);
  request_.user_agent = field(http::field::user_agent);
  request_.access_headers = field(http::field::access_control_request_headers);
  request_.peer = peer_;
}

void Connection::begin_exchange() {
  leave_headless();
  exchange_ = server_.next_exchange++;
  server_.exchanges.emplace(exchange_, shared_from_this());
  chunked_ = ended_ = overfull_ = false;
  set_phase(Phase::reply, kNever);
}

void Connection::answer_and_close(HttpReply r) {
  keep_alive_ = false;
  lease_.reset();
  parser_.reset();
  std::string().swap(in_);
  begin_exchange();
  reply(std::move(r));
  read();
}

// ---- replies ----

void Connection::append_head(const HttpReply& r, bool is_stream) {
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
void Connection::write() {
  if (writing_ || outbox_.empty() || phase_ == Phase::closed) return;
  writing_ = true;
  inflight_.swap(outbox_);
  outbox_.clear();
  write_some(0);
}

// Piece by piece, so that the time limit is of a reader that takes nothing, not of one that takes long.
void Connection::write_some(size_t begin) {
  write_deadline_s_ = steady_now_s() + server_.options.write_timeout_s;
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

void Connection::written() {
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
void Connection::say_farewell() {
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

}  // namespace fovea::server
