// One connection of the HTTP server, and what all of them share. This header and the two files that include it are all that know
// Boost: Beast and Asio compile slowly.
#pragma once

#include "server/http_server.h"

#define BOOST_ASIO_NO_DEPRECATED
#define BOOST_ERROR_CODE_HEADER_ONLY
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <atomic>
#include <chrono>
#include <limits>
#include <list>
#include <optional>
#include <unordered_map>

namespace fovea::server {

namespace asio = boost::asio;
namespace ssl = asio::ssl;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Error = boost::system::error_code;

constexpr double kNever = std::numeric_limits<double>::infinity();

inline double steady_now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

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
  Connection(HttpServer::Impl& server, tcp::socket socket);
  ~Connection();
  void start();

  bool is_late(double now) const { return now > deadline_s_ || now > write_deadline_s_; }
  void expire(double now);
  void close_if_idle();
  void close();
  void reply(HttpReply r);
  void begin_stream(HttpReply r);
  void send(std::string_view bytes);
  void end_stream();

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

  void set_phase(Phase phase, double seconds);

  void join_headless() { place_ = server_.headless.insert(server_.headless.end(), this); }
  void leave_headless();
  void gone(const char* why);

  // ---- requests ----

  void await_request(double timeout_s);
  void read();
  void arrived(Error error, size_t bytes);
  void input_ended();
  void parse();
  void refuse_bytes(Error error);
  bool head_read();
  void hand_over();
  void read_fields();
  void begin_exchange();

  void refuse_body(size_t most) { refuse(413, "the request's body has more than " + std::to_string(most) + " bytes"); }

  void refuse(int status, const std::string& why) { answer_and_close(server_.handler->refusal(status, why)); }

  void answer_and_close(HttpReply r);

  // ---- replies ----

  void append_head(const HttpReply& r, bool is_stream);
  void check_reader(ExchangeId id);
  void write();
  void write_some(size_t begin);
  void written();
  void say_farewell();

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
  bool writing_ = false, chunked_ = false, ended_ = false, overfull_ = false;
};

}  // namespace fovea::server
