#include <fovea/calibrate.h>

#include "engine/engine_impl.h"
#include "kernels/common/convert.h"
#include "model/config.h"
#include "model/kv_scales.h"

#include <algorithm>
#include <cmath>

namespace fovea {
namespace {

using Tokens = std::vector<TokenId>;

// A cache with room for one piece and little else: what was never written is 0.
int64_t cache_bytes(const ModelConfig& c, const EngineOptions& o, int64_t tokens) {
  KvCacheConfig k;
  k.num_layers = c.num_layers, k.kv_heads = c.num_kv_heads, k.head_dim = c.head_dim;
  k.block_size = o.block_size, k.dtype = o.kv_cache_dtype;
  return ((tokens + o.block_size - 1) / o.block_size + 2) * column_bytes(k);
}

Status read_piece(EngineImpl& engine, Tokens piece) {
  Request r;
  r.prompt = std::move(piece);
  r.sampling.max_tokens = 0;
  FOVEA_ASSIGN(const RequestId id, engine.submit(std::move(r)));
  std::vector<Output> outputs;
  for (bool more = true; more; outputs.clear()) {
    FOVEA_ASSIGN(more, engine.step(&outputs));
    for (const Output& out : outputs) {
      if (out.request == id && out.finished) return out.error;
    }
  }
  return Status::internal("the engine stopped before a text was read");
}

// Raises amax to what lies in the cache.
Status take_in(EngineImpl& engine, KvAmax* amax) {
  const KvCacheConfig& c = engine.kv().config();
  std::vector<uint16_t> plane;
  const std::unique_ptr<Stream> stream = engine.device().make_stream();
  for (int32_t l = 0; l < c.num_layers; ++l) {
    const KvView kv = engine.kv().kv_view(LayerIdx{l});
    plane.resize(static_cast<size_t>(c.num_blocks * kv.block_stride));
    for (const auto& [from, to] : {std::pair<const void*, std::vector<float>*>{kv.k, &amax->k}, {kv.v, &amax->v}}) {
      engine.device().copy(plane.data(), from, plane.size() * sizeof(uint16_t), CopyKind::to_host, *stream);
      FOVEA_TRY(stream->synchronize());
      for (int64_t b = 0; b < c.num_blocks; ++b) {
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          uint16_t most = 0;  // bf16 without its sign: as integers they compare as the numbers do
          const auto head = plane.begin() + b * kv.block_stride + h * kv.head_stride;
          const int64_t elements = int64_t{c.block_size} * c.head_dim;
          std::for_each_n(head, elements, [&](uint16_t x) { most = std::max<uint16_t>(most, x & 0x7fff); });
          float& reached = (*to)[static_cast<size_t>(int64_t{l} * c.kv_heads + h)];
          reached = std::max(reached, bf16_to_f32(most));
          if (!std::isfinite(bf16_to_f32(most)))
            return Status::corrupt("layer " + std::to_string(l) + ", KV head " + std::to_string(h) +
                                   ": the model's keys or values are not finite");
        }
      }
    }
  }
  return {};
}

}  // namespace

Result<std::string> calibrate_kv(EngineOptions o, const KvCalibration& calibration) {
  if (!(calibration.margin >= 1 && calibration.margin <= 1024))
    return Status::invalid_argument("--margin " + std::to_string(calibration.margin) + ": must be from 1 to 1024");
  FOVEA_ASSIGN(const ModelConfig config, load_model_config(o.model_dir));
  if (config.deepseek) return Status::unsupported(config.architecture + " caches latents, which are not kept in fp8");
  o.kv_cache_dtype = DType::bf16;
  o.kv_scales.clear();
  o.kv_store = StoreOptions();
  o.kv_offload = OffloadChoice::off;
  o.kv_host_memory_bytes = o.swap_space_bytes = 0;
  o.enable_prefix_caching = false;
  o.methods.clear();
  o.decode_method = o.prefill_method = "dense";
  o.max_model_len = std::min<int64_t>(calibration.piece_tokens, config.max_position_embeddings);
  o.kv_cache_memory_bytes = cache_bytes(config, o, o.max_model_len);
  auto engine = std::make_unique<EngineImpl>(std::move(o));
  FOVEA_TRY(engine->init());

  KvAmax amax;
  amax.k.resize(static_cast<size_t>(config.num_layers) * static_cast<size_t>(config.num_kv_heads));
  amax.v = amax.k;
  std::vector<Tokens> texts;
  int64_t total = 0;
  for (const std::string& text : calibration.texts) {
    FOVEA_ASSIGN(Tokens tokens, engine->tokenize(text));
    total += std::ssize(tokens);
    texts.push_back(std::move(tokens));
  }
  if (total == 0) return Status::invalid_argument("--text: there is nothing to read");
  for (const Tokens& text : texts) {
    for (auto at = text.begin(); at != text.end();) {
      const auto end = at + std::min<int64_t>(text.end() - at, engine->options().max_model_len);
      FOVEA_TRY(read_piece(*engine, Tokens(at, end)));
      FOVEA_TRY(take_in(*engine, &amax));
      amax.tokens += end - at;
      at = end;
      if (calibration.progress) calibration.progress(amax.tokens, total);
    }
  }
  return kv_scales_text(amax, config, calibration.margin);
}

}  // namespace fovea
