#include "bench/gpu_layers.h"

#include "kernels/cuda/ceilings/ceilings.h"
#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

namespace fovea {
namespace {

constexpr int64_t kChunk = 4096;  // tokens a cache write
constexpr int32_t kDecodeCalls = 16;  // of a graph, about: its start costs microseconds, and a step has a call a layer

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

}  // namespace

std::vector<float> drawn_normals(int64_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(std::min<int64_t>(count, 1 << 20)));
  for (float& f : v) f = normal(rng);
  const size_t drawn = v.size();
  v.resize(static_cast<size_t>(count));
  for (size_t i = drawn; i < v.size(); ++i) v[i] = v[(i * 31 + 7) % drawn];
  return v;
}

Result<double> time_replays(Device& device, Stream& stream, int rounds, const std::function<void()>& work) {
  work();  // first use
  FOVEA_TRY(stream.synchronize());
  FOVEA_ASSIGN(const std::unique_ptr<Graph> graph, device.capture(stream, [&]() -> Status {
    work();
    return {};
  }));
  std::vector<double> seconds;
  for (int i = 0; i < rounds + 3; ++i) {
    FOVEA_ASSIGN(const double s, device.time(stream, [&] { return graph->launch(stream); }));
    if (i >= 3) seconds.push_back(s);
  }
  return median(std::move(seconds));
}

template <typename T>
Result<Buffer> GpuLayers::send(const std::vector<T>& values, const char* what) {
  const size_t bytes = values.size() * sizeof(T);
  FOVEA_ASSIGN(Buffer buffer, device_.allocate(bytes, what));
  device_.copy(buffer.data(), values.data(), bytes, CopyKind::to_device, stream_);
  return buffer;
}

Result<std::unique_ptr<GpuLayers>> GpuLayers::make(const GpuLayersShape& shape, Device& device, Stream& stream) {
  std::unique_ptr<GpuLayers> g(new GpuLayers(shape, device, stream));
  FOVEA_ASSIGN(g->ops_, make_cuda_ops(device, Numerics::bf16));
  OpsLimits limits;
  limits.max_rows = static_cast<int32_t>(std::max<int64_t>(kChunk, int64_t{shape.seqs} * shape.rows));
  limits.max_decode_rows = shape.seqs;
  limits.max_len = shape.tokens;
  limits.num_heads = shape.heads;
  limits.kv_heads = shape.kv_heads;
  limits.head_dim = shape.head_dim;
  limits.block_size = shape.block_size;
  limits.xattention_stride = shape.xattention_stride;
  FOVEA_TRY(g->ops_->prepare(limits));
  KvCacheConfig c;
  c.num_layers = shape.layers;
  c.block_size = shape.block_size;
  c.num_blocks = static_cast<int32_t>(shape.seqs * shape.tokens / shape.block_size);
  c.kv_heads = shape.kv_heads;
  c.head_dim = shape.head_dim;
  c.device = &device;
  FOVEA_TRY(g->place());
  if (shape.xattention_stride > 0) FOVEA_TRY(g->place_tiles());
  c.extra_planes = {{"codes", shape.kv_heads, head_code_words(g->codec_, shape.block_size) * 8, Residency::resident}};
  FOVEA_ASSIGN(g->cache_, KvCache::create(c));
  FOVEA_TRY(g->fill());
  return g;
}

Status GpuLayers::place() {
  FOVEA_ASSIGN(const HashRotation rotation, HashRotation::make(s_.head_dim, s_.bits));
  codec_ = rotation.codec();
  codec_.asymmetric = s_.asymmetric;
  codec_.length_factor = s_.length_factor;
  FOVEA_ASSIGN(signs_, send(std::vector<float>(codec_.signs, codec_.signs + int64_t{codec_.rotations} * 3 * codec_.n), "signs"));
  codec_.signs = signs_.as<float>();
  host_table_.resize(static_cast<size_t>(s_.seqs * s_.tokens / s_.block_size));
  std::iota(host_table_.begin(), host_table_.end(), 0);
  std::shuffle(host_table_.begin(), host_table_.end(), std::mt19937(7));
  FOVEA_ASSIGN(table_, send(host_table_, "page tables"));

  const int64_t rows = int64_t{s_.seqs} * s_.rows;
  FOVEA_ASSIGN(q_, send(drawn_normals(rows * s_.heads * s_.head_dim, 1), "queries"));
  FOVEA_ASSIGN(out_, device_.allocate(q_.bytes(), "attention output"));
  std::vector<int32_t> indptr, lens(static_cast<size_t>(s_.seqs), static_cast<int32_t>(s_.tokens)), row_seq;
  for (int32_t i = 0; i <= s_.seqs; ++i) indptr.push_back(i * s_.rows);
  for (int32_t i = 0; i < s_.seqs; ++i) row_seq.push_back(i);
  FOVEA_ASSIGN(indptr_, send(indptr, "row offsets"));
  FOVEA_ASSIGN(lens_, send(lens, "lengths"));
  FOVEA_ASSIGN(row_seq_, send(row_seq, "row sequences"));
  const int32_t k = s_.budget_tokens / s_.block_size;
  FOVEA_ASSIGN(k_, send(std::vector<int32_t>(static_cast<size_t>(s_.seqs), k), "budgets"));
  FOVEA_ASSIGN(units_, device_.allocate(sizeof(int32_t) * static_cast<size_t>(s_.seqs) * s_.kv_heads * k, "block lists"));
  FOVEA_ASSIGN(counts_, device_.allocate(sizeof(int32_t) * static_cast<size_t>(s_.seqs) * s_.kv_heads, "block counts"));
  selection_.kind = Selection::Kind::list;
  selection_.heads = HeadGroups::per_kv_head;
  selection_.tokens_per_unit = s_.block_size;
  selection_.rows = s_.seqs;
  selection_.groups = s_.kv_heads;
  selection_.capacity = k;
  selection_.units = units_.as<int32_t>();
  selection_.counts = counts_.as<int32_t>();
  return {};
}

Status GpuLayers::place_tiles() {
  FOVEA_CHECK(s_.seqs == 1);
  const int32_t indptr[] = {0, s_.rows}, len = static_cast<int32_t>(s_.tokens);
  std::vector<int32_t> seqs(static_cast<size_t>(s_.rows)), starts(static_cast<size_t>(s_.rows) + 1);
  tiles_ = xattention_tiles(indptr, &len, 1, s_.unit, seqs.data(), starts.data());
  starts.resize(static_cast<size_t>(tiles_) + 1);
  host_tiles_ = starts;
  FOVEA_ASSIGN(tile_seq_, send(seqs, "tiles"));
  FOVEA_ASSIGN(tile_indptr_, send(starts, "tiles"));
  FOVEA_ASSIGN(thresholds_, send(std::vector<float>(static_cast<size_t>(s_.heads), 0.9f), "thresholds"));
  const size_t lists = static_cast<size_t>(tiles_) * s_.heads;
  FOVEA_ASSIGN(chosen_, device_.allocate(sizeof(int32_t) * lists * (s_.tokens / s_.unit + 1), "block lists"));
  FOVEA_ASSIGN(chosen_counts_, device_.allocate(sizeof(int32_t) * lists, "block counts"));
  return {};
}

Result<double> GpuLayers::place_lists(const std::vector<std::vector<int32_t>>& lists) {
  FOVEA_CHECK(lists.size() == static_cast<size_t>(tiles_) * s_.heads);
  size_t capacity = 0;
  for (const auto& list : lists) capacity = std::max(capacity, list.size());
  std::vector<int32_t> units(lists.size() * capacity, -1), counts;
  double pairs = 0;
  for (size_t i = 0; i < lists.size(); ++i) {
    std::copy(lists[i].begin(), lists[i].end(), units.begin() + static_cast<int64_t>(i * capacity));
    counts.push_back(static_cast<int32_t>(lists[i].size()));
    const double rows = host_tiles_[i / s_.heads + 1] - host_tiles_[i / s_.heads];
    pairs += rows * static_cast<double>((lists[i].size() - 1) * s_.unit) + rows * (rows + 1) / 2;
  }
  FOVEA_ASSIGN(lists_, send(units, "block lists"));
  FOVEA_ASSIGN(list_counts_, send(counts, "block counts"));
  FOVEA_TRY(stream_.synchronize());
  prefill_lists_ = {.kind = Selection::Kind::list,
                    .heads = HeadGroups::per_query_head,
                    .tokens_per_unit = s_.unit,
                    .rows = tiles_,
                    .groups = s_.heads,
                    .capacity = static_cast<int32_t>(capacity),
                    .row_indptr = tile_indptr_.as<int32_t>(),
                    .units = lists_.as<int32_t>(),
                    .counts = list_counts_.as<int32_t>()};
  return pairs;
}

Result<double> GpuLayers::draw_lists(double density) {
  std::vector<std::vector<int32_t>> lists;
  std::mt19937 rng(11);
  for (int32_t t = 0; t < tiles_; ++t) {
    const int64_t blocks = (s_.tokens - s_.rows + host_tiles_[static_cast<size_t>(t) + 1] - 1) / s_.unit + 1;
    const int64_t count = std::min(blocks, std::max<int64_t>(2, std::lround(density * static_cast<double>(blocks))));
    for (int32_t h = 0; h < s_.heads; ++h) {
      // One block of each of `count` equal parts.
      std::vector<int32_t>& list = lists.emplace_back(1, 0);
      for (int64_t i = 1; i + 1 < count; ++i) {
        const int64_t first = i * blocks / count, end = (i + 1) * blocks / count;
        list.push_back(static_cast<int32_t>(first + static_cast<int64_t>(rng() % (end - first))));
      }
      if (count > 1) list.push_back(static_cast<int32_t>(blocks - 1));
    }
  }
  return place_lists(lists);
}

CodesView GpuLayers::codes(int32_t layer) const {
  const int64_t words = head_code_words(codec_, s_.block_size);
  return {reinterpret_cast<uint64_t*>(cache_->plane(*cache_->find_plane("codes"), LayerIdx{layer})), s_.kv_heads * words, words,
          codec_};
}

Status GpuLayers::fill() {
  const int64_t kv = kChunk * s_.kv_heads * s_.head_dim;
  FOVEA_ASSIGN(const Buffer q, send(drawn_normals(kChunk * s_.heads * s_.head_dim, 2), "queries"));
  // Each write takes K and V from another place of a longer array, so that no two blocks are alike.
  FOVEA_ASSIGN(const Buffer k, send(drawn_normals(kv + 4099, 3), "keys"));
  FOVEA_ASSIGN(const Buffer v, send(drawn_normals(kv + 4099, 4), "values"));
  std::vector<int64_t> slots;
  for (int64_t t = 0; t < s_.seqs * s_.tokens; ++t)
    slots.push_back(int64_t{host_table_[static_cast<size_t>(t / s_.block_size)]} * s_.block_size + t % s_.block_size);
  FOVEA_ASSIGN(const Buffer device_slots, send(slots, "slots"));
  for (int32_t layer = 0; layer < s_.layers; ++layer) {
    const CodesView view = codes(layer);
    for (int64_t at = 0; at < static_cast<int64_t>(slots.size()); at += kChunk) {
      KvWriteParams w;
      w.tokens = static_cast<int32_t>(std::min<int64_t>(kChunk, static_cast<int64_t>(slots.size()) - at));
      w.num_heads = s_.heads;
      w.q = q.as<float>();
      w.k = k.as<float>() + (at / kChunk * 37 + layer * 11) % 1024 * 4;
      w.v = v.as<float>() + (at / kChunk * 53 + layer * 13) % 1024 * 4;
      w.slot_mapping = device_slots.as<int64_t>() + at;
      w.kv = cache_->kv_view(LayerIdx{layer});
      w.codes = &view;
      ops_->kv_write(w, stream_);
    }
  }
  return stream_.synchronize();
}

AttentionParams GpuLayers::attention(int32_t layer) const {
  AttentionParams p;
  p.q = q_.as<float>();
  p.out = out_.as<float>();
  p.num_heads = s_.heads;
  p.rows = s_.seqs * s_.rows;
  p.num_seqs = s_.seqs;
  p.q_indptr = indptr_.as<int32_t>();
  p.seq_len = lens_.as<int32_t>();
  p.kv = cache_->kv_view(LayerIdx{layer});
  p.kv.table = {table_.as<int32_t>(), s_.tokens / s_.block_size, 0};
  p.scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim));
  return p;
}

void GpuLayers::dense(int32_t layer) { ops_->paged_decode(attention(layer), stream_); }

void GpuLayers::prefill(int32_t layer) { ops_->paged_prefill(attention(layer), stream_); }

void GpuLayers::estimate(int32_t layer) {
  const AttentionParams a = attention(layer);
  XAttentionParams p;
  p.q = static_cast<const float*>(a.q);
  p.num_heads = a.num_heads;
  p.num_seqs = a.num_seqs;
  p.q_indptr = a.q_indptr;
  p.seq_len = a.seq_len;
  p.kv = a.kv;
  p.scale = a.scale;
  p.stride = stride_;
  p.block_size = s_.unit;
  p.tiles = tiles_;
  p.tile_seq = tile_seq_.as<int32_t>();
  p.tile_indptr = tile_indptr_.as<int32_t>();
  p.threshold = thresholds_.as<float>();
  p.capacity = static_cast<int32_t>(s_.tokens / s_.unit + 1);
  p.units = chosen_.as<int32_t>();
  p.counts = chosen_counts_.as<int32_t>();
  ops_->xattention_select(p, stream_);
}

void GpuLayers::sparse_prefill(int32_t layer) {
  AttentionParams p = attention(layer);
  p.selection = &prefill_lists_;
  ops_->paged_prefill(p, stream_);
}

void GpuLayers::select(int32_t layer) {
  HashSelectParams p;
  p.rows = s_.seqs;
  p.num_heads = s_.heads;
  p.kv_heads = s_.kv_heads;
  p.block_size = s_.block_size;
  p.q = q_.as<float>();
  p.row_seq = row_seq_.as<int32_t>();
  p.row_len = lens_.as<int32_t>();
  p.k = k_.as<int32_t>();
  p.max_len = static_cast<int32_t>(s_.tokens);
  p.codes = codes(layer);
  p.own_keys_new = true;
  p.table = {table_.as<int32_t>(), s_.tokens / s_.block_size, 0};
  p.units = units_.as<int32_t>();
  p.counts = counts_.as<int32_t>();
  p.capacity = selection_.capacity;
  ops_->hash_select(p, stream_);
}

void GpuLayers::sparse(int32_t layer) {
  AttentionParams p = attention(layer);
  p.selection = &selection_;
  ops_->paged_decode(p, stream_);
}

double GpuLayers::kv_bytes() const { return 2.0 * s_.seqs * static_cast<double>(s_.tokens) * s_.kv_heads * s_.head_dim * 2; }

Result<double> GpuLayers::time_op(void (GpuLayers::*op)(int32_t), int rounds) {
  const int32_t calls = s_.rows > 1 ? s_.layers : std::max(s_.layers, kDecodeCalls / s_.layers * s_.layers);
  FOVEA_ASSIGN(const double s, time_replays(device_, stream_, rounds, [&] {
                 for (int32_t call = 0; call < calls; ++call) (this->*op)(call % s_.layers);
               }));
  return s / calls;
}

Result<double> gpu_read_bandwidth(Device& device, Stream& stream) {
  const size_t bytes = static_cast<size_t>(std::min<int64_t>(int64_t{4} << 30, device.free_bytes() / 4)) / 4096 * 4096;
  FOVEA_ASSIGN(const Buffer memory, device.allocate(bytes, "read sweep"));
  FOVEA_ASSIGN(const Buffer sink, device.allocate(sizeof(float), "read sweep"));
  device.fill(memory.data(), 0x5a, bytes, stream);
  std::vector<double> seconds;
  for (int i = 0; i < 23; ++i) {
    FOVEA_ASSIGN(const double s, device.time(stream, [&]() -> Status {
      cuda::read_sweep(memory.data(), bytes, sink.as<float>(), stream);
      return {};
    }));
    if (i >= 3) seconds.push_back(s);
  }
  return static_cast<double>(bytes) / median(std::move(seconds));
}

Result<double> products_per_second(DType dtype, Device& device, Stream& stream, int rounds) {
  FOVEA_ASSIGN(const Buffer sink, device.allocate(sizeof(float), "product sweep"));
  double flops = 0;
  FOVEA_ASSIGN(const double s,
               time_replays(device, stream, rounds, [&] { flops = cuda::product_sweep(dtype, 20000, sink.as<float>(), stream); }));
  return flops / s;
}

}  // namespace fovea
