#include "kernels/cpu/dsa/dsa_index_write.h"

#include <algorithm>
#include <array>

#include "kernels/ref/dsa_index.h"

namespace fovea::cpu {
namespace {

constexpr int32_t kHeadsPerTask = 8;  // so that one token of many heads keeps several threads busy

}  // namespace

void index_write(const IndexWriteParams& p, ThreadPool& pool) {
  ref::check_index_write(p);
  const int32_t groups = (p.heads + kHeadsPerTask - 1) / kHeadsPerTask;
  pool.parallel_for(int64_t{p.tokens} * groups, [&](int64_t task, int) {
    const int64_t token = task / groups;
    const int32_t first = static_cast<int32_t>(task % groups) * kHeadsPerTask;
    for (int32_t h = first; h < std::min(first + kHeadsPerTask, p.heads); ++h) ref::index_query(p, token, h);
    if (first > 0 || p.slot_mapping[token] < 0) return;
    std::array<float, kMaxIndexDim> key;
    ref::index_key(p, token, key.data());
    ref::index_store(p.keys, p.slot_mapping[token], key.data());
  });
}

}  // namespace fovea::cpu
