// Selection by hash codes, fused: encode the queries, scan the codes, keep the best blocks. No score matrix
// leaves it. Symmetric and asymmetric codes differ in how a query is prepared and scans; the rest is one.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>
#include <fovea/status.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/mapped_buffer.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/select/asymmetric_kernels.h"
#include "kernels/cpu/select/block_queue.h"
#include "kernels/cpu/select/mass_shares.h"

namespace fovea::cpu {

// Gives exactly what ref::hash_select gives, on any number of threads.
class HashSelect {
 public:
  // Codes are fetched and looked up as suits such a CPU; the results are the same.
  explicit HashSelect(const CpuFeatures& cpu = cpu_features()) : streams_(cpu.streams), narrow_(cpu.narrow_look_ups) {}

  // Sizes the scratch, once. Errors: resource_exhausted.
  Status prepare(const OpsLimits& limits, int threads);

  // Within the limits prepared; allocates nothing. Any number of rows: they pass through the scratch in
  // groups.
  void run(const HashSelectParams& p, ThreadPool& pool);

 private:
  struct Pass;  // some rows of a call
  struct alignas(64) WordTables {
    uint8_t bytes[kTableBytesPerWord] = {};
  };

  void encode(const Pass& pass, int64_t task);
  void scan(const Pass& pass, int row, BlockRange heads, BlockSource& source);
  void share(const Pass& pass, ThreadPool& pool);
  template <typename Distance>
  void keep(const Pass& pass, int64_t task, int32_t farthest);
  // Of a row of a pass, and of its list.
  template <typename Distance>
  Distance* distances(int64_t row, int64_t list) {
    return reinterpret_cast<Distance*>(distances_) + (row * kv_heads_ + list) * distance_stride_;
  }

  const bool streams_, narrow_;
  BlockQueue queue_;  // of the only row of a pass
  int rows_ = 0;      // rows of a pass
  int num_heads_ = 0;
  int kv_heads_ = 0;
  int64_t blocks_ = 0;  // most blocks of a row
  int64_t distance_stride_ = 0;
  // In one piece, and in huge pages: it has left the caches by the next layer, and of small pages the tables that tell where they lie
  // have, too.
  std::optional<MappedBuffer> scratch_;
  int32_t* distances_ = nullptr;  // [rows, kv_heads, distance_stride]: uint16_t, or int32_t ranks of asymmetric codes
  WordTables* tables_ = nullptr;  // [rows, num_heads, words]: of asymmetric codes
  uint64_t* queries_ = nullptr;   // [rows, num_heads, words]
  QueryScale* scales_ = nullptr;  // [rows, num_heads], of asymmetric codes
  MassShares shares_;
};

}  // namespace fovea::cpu
