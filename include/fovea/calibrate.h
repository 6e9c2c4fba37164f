// Scales for an fp8 KV cache (EngineOptions::kv_scales), from texts like those that will be read.
#pragma once

#include <fovea/options.h>
#include <fovea/status.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fovea {

struct KvCalibration {
  std::vector<std::string> texts;  // read as they are, without a chat template
  // A scale makes room for so many times the largest magnitude that the texts reach. It costs an fp8 number no precision, only
  // its least magnitudes; what is larger still saturates.
  double margin = 2.0;
  int64_t piece_tokens = 4096;                                // a text is read in pieces of as many, each from position 0
  std::function<void(int64_t done, int64_t total)> progress;  // in tokens; may be null
};

// Reads the texts densely, with a KV cache of bf16, and returns the text of a file for EngineOptions::kv_scales: JSON with the
// largest magnitudes of keys (after rope) and values of each layer and KV head. `options` say model, device and threads. Errors as
// of Engine::create; unsupported where the model caches latents, invalid_argument where the texts have no token.
Result<std::string> calibrate_kv(EngineOptions options, const KvCalibration& calibration);

}  // namespace fovea
