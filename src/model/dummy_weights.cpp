// Random weights for benchmarks of shapes that nobody ships: fast to fill, cheap in memory, the same
// everywhere.
#include <sys/mman.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/common/convert.h"
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
class MatrixList {
 public:
  MatrixList(const ModelConfig& c, ModelWeights* w) {
    add(&w->embed, c.vocab_size, c.hidden_size);
    for (LayerWeights& layer : w->layers) add_layer(c, &layer);
    for (size_t i = 0; i < w->deepseek_layers.size(); ++i) add_deepseek_layer(c, i, &w->deepseek_layers[i]);
    if (!c.tie_word_embeddings) add(&w->lm_head, c.vocab_size, c.hidden_size);
  }
  const std::vector<WeightMatrix*>& all() const { return all_; }

 private:
  void add(WeightMatrix* m, int64_t rows, int64_t cols) {
    *m = {nullptr, DType::bf16, rows, cols};
    all_.push_back(m);
  }
  void add_layer(const ModelConfig& c, LayerWeights* w) {
    add(&w->q, c.q_size(), c.hidden_size);
    add(&w->k, c.kv_size(), c.hidden_size);
    add(&w->v, c.kv_size(), c.hidden_size);
    add(&w->o, c.hidden_size, c.q_size());
    add(&w->gate, c.intermediate_size, c.hidden_size);
    add(&w->up, c.intermediate_size, c.hidden_size);
    add(&w->down, c.hidden_size, c.intermediate_size);
  }
  void add_feed_forward(int64_t hidden, int64_t inter, FeedForwardWeights* w) {
    add(&w->gate, inter, hidden);
    add(&w->up, inter, hidden);
    add(&w->down, hidden, inter);
  }
  void add_deepseek_layer(const ModelConfig& c, size_t layer, DeepseekLayerWeights* w) {
    const DeepseekConfig& d = *c.deepseek;
    const int64_t hidden = c.hidden_size, heads = c.num_heads;
    add(&w->q_a, d.q_lora_rank, hidden);
    add(&w->q_b, heads * d.qk_dim(), d.q_lora_rank);
    add(&w->kv_a, d.latent_dim(), hidden);
    add(&w->kv_b, heads * (d.nope_dim + d.v_dim), d.kv_lora_rank);
    add(&w->o, hidden, heads * d.v_dim);
    if (d.layer_indexes[layer]) {
      add(&w->indexer.q_b, int64_t{d.index_heads} * d.index_dim, d.q_lora_rank);
      add(&w->indexer.k, d.index_dim, hidden);
      add(&w->indexer.head_weights, d.index_heads, hidden);
    }
    if (!d.layer_moe[layer]) return add_feed_forward(hidden, c.intermediate_size, &w->dense);
    add(&w->moe.router, d.experts, hidden);
    w->moe.experts.resize(static_cast<size_t>(d.experts));
    for (FeedForwardWeights& expert : w->moe.experts) add_feed_forward(hidden, d.moe_intermediate, &expert);
    add_feed_forward(hidden, d.shared_intermediate(), &w->moe.shared);
  }

  std::vector<WeightMatrix*> all_;
};

void fill_vector(std::vector<float>* v, int32_t size, float x) { v->assign(static_cast<size_t>(size), x); }
void zeros_if(bool used, std::vector<float>* v, int32_t size) {
  if (used) fill_vector(v, size, 0.0f);
}

void set_vectors(const ModelConfig& c, LayerWeights* w) {
  fill_vector(&w->input_norm, c.hidden_size, 1);
  fill_vector(&w->post_attention_norm, c.hidden_size, 1);
  if (c.qk_norm) fill_vector(&w->q_norm, c.head_dim, 1);
  if (c.qk_norm) fill_vector(&w->k_norm, c.head_dim, 1);
  zeros_if(c.qkv_bias, &w->q_bias, c.q_size());
  zeros_if(c.qkv_bias, &w->k_bias, c.kv_size());
  zeros_if(c.qkv_bias, &w->v_bias, c.kv_size());
  zeros_if(c.o_bias, &w->o_bias, c.hidden_size);
  zeros_if(c.mlp_bias, &w->gate_bias, c.intermediate_size);
  zeros_if(c.mlp_bias, &w->up_bias, c.intermediate_size);
  zeros_if(c.mlp_bias, &w->down_bias, c.hidden_size);
}

void set_vectors(const ModelConfig& c, size_t layer, DeepseekLayerWeights* w) {
  const DeepseekConfig& d = *c.deepseek;
  fill_vector(&w->input_norm, c.hidden_size, 1);
  fill_vector(&w->post_attention_norm, c.hidden_size, 1);
  fill_vector(&w->q_a_norm, d.q_lora_rank, 1);
  fill_vector(&w->kv_a_norm, d.kv_lora_rank, 1);
  zeros_if(c.qkv_bias, &w->q_a_bias, d.q_lora_rank);
  zeros_if(c.qkv_bias, &w->kv_a_bias, d.latent_dim());
  zeros_if(c.o_bias, &w->o_bias, c.hidden_size);
  if (d.layer_indexes[layer]) fill_vector(&w->indexer.k_norm, d.index_dim, 1);
  zeros_if(d.layer_indexes[layer], &w->indexer.k_norm_bias, d.index_dim);
  zeros_if(d.layer_moe[layer], &w->moe.router_bias, d.experts);
}

}  // namespace

Result<ModelWeights> dummy_weights(const ModelConfig& config, uint64_t seed) {
  ModelWeights out;
  const auto layers = static_cast<size_t>(config.num_layers);
  config.deepseek ? out.deepseek_layers.resize(layers) : out.layers.resize(layers);
  const MatrixList list(config, &out);
  const std::vector<WeightMatrix*>& matrices = list.all();
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
  fill_vector(&out.final_norm, config.hidden_size, 1);
  for (LayerWeights& w : out.layers) set_vectors(config, &w);
  for (size_t i = 0; i < out.deepseek_layers.size(); ++i) set_vectors(config, i, &out.deepseek_layers[i]);
  out.owner = area;
  return out;
}

}  // namespace fovea
