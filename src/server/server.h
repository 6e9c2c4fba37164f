// fovea serve, without its flags.
#pragma once

#include "server/http_server.h"
#include "server/service.h"

#include <fovea/options.h>
#include <fovea/status.h>

namespace fovea::server {

struct ServeOptions {
  EngineOptions engine;
  HttpOptions http;
  ServiceOptions service;
};

// Serves until SIGTERM or SIGINT: the first one lets requests finish, a second one ends them.
Status serve(ServeOptions options);

}  // namespace fovea::server
