// The arithmetic of absorbed latent attention: one job is some rows of a sequence that read the same keys, times some
// heads. Row and head together are a lane; all lanes share a read of the entries.
#pragma once

#include <fovea/kernels/mla.h>

#include <cstdint>

#include "kernels/cpu/attention/decode_keys.h"
#include "kernels/cpu/attention/prefill_keys.h"
#include "kernels/cpu/attention/prefill_scratch.h"

namespace fovea::cpu {

// A row's keys are numbered by their place in its list (dense: by position) and cut into partitions at multiples of this
// number. Each partition gives its own (o, m, l), and these are folded in order: a row has the same bits whether one worker
// walks all partitions or several share them.
inline constexpr int64_t kMlaPartition = 512;
inline constexpr int32_t kMlaChunk = 32;  // keys whose scores are held at once: 36 KiB of bf16 entries of 576
static_assert(kMlaChunk <= kDecodeChunk && kMlaPartition % kMlaChunk == 0);
inline constexpr int32_t kMlaLanes = 64;  // most lanes of a job
inline constexpr int32_t kMlaLines = 40;  // most cache lines of an entry: 512 + 128 float32

struct MlaJob {
  const MlaAttendParams* params = nullptr;
  KeyList keys;
  int32_t seq = 0;
  int32_t row = 0, rows = 0;
  int32_t head = 0, heads = 0;  // all of them where there is more than one row
  int64_t pos = 0;              // of row; below 0: it sees nothing

  int32_t lanes() const { return rows * heads; }
  int64_t seen(int32_t r) const { return keys.count_upto(pos + r); }  // keys of row `row + r`
  int64_t partitions() const { return (seen(rows - 1) + kMlaPartition - 1) / kMlaPartition; }
};

// What a partition leaves, in the order in which the entries load: weights are 2^(score * log2 e - m).
struct MlaPartial {
  float* o = nullptr;  // [lanes, latent] sum of weight * entry
  float* m = nullptr;  // [lanes]; -inf: no key
  float* l = nullptr;  // [lanes] sum of weights
};
inline constexpr int64_t mla_partial_floats(int64_t lanes, int64_t latent) { return (lanes * (latent + 2) + 15) / 16 * 16; }
inline MlaPartial mla_partial_at(float* memory, int64_t lanes, int64_t latent) {  // null: memory is only counted
  if (!memory) return {};
  return {memory, memory + lanes * latent, memory + lanes * (latent + 1)};
}

// Keys of one chunk: where they lie, and their cache lines in the order they are prefetched.
struct MlaChunk {
  int32_t count = 0;
  int64_t at[kDecodeChunk];  // element of each entry; after the last: the last's
  int64_t line_at[kMlaChunk * kMlaLines];
};

// Memory of one worker.
struct MlaScratch {
  float* q = nullptr;         // [lanes, 2 * width] scaled, in the order that entries load
  float* q_padded = nullptr;  // [lanes, width]
  float* scores = nullptr;    // [lanes, kDecodeChunk], then weights
  float* m = nullptr;         // [lanes]
  float* l = nullptr;         // [lanes, 16] a sum per vector lane
  float* rescale = nullptr;   // [lanes]
  float* tile = nullptr;      // [kDecodeChunk, width] entries that are not multiplied where they lie
  MlaPartial part, total;
  int64_t seen[kMlaLanes];  // of each row
  MlaChunk chunks[2];
};
MlaScratch carve_mla_scratch(ScratchCarver& carver, const MlaShape& shape);

// All partitions of a job, to out and lse.
void mla_attend_job(const MlaJob& job, MlaScratch& scratch);
// One of them, to memory of mla_partial_floats(lanes, latent), 64-byte aligned.
void mla_attend_partition(const MlaJob& job, int64_t partition, MlaScratch& scratch, float* partial);
// Partitions 0..count-1, that many floats apart, to out and lse.
void mla_merge(const MlaJob& job, float* partials, int64_t count, MlaScratch& scratch);

}  // namespace fovea::cpu
