// Random weights for benchmarks of shapes that nobody ships: fast to fill, cheap in memory, the same
// everywhere.
#include <sys/mman.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "kernels/ref/convert.h"
#include "model/checkpoint.h"

namespace fovea {
namespace {

constexpr int kTableBits = 12;
constexpr size_t kTableSize = size_t{1} << kTableBits;
constexpr double kDeviation = 0.02;

using NormalTable = std::array<uint16_t, kTableSize>;

// Entry i is the middle of the i-th of 4,096 equally likely slices of the normal distribution: 12 random bits
// then make one weight, where std::normal_distribution would take 30 times as long.
NormalTable make_normal_table() {
  NormalTable table{};
  for (size_t i = 0; i < kTableSize; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kTableSize;
    double low = -8, high = 8;
    for (int step = 0; step < 40; ++step) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
    }
    table[i] = f32_to_bf16(static_cast<float>(low * kDeviation));
  }
  return table;
}

uint64_t splitmix64(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return z ^ z >> 31;
}

// Anonymous memory, handed out in pieces of 64-byte alignment.
class Area {
 public:
  static Result<std::shared_ptr<Area>> make(size_t bytes) {
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
      return Status::resource_exhausted("no memory for " + std::to_string(bytes) + " bytes of dummy weights");
    }
    ::madvise(base, bytes, MADV_HUGEPAGE);  // fewer page faults while it is filled; may be refused
    return std::make_shared<Area>(base, bytes);
  }
  Area(void* base, size_t bytes) : base_(base), bytes_(bytes) {}
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;
  ~Area() { ::munmap(base_, bytes_); }

  uint16_t* take(size_t bytes) {
    auto* at = static_cast<char*>(base_) + used_;
    used_ += (bytes + 63) / 64 * 64;
    FOVEA_CHECK(used_ <= bytes_);
    return reinterpret_cast<uint16_t*>(at);
  }

 private:
  void* base_;
  size_t bytes_;
  size_t used_ = 0;
};

void fill(uint16_t* out, size_t count, const NormalTable& table, uint64_t seed) {
  constexpr uint64_t kMask = kTableSize - 1;
  uint64_t state = seed;
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const uint64_t bits = splitmix64(state);
    for (int j = 0; j < 4; ++j) out[i + j] = table[bits >> (16 * j) & kMask];
  }
  for (uint64_t bits = splitmix64(state); i < count; ++i, bits >>= 16) out[i] = table[bits & kMask];
}

// Every matrix of the model with its shape, in a fixed order.
std::vector<WeightMatrix*> shape_matrices(const ModelConfig& c, ModelWeights* w) {
  std::vector<WeightMatrix*> all;
  const auto add = [&](WeightMatrix* m, int64_t rows, int64_t cols) {
    *m = {nullptr, DType::bf16, rows, cols};
    all.push_back(m);
  };
  const int64_t hidden = c.hidden_size, inter = c.intermediate_size, q = c.q_size(), kv = c.kv_size();
  add(&w->embed, c.vocab_size, hidden);
  for (LayerWeights& layer : w->layers) {
    add(&layer.q, q, hidden);
    add(&layer.k, kv, hidden);
    add(&layer.v, kv, hidden);
    add(&layer.o, hidden, q);
    add(&layer.gate, inter, hidden);
    add(&layer.up, inter, hidden);
    add(&layer.down, hidden, inter);
  }
  if (!c.tie_word_embeddings) add(&w->lm_head, c.vocab_size, hidden);
  return all;
}

void set_vectors(const ModelConfig& c, ModelWeights* w) {
  const auto ones = [](std::vector<float>* v, int32_t n) { v->assign(static_cast<size_t>(n), 1.0f); };
  const auto zeros = [](std::vector<float>* v, int32_t n, bool used) {
    if (used) v->assign(static_cast<size_t>(n), 0.0f);
  };
  ones(&w->final_norm, c.hidden_size);
  for (LayerWeights& layer : w->layers) {
    ones(&layer.input_norm, c.hidden_size);
    ones(&layer.post_attention_norm, c.hidden_size);
    if (c.qk_norm) ones(&layer.q_norm, c.head_dim);
    if (c.qk_norm) ones(&layer.k_norm, c.head_dim);
    zeros(&layer.q_bias, c.q_size(), c.qkv_bias);
    zeros(&layer.k_bias, c.kv_size(), c.qkv_bias);
    zeros(&layer.v_bias, c.kv_size(), c.qkv_bias);
    zeros(&layer.o_bias, c.hidden_size, c.o_bias);
    zeros(&layer.gate_bias, c.intermediate_size, c.mlp_bias);
    zeros(&layer.up_bias, c.intermediate_size, c.mlp_bias);
    zeros(&layer.down_bias, c.hidden_size, c.mlp_bias);
  }
}

}  // namespace

Result<ModelWeights> dummy_weights(const ModelConfig& config, uint64_t seed) {
  ModelWeights out;
  out.layers.resize(static_cast<size_t>(config.num_layers));
  const std::vector<WeightMatrix*> matrices = shape_matrices(config, &out);
  size_t area_bytes = 0;
  for (const WeightMatrix* m : matrices) {
    out.matrix_bytes += m->bytes();
    area_bytes += (m->bytes() + 63) / 64 * 64;
  }
  FOVEA_ASSIGN(const std::shared_ptr<Area> area, Area::make(area_bytes));
  const NormalTable table = make_normal_table();
  uint64_t tensor_seed = seed;
  for (WeightMatrix* m : matrices) {
    uint16_t* data = area->take(m->bytes());
    fill(data, m->bytes() / sizeof(uint16_t), table, splitmix64(tensor_seed));
    m->data = data;
  }
  if (config.tie_word_embeddings) out.lm_head = out.embed;
  set_vectors(config, &out);
  out.owner = area;
  return out;
}

}  // namespace fovea
