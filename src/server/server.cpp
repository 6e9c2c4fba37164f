#include "server/server.h"

#include <cstdlib>

namespace fovea::server {

Status serve(ServeOptions options) {
  // Bound before the model is loaded: a port that is taken is told at once, and /health answers meanwhile.
  FOVEA_ASSIGN(const std::unique_ptr<HttpServer> http, HttpServer::create(options.http));
  std::fprintf(stderr, "fovea: listening on %s:%u; loading %s\n", options.http.host.c_str(), unsigned{http->port()},
               options.engine.model_dir.c_str());
  Service service(std::move(options.service), *http,
                  [engine = std::move(options.engine)]() mutable { return Engine::create(std::move(engine)); });
  http->run(service);
  if (service.loading()) std::_Exit(0);  // nothing was promised yet, and loading cannot be interrupted
  return service.failure();
}

}  // namespace fovea::server
