// Decoding on top of contexts whose keys and values are random: what a step costs, not what it says.
#pragma once

#include "base/clock.h"
#include "engine/engine_impl.h"

#include <algorithm>
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
};

// Of steps after the first few of a call.
struct StepTimes {
  std::vector<double> s;       // of each: from one token to the next, everything that lies between
  double least_mean_s = 1e30;  // of the calls: where steps are not alike

  void add(const StepTimes& other) {
    s.insert(s.end(), other.s.begin(), other.s.end());
    least_mean_s = std::min(least_mean_s, other.least_mean_s);
  }
};

class DecodeRun {
 public:
  DecodeRun(EngineImpl& engine, const DecodeRunOptions& options) : engine_(engine), o_(options) {}

  // A held context of this depth with random keys and values.
  Status hold(int64_t depth);
  // Decodes on top of a context, with the model's own sampling. Adds to `times`; stats: what was read, or null.
  Status decode(int64_t depth, const std::string& method, StepTimes* times, RequestStats* stats);
  // Of a prompt that is computed.
  Result<double> prefill_s(int64_t tokens);

 private:
  Status drain(RequestId id, StepTimes* times, RequestStats* stats);

  static constexpr size_t kWarmTokens = 4;  // the first replays of a graph
  EngineImpl& engine_;
  const DecodeRunOptions o_;
  const Clock clock_;
  uint64_t prefills_ = 0;
  std::map<int64_t, RequestId> contexts_;
};

}  // namespace fovea
