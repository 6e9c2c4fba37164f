// Which kernel a prefill call runs and in what shape: a pure choice from the plain numbers of its Params.
//
// A lane is one query row of one head. Query heads that read the same keys share a tile of lanes, so one pass over K and
// V serves the whole group; a tile is rows_per_tile query rows times heads_per_tile heads.
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/linear.h>

#include <cstdint>
#include <string>

namespace fovea::cuda {

enum class PrefillPath : uint8_t {
  wgmma,          // Hopper's tensor cores; K and V in bf16 or f16 copied by its TMA
  mma,            // tensor cores; K and V in bf16 or f16 copied as they lie
  mma_converted,  // tensor cores; K and V converted or transposed on their way to shared memory
  f32,            // float32 throughout
};

// What the choice needs to know of a device.
struct PrefillDevice {
  int32_t sm_count = 1;
  int32_t shared_kib = 227;
  bool hopper = false;  // runs code for sm_90a
};

struct PrefillShape {
  Numerics numerics = Numerics::bf16;
  DType kv_dtype = DType::bf16;
  KvLayout layout = KvLayout::hnd;
  int32_t head_dim = 0;
  int32_t num_heads = 0;
  int32_t kv_heads = 0;
  int32_t rows = 0;
  int32_t num_seqs = 0;
  int32_t block_size = 16;
  bool alibi = false;
  bool selected = false;      // a range or a list: the fields below hold
  bool lone_heads = false;    // a list per query head
  bool list_per_row = false;  // no two query rows share a list
  int32_t list_rows = 0;      // Selection::rows
  int32_t tokens_per_unit = 1;
  int32_t sm_count = 1;      // multiprocessors of the device
  int32_t shared_kib = 227;  // shared memory that a block may have
  bool hopper = false;       // the device runs code for sm_90a
};

struct PrefillConfig {
  PrefillPath path = PrefillPath::mma;
  DType math = DType::bf16;     // what Q, K, P and V are multiplied in
  int32_t padded_dim = 0;       // the kernel's head_dim, >= head_dim
  int32_t lanes = 0;            // of a tile
  int32_t heads_per_tile = 1;   // query heads of one KV head that share a tile
  int32_t tiles_per_group = 1;  // tiles over the query heads of one KV head
  int32_t rows_per_tile = 1;
  int32_t grid_tiles = 0;  // tiles of rows, an upper bound: how many there are follows from arrays
  int32_t grid_heads = 0;  // kv_heads * tiles_per_group
  int32_t box_keys = 0;    // keys of one TMA copy; wgmma only

  bool operator==(const PrefillConfig&) const = default;
};

PrefillShape describe(const AttentionParams& p, Numerics numerics, const PrefillDevice& device);
// head_dim is a multiple of 16 in [32, 256]. Of rows, num_seqs and list_rows nothing but the grid depends, and on the
// wgmma path `lanes`, on which no result depends there: a row's bits are the same in any batch and chunk.
PrefillConfig choose(const PrefillShape& shape);
std::string to_string(const PrefillConfig& config);

}  // namespace fovea::cuda
