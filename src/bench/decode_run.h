// Decoding on top of contexts whose keys and values are random: what a step costs, not what it says.
#pragma once

#include "base/clock.h"
#include "engine/engine_impl.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fovea {

// Random ones; the same for the same seed.
std::vector<TokenId> some_tokens(int64_t count, int32_t vocab, uint64_t seed = 1);

struct DecodeRunOptions {
  int32_t steps = 16;  // tokens of a decode()
  int32_t budget_tokens = 512;
  bool alike = false;  // steps are, and each is over when its call returns: the fastest counts, else the mean after the first few
};

class DecodeRun {
 public:
  DecodeRun(EngineImpl& engine, const DecodeRunOptions& options) : engine_(engine), o_(options) {}

  // A held context of this depth with random keys and values.
  Status hold(int64_t depth);
  // Decodes on top of a context. Keeps the least seconds of a step of all calls, and what was read.
  Status decode(int64_t depth, const std::string& method, double* best_s, RequestStats* stats);
  // Of a prompt that is computed.
  Result<double> prefill_s(int64_t tokens);

 private:
  Status drain(RequestId id, double* best_s, RequestStats* stats);

  static constexpr size_t kWarmTokens = 4;  // the first replays of a graph
  EngineImpl& engine_;
  const DecodeRunOptions o_;
  const Clock clock_;
  uint64_t prefills_ = 0;
  std::map<int64_t, RequestId> contexts_;
};

}  // namespace fovea
