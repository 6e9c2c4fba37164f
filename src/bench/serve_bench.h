// fovea bench serve: load on a server of OpenAI's API, in the terms of vLLM's `bench serve`.
#pragma once

#include <fovea/status.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <string>

namespace fovea {

struct ServeBenchOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string endpoint = "chat";  // or completions
  std::string model;              // empty: the first of /v1/models
  std::string api_key;            // empty: none
  std::string extra_body;         // a JSON object that joins each request; empty: none
  int64_t prompts = 1000;
  double request_rate = std::numeric_limits<double>::infinity();  // requests/s
  double burstiness = 1;     // shape of the gamma distribution of the time between them: 1 Poisson, infinite: constant
  int64_t concurrency_max = 0;  // 0: none
  int64_t input_tokens = 1024;  // of a prompt behind its prefix, the chat template's included; about
  int64_t output_tokens = 128;
  int64_t prefix_tokens = 0;  // that prompts share; about
  int64_t prefixes = 1;       // each prompt begins with one of so many
  bool ignore_eos = false;
  uint64_t seed = 0;
  double timeout_s = 600;  // of a request
};

struct ServeBenchReport {
  nlohmann::ordered_json json;  // by the names of vLLM's --save-result, and `errors` by kind
  std::string table;
  int64_t completed = 0;
};

// Errors: what stands in the way of any request. Those of single requests are counted.
Result<ServeBenchReport> bench_serve(const ServeBenchOptions& options);

}  // namespace fovea
