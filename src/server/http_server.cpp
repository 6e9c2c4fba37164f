#include "server/http_server.h"

#include "base/descriptor_limit.h"
#include "server/http_connection.h"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>

namespace fovea::server {

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
    const double now = steady_now_s();
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

// How many connections there may be: an eighth of the descriptors stays for files.
size_t connections_within_limit(size_t connections_max) {
  const size_t limit = raise_descriptor_limit();
  const size_t spare = std::max<size_t>(64, limit / 8);
  return std::min(connections_max, limit > 2 * spare ? limit - spare : spare);
}

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
