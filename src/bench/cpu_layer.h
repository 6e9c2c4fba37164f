// One layer of paged KV cache of one sequence on the CPU, its pages in random order, filled with random keys and values (bf16),
// and query rows at its end: what the operations of a step read. 32 query and 8 KV heads, pages of 16 tokens.
#pragma once

#include <fovea/kernels/hash_rotation.h>

#include "base/thread_pool.h"
#include "device/stream.h"
#include "kernels/cpu/cpu_ops.h"
#include "kv/kv_cache.h"

#include <memory>
#include <random>
#include <vector>

namespace fovea {

class CpuLayer {
 public:
  static constexpr int32_t kHeads = 32, kKvHeads = 8, kPage = 16;
  static constexpr int32_t kRowsMax = 512;  // the length is a multiple of it

  struct Shape {
    int32_t head_dim = 128;
    int64_t tokens = 32768;
    int32_t rows = 1;               // query rows: the sequence's last, at most kRowsMax
    int32_t hash_bits = 0;          // a code of each key too; 0: none
    int32_t asymmetric_bits = 0;    // likewise, for asymmetric codes
    int32_t xattention_stride = 0;  // the least that will be asked for; 0: none
  };
  static Result<std::unique_ptr<CpuLayer>> make(const Shape& shape, Numerics numerics, ThreadPool& pool);

  AttentionParams attention();
  KvView kv() const;  // with its page table
  CodesView codes(bool asymmetric = false) const { return codes_[asymmetric]; }
  const float* q() const { return q_.data(); }  // [kRowsMax, kHeads, head_dim]
  const int32_t* q_indptr() const { return indptr_; }
  const int32_t* len() const { return &len_; }
  CpuOps& ops() { return *ops_; }
  CpuStream& stream() { return stream_; }
  std::mt19937& rng() { return rng_; }

 private:
  explicit CpuLayer(const Shape& s) : s_(s), len_(static_cast<int32_t>(s.tokens)), indptr_{0, s.rows} {}
  Status allocate(Numerics numerics, ThreadPool& pool);
  Status make_codes(bool asymmetric);
  int32_t bits(bool asymmetric) const { return asymmetric ? s_.asymmetric_bits : s_.hash_bits; }
  void fill();

  const Shape s_;
  const int32_t len_, indptr_[2];
  std::mt19937 rng_{3};
  std::unique_ptr<KvCache> cache_;
  HashRotation rotations_[2];  // of codes_
  std::unique_ptr<CpuOps> ops_;
  CpuStream stream_;
  CodesView codes_[2];  // symmetric, asymmetric
  std::vector<int32_t> table_;
  std::vector<float> q_, out_;
};

}  // namespace fovea
