#include "kernels/cpu/dsa_index_write.h"

#include <array>

#include "kernels/ref/dsa_index.h"

namespace fovea::cpu {

void index_write(const IndexWriteParams& p, ThreadPool& pool) {
  ref::check_index_write(p);
  pool.parallel_for(p.tokens, [&](int64_t token, int) {
    ref::index_query(p, token);
    if (p.slot_mapping[token] < 0) return;
    std::array<float, kMaxIndexDim> key;
    ref::index_key(p, token, key.data());
    ref::index_store(p.keys, p.slot_mapping[token], key.data());
  });
}

}  // namespace fovea::cpu
