#include "bench/gpu_latent.h"

#include "bench/gpu_layers.h"
#include "kernels/common/convert.h"
#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace fovea {
namespace {

constexpr int32_t kHeads = 128, kChosen = 2048, kBlock = 64, kTokens = 131072;
constexpr MlaShape kShape = {512, 64, 128, 128};
constexpr int32_t kEntry = 512 + 64;

class LatentLayer {
 public:
  LatentLayer(int32_t rows, Device& device, Stream& stream) : rows_(rows), device_(device), stream_(stream) {}

  Status make() {
    FOVEA_ASSIGN(ops_, make_cuda_ops(device_, Numerics::bf16));
    OpsLimits limits;
    limits.max_rows = rows_;
    limits.max_len = kTokens;
    limits.num_heads = kHeads;
    limits.mla = kShape;
    FOVEA_TRY(ops_->prepare(limits));
    std::vector<uint16_t> entries(int64_t{kTokens} * kEntry);
    const std::vector<float> drawn = drawn_normals(static_cast<int64_t>(entries.size()), 1);
    std::transform(drawn.begin(), drawn.end(), entries.begin(), f32_to_bf16);
    FOVEA_ASSIGN(plane_, send(entries));
    std::vector<int32_t> table(kTokens / kBlock);
    std::iota(table.begin(), table.end(), 0);
    std::mt19937 rng(7);
    std::shuffle(table.begin(), table.end(), rng);
    FOVEA_ASSIGN(table_, send(table));
    FOVEA_ASSIGN(q_, send(drawn_normals(int64_t{rows_} * kHeads * kEntry, 2)));
    FOVEA_ASSIGN(out_, device_.allocate(sizeof(float) * rows_ * kHeads * kShape.latent, "a latent layer's results"));
    return choose(rng);
  }

  Result<double> time(int rounds) {
    KvView kv;
    kv.k = plane_.data();
    kv.dtype = DType::bf16;
    kv.block_size = kBlock;
    kv.kv_heads = 1;
    kv.head_dim = kEntry;
    kv.block_stride = int64_t{kBlock} * kEntry;
    kv.table = {table_.as<int32_t>(), kTokens / kBlock, 0};
    Selection chosen;
    chosen.kind = Selection::Kind::list;
    chosen.tokens_per_unit = 1;
    chosen.rows = rows_;
    chosen.capacity = kChosen;
    chosen.units = units_.as<int32_t>();
    chosen.counts = counts_.as<int32_t>();
    MlaAttendParams p;
    p.q = q_.as<float>();
    p.out = out_.as<float>();
    p.num_heads = kHeads;
    p.rows = rows_;
    p.num_seqs = 1;
    p.q_indptr = indptr_.as<int32_t>();
    p.seq_len = len_.as<int32_t>();
    p.kv = &kv;
    p.latent = kShape.latent;
    p.scale = 0.04f;
    p.selection = &chosen;
    return time_replays(device_, stream_, rounds, [&] { ops_->mla_attend(p, stream_); });
  }
  double flops() const { return 2.0 * rows_ * kChosen * kHeads * (kEntry + kShape.latent); }

 private:
  template <typename T>
  Result<Buffer> send(const std::vector<T>& values) {
    FOVEA_ASSIGN(Buffer buffer, device_.allocate(values.size() * sizeof(T), "a latent layer"));
    device_.copy(buffer.data(), values.data(), values.size() * sizeof(T), CopyKind::to_device, stream_);
    return buffer;
  }

  // For each row, ascending tokens before the first row: one of every kTokens / kChosen.
  Status choose(std::mt19937& rng) {
    std::vector<int32_t> units;
    const int32_t step = (kTokens - rows_) / kChosen;
    for (int32_t r = 0; r < rows_; ++r) {
      for (int32_t i = 0; i < kChosen; ++i) units.push_back(i * step + static_cast<int32_t>(rng() % static_cast<uint32_t>(step)));
    }
    FOVEA_ASSIGN(units_, send(units));
    FOVEA_ASSIGN(counts_, send(std::vector<int32_t>(rows_, kChosen)));
    FOVEA_ASSIGN(indptr_, send(std::vector<int32_t>{0, rows_}));
    FOVEA_ASSIGN(len_, send(std::vector<int32_t>{kTokens}));
    return stream_.synchronize();
  }

  const int32_t rows_;
  Device& device_;
  Stream& stream_;
  std::unique_ptr<Ops> ops_;
  Buffer plane_, table_, q_, out_, units_, counts_, indptr_, len_;
};

}  // namespace

Status bench_gpu_latent(Device& device, Stream& stream, int rounds, Report* report) {
  FOVEA_ASSIGN(const double ceiling, products_per_second(DType::bf16, device, stream, std::min(rounds, 5)));
  for (const int32_t rows : {1024, 128, 32, 1}) {
    LatentLayer layer(rows, device, stream);
    FOVEA_TRY(layer.make());
    FOVEA_ASSIGN(const double s, layer.time(std::min(rounds, 20)));
    report->rate("latent attention, " + std::to_string(rows) + " rows, 2048 of 131072 tokens, 128 heads", layer.flops() / s / 1e12,
                 "TFLOP/s", "bare products", ceiling / 1e12);
    report->add({"  its time", s * 1e6, "us", "", 0, 0});
  }
  return {};
}

}  // namespace fovea
