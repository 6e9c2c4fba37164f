#include "runner/simulated_context.h"

#include <vector>

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

Status write_random_kv(const Batch& rows, const ModelShape& shape, KvCache& kv, const Summaries& summaries, Device& device,
                       Ops& ops, Stream& stream, Arena& arena) {
  if (shape.kv_lora_rank > 0)
    return Status::unsupported("a random context of latents cannot be made: benchmarks of such models prefill");
  const ForwardBatch& batch = rows.forward();
  const int64_t kv_dim = int64_t{shape.kv_heads} * shape.head_dim;
  const int64_t q_size = batch.tokens * int64_t{shape.num_heads} * shape.head_dim, kv_size = batch.tokens * kv_dim;
  std::vector<float> host(static_cast<size_t>(q_size + 2 * kv_size));
  fill(host.data(), q_size, 1);
  for (int32_t t = 0; t < batch.tokens; ++t) {
    const auto position = static_cast<uint64_t>(rows.row_position(t));
    fill(host.data() + q_size + t * kv_dim, kv_dim, 2 * position);
    fill(host.data() + q_size + kv_size + t * kv_dim, kv_dim, 2 * position + 1);
  }
  float* q = arena.take<float>(q_size);
  float* k = arena.take<float>(kv_size);
  float* v = arena.take<float>(kv_size);
  device.copy(q, host.data(), sizeof(float) * q_size, CopyKind::to_device, stream);
  device.copy(k, host.data() + q_size, sizeof(float) * kv_size, CopyKind::to_device, stream);
  device.copy(v, host.data() + q_size + kv_size, sizeof(float) * kv_size, CopyKind::to_device, stream);
  FOVEA_TRY(stream.synchronize());
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    CodesView codes;
    const bool with_codes = summaries.fused_codes(kv, LayerIdx{layer}, &codes);
    KvWriteParams p;
    p.tokens = batch.tokens;
    p.num_heads = shape.num_heads;
    p.q = q;
    p.k = k;
    p.v = v;
    p.slot_mapping = batch.slot_mapping;
    p.code_mapping = batch.block_mapping;
    p.kv = kv.kv_view(LayerIdx{layer});
    p.code_mapping = batch.block_mapping;
    p.codes = with_codes ? &codes : nullptr;
    ops.kv_write(p, stream);
    summaries.update(p, kv, LayerIdx{layer}, ops, stream);
  }
  return {};
}

}  // namespace fovea
