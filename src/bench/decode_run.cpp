#include "bench/decode_run.h"

#include <algorithm>
#include <numeric>

namespace fovea {

std::vector<TokenId> some_tokens(int64_t count, int32_t vocab, uint64_t seed) {
  std::vector<TokenId> ids(static_cast<size_t>(count));
  uint64_t x = seed;
  for (TokenId& id : ids) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    id = static_cast<TokenId>((x >> 33) % static_cast<uint64_t>(vocab));
  }
  return ids;
}

Status DecodeRun::hold(int64_t depth) {
  engine_.simulate_prefill(true);
  Request r;
  r.prompt = some_tokens(depth, engine_.model().vocab_size);
  r.sampling.max_tokens = 0;
  r.hold = true;
  FOVEA_ASSIGN(const RequestId id, engine_.submit(std::move(r)));
  FOVEA_TRY(drain(id, nullptr, nullptr));
  engine_.simulate_prefill(false);
  contexts_[depth] = id;
  return {};
}

Status DecodeRun::decode(int64_t depth, const std::string& method, StepTimes* times, RequestStats* stats) {
  Request r;
  r.prompt = some_tokens(1, engine_.model().vocab_size);
  r.fork_of = contexts_.at(depth);
  r.sampling = engine_.model().sampling;
  r.sampling.max_tokens = o_.steps;
  r.sampling.ignore_eos = true;
  r.decode_method = method;
  r.budget_tokens = method == "dense" ? 0 : o_.budget_tokens;
  FOVEA_ASSIGN(const RequestId id, engine_.submit(std::move(r)));
  return drain(id, times, stats);
}

Result<double> DecodeRun::prefill_s(int64_t tokens) {
  Request r;
  r.prompt = some_tokens(tokens, engine_.model().vocab_size, ++prefills_ + 1);  // others than before: cached blocks are not found
  r.sampling.max_tokens = 0;
  const double start = clock_.now_s();
  FOVEA_ASSIGN(const RequestId id, engine_.submit(std::move(r)));
  FOVEA_TRY(drain(id, nullptr, nullptr));
  return clock_.now_s() - start;
}

Status DecodeRun::drain(RequestId id, StepTimes* times, RequestStats* stats) {
  std::vector<Output> outputs;
  std::vector<double> gaps;  // before each token; tokens that one call brings share the time before them
  double last = clock_.now_s();
  for (bool more = true, done = false; !done;) {
    outputs.clear();
    FOVEA_ASSIGN(more, engine_.step(&outputs));
    int came = 0;
    for (const Output& out : outputs) {
      if (!(out.request == id)) continue;
      FOVEA_TRY(out.error);
      ++came;
      if (!out.finished) continue;
      if (stats) *stats = out.stats;
      done = true;
    }
    if (!more && !done) return Status::internal("the engine stopped before the request was done");
    if (came == 0) continue;
    const double now = clock_.now_s();
    gaps.insert(gaps.end(), static_cast<size_t>(came), (now - last) / came);
    last = now;
  }
  if (!times || gaps.size() < 2) return {};
  gaps.erase(gaps.begin(), gaps.begin() + static_cast<int64_t>(std::min(kWarmTokens, gaps.size() - 2)) + 1);
  times->s.insert(times->s.end(), gaps.begin(), gaps.end());
  times->least_mean_s = std::min(times->least_mean_s, std::accumulate(gaps.begin(), gaps.end(), 0.0) / static_cast<double>(gaps.size()));
  return {};
}

}  // namespace fovea
