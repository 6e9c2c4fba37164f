// Layers of paged KV cache on a GPU, filled with random keys, values and codes, their pages in random order: what the
// operations of one step read. Several layers, so that repeated runs find nothing in the L2 cache.
#pragma once

#include <fovea/kernels/hash_rotation.h>

#include "device/device.h"
#include "kernels/ops/ops.h"
#include "kv/kv_cache.h"

#include <functional>
#include <memory>
#include <vector>

namespace fovea {

struct GpuLayersShape {
  int32_t layers = 1;
  int32_t seqs = 1;
  int64_t tokens = 32768;  // of each sequence
  int32_t heads = 32;
  int32_t kv_heads = 8;
  int32_t head_dim = 128;
  int32_t block_size = 16;
  int32_t bits = 128;
  bool asymmetric = false, length_factor = false;  // codes
  int32_t rows = 1;                                // query rows a sequence: its last
  int32_t budget_tokens = 2048;
  int32_t xattention_stride = 0;  // least of estimate(); 0: it is not called
  int32_t unit = 128;             // tokens of a block of sparse prefill
};

class GpuLayers {
 public:
  static Result<std::unique_ptr<GpuLayers>> make(const GpuLayersShape& shape, Device& device, Stream& stream);

  // Enqueue one operation over one layer.
  void dense(int32_t layer);
  void select(int32_t layer);
  void sparse(int32_t layer);
  void prefill(int32_t layer);
  void estimate(int32_t layer);        // XAttention's, with its choice
  void sparse_prefill(int32_t layer);  // through the lists of draw_lists() or place_lists()

  void set_stride(int32_t stride) { stride_ = stride; }
  // Lists of sparse prefill: of each tile of `unit` rows and query head, in this order, blocks of `unit` tokens, ascending, the
  // tile's own among them. Returns how many pairs of a query and a key they hold.
  Result<double> place_lists(const std::vector<std::vector<int32_t>>& lists);
  // Of each such a share of the blocks, the first and the last among them.
  Result<double> draw_lists(double density);

  // Seconds of `op` on one layer: the median over graph replays of all layers in turn, of one row a sequence several times.
  Result<double> time_op(void (GpuLayers::*op)(int32_t), int rounds);

  double kv_bytes() const;  // that dense decode attention reads of one layer

 private:
  GpuLayers(const GpuLayersShape& shape, Device& device, Stream& stream) : s_(shape), device_(device), stream_(stream) {}
  Status fill();
  Status place();
  Status place_tiles();
  AttentionParams attention(int32_t layer) const;
  CodesView codes(int32_t layer) const;
  template <typename T>
  Result<Buffer> send(const std::vector<T>& values, const char* what);

  const GpuLayersShape s_;
  Device& device_;
  Stream& stream_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<KvCache> cache_;
  HashCodec codec_;
  std::vector<int32_t> host_table_;
  Buffer signs_, table_, q_, out_, indptr_, lens_, row_seq_, k_, units_, counts_;
  Selection selection_;
  // Of sparse prefill.
  int32_t stride_ = 16, tiles_ = 0;
  std::vector<int32_t> host_tiles_;
  Buffer tile_seq_, tile_indptr_, thresholds_, chosen_, chosen_counts_, lists_, list_counts_;
  Selection prefill_lists_;
};

// Normal values, a million of them drawn and the rest repeated in another order.
std::vector<float> drawn_normals(int64_t count, uint32_t seed);

// Seconds of `work`, which only enqueues: the median over replays of its graph.
Result<double> time_replays(Device& device, Stream& stream, int rounds, const std::function<void()>& work);

// Bytes per second of a read of 4 GiB (less where less is free): the ceiling of everything that reads memory.
Result<double> gpu_read_bandwidth(Device& device, Stream& stream);

// Operations per second of the tensor cores' bare products; 0 where nothing measures them.
Result<double> products_per_second(DType dtype, Device& device, Stream& stream, int rounds);

}  // namespace fovea
