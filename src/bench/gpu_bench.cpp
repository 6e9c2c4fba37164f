#include "bench/bench.h"
#include "bench/gpu_index.h"
#include "bench/gpu_latent.h"
#include "bench/gpu_layers.h"

#include <memory>
#include <string>

namespace fovea {
namespace {

// Each problem in turn has the memory to itself.
class GpuOpsBench {
 public:
  GpuOpsBench(const OpsBenchOptions& o, Device& device, Stream& stream, Report* report)
      : rounds_(o.rounds), device_(device), stream_(stream), report_(report) {}

  Status run() {
    FOVEA_ASSIGN(bandwidth_, gpu_read_bandwidth(device_, stream_));
    report_->add({"read sweep", bandwidth_ / 1e12, "TB/s", "", 0, 0});
    FOVEA_TRY(dense_decode(16, 32768, 128));
    FOVEA_TRY(dense_decode(1, 131072, 128));
    FOVEA_TRY(dense_decode(16, 32768, 64));
    FOVEA_TRY(selection());
    FOVEA_TRY(sparse_decode());
    FOVEA_TRY(prefill(128, 32768, 32768));
    FOVEA_TRY(prefill(64, 32768, 32768));
    FOVEA_TRY(prefill(128, 8192, 8192));
    FOVEA_TRY(prefill(128, 32768, 2048));
    FOVEA_TRY(sparse_prefill(131072));
    FOVEA_TRY(sparse_prefill(32768));
    FOVEA_TRY(block_shape(128, 64));
    FOVEA_TRY(block_shape(64, 128));
    FOVEA_TRY(block_shape(64, 64));
    FOVEA_TRY(bench_gpu_index(device_, stream_, bandwidth_, rounds_, report_));
    return bench_gpu_latent(device_, stream_, rounds_, report_);
  }

 private:
  Status dense_decode(int32_t batch, int64_t tokens, int32_t head_dim) {
    FOVEA_ASSIGN(const auto g,
                 GpuLayers::make({.layers = 2, .seqs = batch, .tokens = tokens, .head_dim = head_dim}, device_, stream_));
    FOVEA_ASSIGN(const double s, g->time_op(&GpuLayers::dense, rounds_));
    report_->rate(
        "dense decode, batch " + std::to_string(batch) + ", " + std::to_string(tokens) + " tokens, d " + std::to_string(head_dim),
        g->kv_bytes() / s / 1e12, "TB/s", "read sweep", bandwidth_ / 1e12);
    report_->add({"  its time", s * 1e6, "us", "", 0, 0});
    return {};
  }

  // Codes of one layer would stay in the L2 cache: layers in turn.
  Status selection() {
    const struct {
      int32_t bits;
      bool asymmetric, length_factor;
      const char* name;
    } codes[] = {{128, false, false, "128 bits"},
                 {64, true, false, "64 asymmetric bits"},
                 {64, true, true, "64 asymmetric bits and lengths"},
                 {128, true, false, "128 asymmetric bits"}};
    for (const auto& c : codes) {
      for (const int32_t batch : {1, 8}) {
        const GpuLayersShape shape = {.layers = 12 / batch + 1,
                                      .seqs = batch,
                                      .tokens = 131072,
                                      .bits = c.bits,
                                      .asymmetric = c.asymmetric,
                                      .length_factor = c.length_factor};
        FOVEA_ASSIGN(const auto g, GpuLayers::make(shape, device_, stream_));
        FOVEA_ASSIGN(const double s, g->time_op(&GpuLayers::select, rounds_));
        const double read = batch * 131072.0 * 8 * (c.bits / 8 + (c.length_factor ? 2 : 0)) / bandwidth_;
        report_->add({"selection, batch " + std::to_string(batch) + ", 131072 tokens, 8 KV heads, " + c.name, s * 1e6, "us",
                      "a read of its codes", read * 1e6, s / read});
      }
    }
    return {};
  }

  Status sparse_decode() {
    const GpuLayersShape shape = {.layers = 4, .seqs = 8, .tokens = 131072, .asymmetric = true, .budget_tokens = 2048};
    FOVEA_ASSIGN(const auto g, GpuLayers::make(shape, device_, stream_));
    FOVEA_ASSIGN(const double dense, g->time_op(&GpuLayers::dense, rounds_));
    FOVEA_ASSIGN(const double select, g->time_op(&GpuLayers::select, rounds_));
    FOVEA_ASSIGN(const double sparse, g->time_op(&GpuLayers::sparse, rounds_));
    const std::string at = ", batch 8, 131072 tokens";
    report_->add({"dense decode" + at, dense * 1e6, "us", "", 0, 0});
    report_->add({"selection" + at, select * 1e6, "us", "time of dense attention", dense * 1e6, select / dense});
    report_->add(
        {"sparse attention, 2048 tokens" + at, sparse * 1e6, "us", "time of dense attention", dense * 1e6, sparse / dense});
    report_->add({"speedup of selection + sparse attention" + at, dense / (select + sparse), "x", "", 0, 0});
    return {};
  }

  Status prefill(int32_t head_dim, int64_t tokens, int32_t rows) {
    FOVEA_ASSIGN(const auto g,
                 GpuLayers::make({.layers = 1, .seqs = 1, .tokens = tokens, .head_dim = head_dim, .rows = rows}, device_, stream_));
    FOVEA_ASSIGN(const double s, g->time_op(&GpuLayers::prefill, rounds_ < 10 ? rounds_ : 10));
    const double pairs = rows * (static_cast<double>(tokens) - (rows - 1) / 2.0);
    report_->add(
        {"prefill attention, " + std::to_string(rows) + " rows at " + std::to_string(tokens) + ", d " + std::to_string(head_dim),
         4.0 * pairs * 32 * head_dim / s / 1e12, "TFLOP/s", "", 0, 0});
    return {};
  }

  // All rows of a prompt: what the estimate costs, and what attention through lists makes of their pairs.
  Status sparse_prefill(int32_t tokens) {
    FOVEA_ASSIGN(const auto g, GpuLayers::make({.layers = 1, .seqs = 1, .tokens = tokens, .rows = tokens, .xattention_stride = 8},
                                               device_, stream_));
    const int rounds = rounds_ < 5 ? rounds_ : 5;
    const std::string at = ", " + std::to_string(tokens) + " rows, d 128";
    const auto rate = [](double pairs, double s) { return 4.0 * pairs * 128 / s / 1e12; };
    FOVEA_ASSIGN(const double dense, g->time_op(&GpuLayers::prefill, rounds));
    const double dense_rate = rate(32.0 * tokens * (tokens + 1.0) / 2, dense);
    report_->add({"prefill attention" + at, dense_rate, "TFLOP/s", "", 0, 0});
    double estimate = 0;  // at the default stride, the last
    for (const int32_t stride : {8, 16}) {
      g->set_stride(stride);
      FOVEA_ASSIGN(const double s, g->time_op(&GpuLayers::estimate, rounds));
      estimate = s;
      report_->add({"XAttention estimate and choice, stride " + std::to_string(stride) + at, s * 1e3, "ms", "time of dense prefill",
                    dense * 1e3, s / dense});
    }
    for (const double density : {0.05, 0.1, 0.3}) {
      FOVEA_ASSIGN(const double pairs, g->draw_lists(density));
      FOVEA_ASSIGN(const double s, g->time_op(&GpuLayers::sparse_prefill, rounds));
      const std::string share = percent(density) + " of the blocks" + at;
      report_->rate("block-sparse prefill, " + share, rate(pairs, s), "TFLOP/s", "dense prefill", dense_rate);
      report_->add({"speedup of estimate (stride 16) + block-sparse prefill, " + share, dense / (estimate + s), "x", "", 0, 0});
    }
    return {};
  }

  // Attention alone, over lists of the shapes beside d 128 and blocks of 128 x 128.
  Status block_shape(int32_t head_dim, int32_t unit) {
    constexpr int32_t kTokens = 131072;
    constexpr double kDensity = 0.1;
    FOVEA_ASSIGN(const auto g, GpuLayers::make({.layers = 1,
                                                .seqs = 1,
                                                .tokens = kTokens,
                                                .head_dim = head_dim,
                                                .rows = kTokens,
                                                .xattention_stride = 16,
                                                .unit = unit},
                                               device_, stream_));
    const auto rate = [&](double pairs, double s) { return 4.0 * pairs * head_dim / s / 1e12; };
    const int rounds = rounds_ < 5 ? rounds_ : 5;
    FOVEA_ASSIGN(const double dense, g->time_op(&GpuLayers::prefill, rounds));
    FOVEA_ASSIGN(const double pairs, g->draw_lists(kDensity));
    FOVEA_ASSIGN(const double s, g->time_op(&GpuLayers::sparse_prefill, rounds));
    const std::string side = std::to_string(unit);
    report_->rate("block-sparse prefill, blocks of " + side + " x " + side + ", " + percent(kDensity) + " of them, " +
                      std::to_string(kTokens) + " rows, d " + std::to_string(head_dim),
                  rate(pairs, s), "TFLOP/s", "dense prefill", rate(32.0 * kTokens * (kTokens + 1.0) / 2, dense));
    return {};
  }

  static std::string percent(double share) { return std::to_string(static_cast<int>(share * 100 + 0.5)) + " %"; }

  const int rounds_;
  Device& device_;
  Stream& stream_;
  Report* report_;
  double bandwidth_ = 0;
};

}  // namespace

Result<Report> bench_gpu_ops(const OpsBenchOptions& options) {
  FOVEA_ASSIGN(const std::unique_ptr<Device> device, make_cuda_device());
  const std::unique_ptr<Stream> stream = device->make_stream();
  Report report;
  report.note(device->description() +
              "; bf16 K and V, 32 query and 8 KV heads, blocks of 16; medians over replays of captured graphs");
  FOVEA_TRY(GpuOpsBench(options, *device, *stream, &report).run());
  return report;
}

}  // namespace fovea
