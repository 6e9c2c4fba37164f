// Streams completions from a server, many at once, on one thread (Boost.Beast over Asio, as src/server/http_server.h).
#pragma once

#include "bench/completion_stream.h"

#include <fovea/status.h>

#include <functional>
#include <string>
#include <vector>

namespace fovea {

struct HttpTarget {
  std::string host, port = "80";
  std::string path;     // before the endpoints': "/v1"
  std::string api_key;  // empty: none
};

// http://HOST[:PORT][/PATH], with or without the /v1 that OpenAI's base URLs end with.
Result<HttpTarget> parse_target(const std::string& url);

// The body of a GET. Errors name the URL.
Result<std::string> http_get(const HttpTarget& target, const std::string& endpoint);

struct LoadPlan {
  std::string endpoint;              // "/chat/completions"
  std::vector<double> start_s;       // ascending: when each request is due
  size_t concurrency_max = 0;        // 0: none; a request beyond it waits, and its times run from its sending
  double timeout_s = 0;              // of each request
  std::function<std::string(size_t)> body;
};

struct LoadResult {
  std::vector<CompletionOutcome> outcomes;  // of each request
  double duration_s = 0;
  size_t open_max = 0;  // requests under way at once
};

// Errors: the host's name. What becomes of a request is in its outcome.
Result<LoadResult> run_load(const HttpTarget& target, const LoadPlan& plan);

}  // namespace fovea
