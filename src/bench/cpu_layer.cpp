#include "bench/cpu_layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fovea {
namespace {

constexpr const char* kPlanes[] = {"codes", "asymmetric codes"};

}  // namespace

Result<std::unique_ptr<CpuLayer>> CpuLayer::make(const Shape& shape, Numerics numerics, ThreadPool& pool) {
  std::unique_ptr<CpuLayer> layer(new CpuLayer(shape));
  FOVEA_TRY(layer->allocate(numerics, pool));
  layer->fill();
  return layer;
}

Status CpuLayer::allocate(Numerics numerics, ThreadPool& pool) {
  KvCacheConfig c;
  c.num_layers = 1;
  c.block_size = kPage;
  c.num_blocks = len_ / kPage;
  c.kv_heads = kKvHeads;
  c.head_dim = s_.head_dim;
  c.huge_pages = true;
  for (const bool asymmetric : {false, true}) {
    if (bits(asymmetric) > 0)
      c.extra_planes.push_back({kPlanes[asymmetric], kKvHeads, int64_t{kPage} * bits(asymmetric) / 8, Residency::resident});
  }
  FOVEA_ASSIGN(cache_, KvCache::create(c));
  for (const bool asymmetric : {false, true}) FOVEA_TRY(make_codes(asymmetric));
  ops_ = make_cpu_ops(pool, numerics);
  OpsLimits limits;
  limits.max_rows = limits.max_decode_rows = kRowsMax;
  limits.max_len = len_;
  limits.num_heads = kHeads;
  limits.kv_heads = kKvHeads;
  limits.head_dim = s_.head_dim;
  limits.xattention_stride = s_.xattention_stride;
  return ops_->prepare(limits);
}

Status CpuLayer::make_codes(bool asymmetric) {
  if (bits(asymmetric) == 0) return {};
  FOVEA_ASSIGN(rotations_[asymmetric], HashRotation::make(s_.head_dim, bits(asymmetric)));
  HashCodec codec = rotations_[asymmetric].codec();
  codec.asymmetric = asymmetric;
  const int64_t words = head_code_words(codec, kPage);
  std::byte* plane = cache_->plane(*cache_->find_plane(kPlanes[asymmetric]), LayerIdx{0});
  codes_[asymmetric] = {reinterpret_cast<uint64_t*>(plane), kKvHeads * words, words, codec};
  return {};
}

void CpuLayer::fill() {
  table_.resize(len_ / kPage);
  std::iota(table_.begin(), table_.end(), 0);
  std::shuffle(table_.begin(), table_.end(), rng_);
  q_.resize(int64_t{kRowsMax} * kHeads * s_.head_dim);
  out_.resize(q_.size());
  std::vector<float> k(int64_t{kRowsMax} * kKvHeads * s_.head_dim), v(k.size());
  std::normal_distribution<float> normal;
  for (auto* x : {&k, &v, &q_}) {
    for (float& f : *x) f = normal(rng_);
  }
  std::vector<int64_t> slots(kRowsMax);
  KvWriteParams w;
  w.tokens = kRowsMax;
  w.num_heads = kHeads;
  w.q = q_.data();
  w.k = k.data();
  w.v = v.data();
  w.slot_mapping = slots.data();
  w.kv = cache_->kv_view(LayerIdx{0});
  if (s_.hash_bits > 0) w.codes = &codes_[0];
  for (int64_t at = 0; at < len_; at += kRowsMax) {
    for (int64_t i = 0; i < kRowsMax; ++i) slots[i] = int64_t{table_[(at + i) / kPage]} * kPage + (at + i) % kPage;
    k[at % k.size()] += 1;  // no two chunks alike
    ops_->kv_write(w, stream_);
    if (s_.asymmetric_bits > 0)
      ops_->encode_codes({.tokens = kRowsMax, .slot_mapping = slots.data(), .kv = w.kv, .codes = codes_[1]}, stream_);
  }
}

KvView CpuLayer::kv() const {
  KvView v = cache_->kv_view(LayerIdx{0});
  v.table = {table_.data(), static_cast<int64_t>(table_.size()), 0};
  return v;
}

AttentionParams CpuLayer::attention() {
  AttentionParams p;
  p.q = q_.data();
  p.out = out_.data();
  p.num_heads = kHeads;
  p.num_seqs = 1;
  p.q_indptr = indptr_;
  p.seq_len = &len_;
  p.kv = kv();
  p.scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim));
  return p;
}

}  // namespace fovea
