#include "engine/simulated_context.h"

namespace fovea {
namespace {

// Uniform in [-1, 1), the same for a position whatever the chunk.
void fill(float* x, int64_t count, uint64_t seed) {
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    x[i] = static_cast<float>(static_cast<int64_t>(seed >> 32) - (int64_t{1} << 31)) * 0x1.0p-31f;
  }
}

}  // namespace

void write_random_kv(const ForwardBatch& batch, const ModelShape& shape, KvCache& kv, const Method* codes, PlaneIdx codes_plane,
                     Ops& ops, Stream& stream, Arena& arena) {
  const int64_t kv_dim = int64_t{shape.kv_heads} * shape.head_dim;
  float* q = arena.take<float>(batch.tokens * int64_t{shape.num_heads} * shape.head_dim);
  float* k = arena.take<float>(batch.tokens * kv_dim);
  float* v = arena.take<float>(batch.tokens * kv_dim);
  fill(q, batch.tokens * int64_t{shape.num_heads} * shape.head_dim, 1);
  for (int32_t t = 0; t < batch.tokens; ++t) {
    fill(k + t * kv_dim, kv_dim, 2 * static_cast<uint64_t>(batch.positions[t]));
    fill(v + t * kv_dim, kv_dim, 2 * static_cast<uint64_t>(batch.positions[t]) + 1);
  }
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    CodesView view;
    const bool with_codes = codes && codes->codes_view(kv.plane(codes_plane, LayerIdx{layer}), &view);
    KvWriteParams p;
    p.tokens = batch.tokens;
    p.num_heads = shape.num_heads;
    p.q = q;
    p.k = k;
    p.v = v;
    p.slot_mapping = batch.slot_mapping;
    p.kv = kv.kv_view(LayerIdx{layer});
    p.codes = with_codes ? &view : nullptr;
    ops.kv_write(p, stream);
  }
}

}  // namespace fovea
