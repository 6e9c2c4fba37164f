#include "bench/gpu_index.h"

#include "bench/gpu_layers.h"
#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace fovea {
namespace {

constexpr int32_t kHeads = 64, kDim = 128, kTopk = 2048, kBlock = 64, kKeys = 131072, kChunk = 4096;

const char* name_of(IndexPrecision p) {
  return p == IndexPrecision::exact ? "float32" : p == IndexPrecision::bf16 ? "bf16" : "fp8";
}

class IndexLayer {
 public:
  IndexLayer(IndexPrecision precision, int32_t rows, Device& device, Stream& stream)
      : precision_(precision), rows_(rows), device_(device), stream_(stream) {}

  Status make() {
    FOVEA_ASSIGN(ops_, make_cuda_ops(device_, Numerics::bf16));
    OpsLimits limits;
    limits.max_rows = rows_;
    limits.max_len = kKeys;
    limits.index_heads = kHeads;
    limits.index_dim = kDim;
    limits.index_topk = kTopk;
    FOVEA_TRY(ops_->prepare(limits));
    FOVEA_ASSIGN(keys_, device_.allocate(key_bytes(), "index keys"));
    FOVEA_ASSIGN(scales_, device_.allocate(kKeys * sizeof(float), "index scales"));
    std::vector<int32_t> table(kKeys / kBlock);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
    FOVEA_ASSIGN(table_, send(table));
    FOVEA_ASSIGN(q_, send(drawn_normals(int64_t{rows_} * kHeads * kDim, 1)));
    FOVEA_ASSIGN(weights_, send(drawn_normals(int64_t{rows_} * kHeads, 2)));
    FOVEA_ASSIGN(indices_, device_.allocate(sizeof(int32_t) * rows_ * kTopk, "chosen tokens"));
    FOVEA_ASSIGN(counts_, device_.allocate(sizeof(int32_t) * rows_, "counts of chosen tokens"));
    std::vector<int32_t> lens(rows_);
    std::iota(lens.begin(), lens.end(), kKeys - rows_ + 1);
    pairs_ = std::accumulate(lens.begin(), lens.end(), 0.0);
    FOVEA_ASSIGN(lens_, send(lens));
    FOVEA_ASSIGN(seqs_, send(std::vector<int32_t>(rows_, 0)));
    return write(table);
  }

  Result<double> time(int rounds) {
    IndexTopkParams p;
    p.rows = rows_;
    p.heads = kHeads;
    p.q = q_.as<float>();
    p.weights = weights_.as<float>();
    p.row_seq = seqs_.as<int32_t>();
    p.row_len = lens_.as<int32_t>();
    p.topk = kTopk;
    p.max_len = kKeys;
    p.keys = view();
    p.out = {IndexSpace::position, rows_, kTopk, indices_.as<int32_t>(), counts_.as<int32_t>()};
    return time_replays(device_, stream_, rounds, [&] { ops_->index_topk(p, stream_); });
  }

  double flops() const { return 2.0 * kHeads * kDim * pairs_; }
  size_t key_bytes() const { return size_t{kKeys} * kDim * index_element_bytes(precision_); }

 private:
  IndexKeysView view() const {
    return {precision_, keys_.data(), scales_.as<float>(), kBlock, kDim, table_.as<int32_t>(), kKeys / kBlock};
  }

  template <typename T>
  Result<Buffer> send(const std::vector<T>& values) {
    FOVEA_ASSIGN(Buffer buffer, device_.allocate(values.size() * sizeof(T), "an index layer"));
    device_.copy(buffer.data(), values.data(), values.size() * sizeof(T), CopyKind::to_device, stream_);
    return buffer;
  }

  // Keys and queries as a model leaves them.
  Status write(const std::vector<int32_t>& table) {
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < kKeys; ++t) slots.push_back(int64_t{table[t / kBlock]} * kBlock + t % kBlock);
    FOVEA_ASSIGN(const Buffer device_slots, send(slots));
    FOVEA_ASSIGN(const Buffer k, send(drawn_normals(int64_t{kKeys} * kDim, 3)));
    FOVEA_ASSIGN(const Buffer norm, send(std::vector<float>(kDim, 1.0f)));
    FOVEA_ASSIGN(const Buffer bias, send(std::vector<float>(kDim, 0.0f)));
    IndexWriteParams w;
    w.norm_weight = norm.as<float>();
    w.norm_bias = bias.as<float>();
    w.keys = view();
    w.tokens = kKeys;
    w.k = k.as<float>();
    w.slot_mapping = device_slots.as<int64_t>();
    ops_->index_write(w, stream_);
    w.tokens = rows_;
    w.heads = kHeads;
    w.q = q_.as<float>();
    w.weights = weights_.as<float>();
    ops_->index_write(w, stream_);
    return stream_.synchronize();
  }

  const IndexPrecision precision_;
  const int32_t rows_;
  Device& device_;
  Stream& stream_;
  std::unique_ptr<Ops> ops_;
  Buffer keys_, scales_, table_, q_, weights_, indices_, counts_, lens_, seqs_;
  double pairs_ = 0;
};

}  // namespace

Status bench_gpu_index(Device& device, Stream& stream, double bandwidth, int rounds, Report* report) {
  for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
    const bool exact = precision == IndexPrecision::exact;
    const std::string at = std::string(", ") + name_of(precision) + " keys, 64 heads, 131072 tokens";
    const int32_t many = exact ? 512 : kChunk;
    IndexLayer prefill(precision, many, device, stream);
    FOVEA_TRY(prefill.make());
    FOVEA_ASSIGN(const double s, prefill.time(std::min(rounds, 5)));
    double ceiling = 0;
    if (!exact) {
      const DType dtype = precision == IndexPrecision::bf16 ? DType::bf16 : DType::fp8_e4m3;
      FOVEA_ASSIGN(ceiling, products_per_second(dtype, device, stream, std::min(rounds, 5)));
    }
    report->rate("index top-k of " + std::to_string(many) + " rows" + at, prefill.flops() / s / 1e12, "TFLOP/s",
                 exact ? "" : "bare products", ceiling / 1e12);
    for (int32_t rows : {1, 8}) {
      IndexLayer decode(precision, rows, device, stream);
      FOVEA_TRY(decode.make());
      FOVEA_ASSIGN(const double seconds, decode.time(rounds));
      const double read = static_cast<double>(decode.key_bytes()) / bandwidth;
      report->add({"index top-k, rows of one sequence: " + std::to_string(rows) + at, seconds * 1e6, "us", "a read of the keys",
                   read * 1e6, seconds / read});
    }
  }
  return {};
}

}  // namespace fovea
