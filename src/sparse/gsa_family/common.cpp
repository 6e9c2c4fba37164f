#include "sparse/gsa_family/common.h"

#include <algorithm>
#include <bit>

namespace fovea {

Status check_gsa_options(const std::string& method, const GsaOptions& o, const ModelShape& shape) {
  const auto bad = [&](const std::string& what) { return Status::invalid_argument(method + ": " + what); };
  if (!(o.sparse_ratio > 0.0 && o.sparse_ratio <= 1.0))
    return bad("sparse_ratio " + std::to_string(o.sparse_ratio) + " is not in (0, 1]");
  const struct {
    const char* name;
    int32_t value, least;
  } bounds[] = {
      {"budget_tokens", o.budget_tokens, 0},
      {"init_window_sz", o.init_window_sz, 0},
      {"local_window_sz", o.local_window_sz, 1},  // the query's own block
      {"min_blocks", o.min_blocks, 0},
      {"prefetch_workers", o.prefetch_workers, 1},
      {"max_pending_prefetch", o.max_pending_prefetch, 1},
      {"prefetch_ahead", o.prefetch_ahead, 0},
      {"prefetch_cache_size", o.prefetch_cache_size, 1},
  };
  for (const auto& b : bounds) {
    if (b.value < b.least)
      return bad(std::string(b.name) + " " + std::to_string(b.value) + " is less than " + std::to_string(b.least));
  }
  if (o.length_factor && (o.codes != GsaCodes::asymmetric || o.representation != GsaRepresentation::hash))
    return bad("length_factor is an option of asymmetric codes");
  if (o.scoring == GsaScoring::host && o.representation != GsaRepresentation::hash)
    return bad("scoring: host compares hash codes of tokens: representation is another");
  if (!(o.top_p >= 0 && o.top_p < 1)) return bad("top_p " + std::to_string(o.top_p) + " is not in [0, 1)");
  if (const std::string asked = o.budget_split == BudgetSplit::mass ? "budget_split: mass"
                                : o.top_p > 0                       ? "top_p"
                                                                    : "";
      !asked.empty()) {
    if (!o.length_factor || o.representation != GsaRepresentation::hash)
      return bad(asked + " needs scores that estimate attention mass: codes: asymmetric with length_factor: true");
    if (o.share_heads) return bad(asked + " counts blocks of each KV head: share_heads has one list of them");
    if (o.overlap) return bad(asked + " counts blocks of this step: overlap reads those of the step before");
  }
  const auto check_layers = [&](const char* name, const std::vector<int32_t>& layers) -> Status {
    for (int32_t layer : layers) {
      if (layer < 0 || layer >= shape.num_layers)
        return bad(std::string(name) + " holds " + std::to_string(layer) + ", the model has " + std::to_string(shape.num_layers) +
                   " layers");
    }
    return {};
  };
  FOVEA_TRY(check_layers("dense_layers", o.dense_layers));
  return check_layers("reuse_layers", o.reuse_layers);
}

HashCodec codec_of(const GsaOptions& o, const ModelShape& shape) {
  HashCodec c;
  c.head_dim = shape.head_dim;
  c.n = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(shape.head_dim)));
  c.asymmetric = o.codes == GsaCodes::asymmetric && o.representation == GsaRepresentation::hash;
  c.length_factor = o.length_factor;
  c.bits = o.hash_bits != 0 ? o.hash_bits : c.asymmetric ? std::max(64, c.n) : 128;
  return c;
}

Status PlacedCodec::place(const std::string& method, const GsaOptions& options, const ModelShape& shape, Device& device) {
  const HashCodec kind = codec_of(options, shape);
  FOVEA_ASSIGN(const auto rotation, HashRotation::make(kind.head_dim, kind.bits, options.hash_seed));
  codec_ = rotation.codec();
  codec_.asymmetric = kind.asymmetric;
  codec_.length_factor = kind.length_factor;
  const size_t bytes = sizeof(float) * codec_.rotations * 3 * codec_.n;
  FOVEA_ASSIGN(signs_, device.allocate(bytes, method + " signs"));
  const auto stream = device.make_stream();
  device.copy(signs_.data(), codec_.signs, bytes, CopyKind::to_device, *stream);
  codec_.signs = signs_.as<float>();
  return stream->synchronize();
}

PlaneSpec codes_plane(const GsaOptions& options, const ModelShape& shape, bool on_host) {
  const HashCodec codec = codec_of(options, shape);
  return {"codes." + std::to_string(codec.bits) + (codec.length_factor ? "f." : ".") + std::to_string(options.hash_seed) +
              (on_host ? ".host" : ""),
          shape.kv_heads, head_code_words(codec, shape.block_size) * 8, Residency::resident, on_host};
}

int64_t code_bytes(const GsaOptions& options, const ModelShape& shape) {
  const HashCodec codec = codec_of(options, shape);
  return codec.bits / 8 + (codec.length_factor ? 2 : 0);
}

CodesView codes_in(std::byte* plane, const HashCodec& codec, const ModelShape& shape) {
  const int64_t head_words = head_code_words(codec, shape.block_size);
  return {reinterpret_cast<uint64_t*>(plane), head_words * shape.kv_heads, head_words, codec};
}

void encode_written(const KvWritten& written, const HashCodec& codec, const ModelShape& shape, Ops& ops, Stream& stream) {
  EncodeCodesParams p;
  p.tokens = written.tokens;
  p.slot_mapping = written.slot_mapping;
  p.code_mapping = written.code_mapping;
  p.kv = written.kv;
  p.codes = codes_in(written.planes[0], codec, shape);
  ops.encode_codes(p, stream);
}

}  // namespace fovea
