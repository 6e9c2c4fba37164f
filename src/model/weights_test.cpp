#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <vector>

#include "kernels/cpu/quant/interleave.h"
#include "model/checkpoint.h"
#include "model/golden_test_util.h"
#include "model/placed_weights.h"
#include "model/tensor_source.h"

namespace fovea {
namespace {

using testing::UnorderedElementsAreArray;

std::vector<ListedWeight> list_of(const ModelConfig& c, ModelWeights* w) {
  std::vector<ListedWeight> out;
  EXPECT_TRUE(for_each_weight(c, w, [&](const ListedWeight& one) {
                out.push_back(one);
                return Status();
              }).ok());
  return out;
}

class EveryCheckpoint : public testing::TestWithParam<GoldenCheckpoint> {
 protected:
  void SetUp() override {
    auto config = load_model_config(GetParam().dir);
    ASSERT_TRUE(config.ok()) << config.status().message();
    config_ = *config;
  }
  ModelConfig config_;
};

// Scales go with their matrix; prediction layers and a tied head's copy are not read.
bool goes_unread(const ModelConfig& c, const std::string& name) {
  const std::string scale = "_scale_inv";
  if (name.size() > scale.size() && name.ends_with(scale)) return true;
  return name.starts_with("model.layers." + std::to_string(c.num_layers) + ".") ||
         (c.tie_word_embeddings && name == "lm_head.weight") || name == "rope_freqs.weight";
}

// The tensors of a file that hold a listed weight: GGUF files keep a layer's experts together, and some of them W_UK and W_UV apart.
std::vector<std::string> tensors_with(const TensorSource& source, const std::string& name) {
  if (source.find(name) != nullptr) return {name};
  const std::string experts = ".experts.", keys_and_values = ".kv_b_proj.";
  if (const size_t at = name.find(experts); at != std::string::npos) {
    const size_t number = at + experts.size();
    return {name.substr(0, number) + name.substr(name.find('.', number) + 1)};
  }
  if (const size_t at = name.find(keys_and_values); at != std::string::npos) {
    const std::string before = name.substr(0, at), after = name.substr(at + keys_and_values.size());
    return {before + ".k_b_proj." + after, before + ".v_b_proj." + after};
  }
  return {name};
}

TEST_P(EveryCheckpoint, HoldsEveryListedWeightOnceAndNoOther) {
  const auto source = open_tensors(GetParam().dir);
  ASSERT_TRUE(source.ok()) << source.status().message();
  ModelWeights weights;
  std::vector<std::string> listed, stored;
  for (const ListedWeight& w : list_of(config_, &weights)) listed.push_back(w.name);
  for (const std::string& name : (*source)->names()) {
    if (!goes_unread(config_, name)) stored.push_back(name);
  }
  std::set<std::string> held;
  for (const std::string& name : listed) {
    EXPECT_EQ(std::count(listed.begin(), listed.end(), name), 1) << name;
    for (const std::string& tensor : tensors_with(**source, name)) held.insert(tensor);
  }
  EXPECT_THAT(held, UnorderedElementsAreArray(stored));
  for (const DeniedWeight& w : denied_weights(config_)) {
    EXPECT_EQ((*source)->find(w.name), nullptr) << w.name;
    EXPECT_EQ(std::count(listed.begin(), listed.end(), w.name), 0) << w.name;
  }
}

TEST_P(EveryCheckpoint, FillsEveryViewFromATensorOfItsOwn) {
  auto weights = load_checkpoint(GetParam().dir, config_);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  std::set<const void*> views, data;
  const auto listed = list_of(config_, &*weights);
  for (const ListedWeight& w : listed) {
    SCOPED_TRACE(w.name);
    ASSERT_NE(w.matrix == nullptr, w.vector == nullptr);
    views.insert(w.matrix ? static_cast<const void*>(w.matrix) : w.vector);
    data.insert(w.matrix ? w.matrix->data : w.vector->data());
    EXPECT_EQ(w.matrix ? w.matrix->rows : static_cast<int64_t>(w.vector->size()), w.rows);
    EXPECT_EQ(w.matrix ? w.matrix->cols : 1, w.cols);
  }
  EXPECT_EQ(views.size(), listed.size());
  EXPECT_EQ(data.size(), listed.size());
  EXPECT_EQ(data.count(nullptr), 0u);
  EXPECT_EQ(weights->lm_head.data == weights->embed.data, config_.tie_word_embeddings);
}

TEST_P(EveryCheckpoint, IsPlacedOnTheHostWithoutACopy) {
  std::unique_ptr<PlacedWeights> placed;
  std::vector<const void*> loaded_at, placed_at;
  const auto at = [](const ListedWeight& w) { return w.matrix ? w.matrix->data : w.vector->data(); };
  {
    auto weights = load_checkpoint(GetParam().dir, config_);
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    for (const ListedWeight& w : list_of(config_, &*weights)) loaded_at.push_back(at(w));
    placed = place_weights(*weights, config_);
  }
  for (const ListedWeight& w : list_of(config_, placed.get())) placed_at.push_back(at(w));
  EXPECT_EQ(placed_at, loaded_at);
  EXPECT_NE(placed->owner, nullptr);
}

// The bytes of a matrix in the order of files: its own, or in `memory`.
std::span<const uint8_t> as_in_file(const WeightView& w, std::vector<uint8_t>* memory) {
  if (!w.interleaved) return {static_cast<const uint8_t*>(w.data), w.data_bytes()};
  const int64_t bytes = weight_format(w.type).bytes, blocks = w.row_bytes() / bytes;
  memory->resize(w.data_bytes());
  for (int64_t i = 0; i < w.rows * blocks; ++i) cpu::copy_block(w, i / blocks, i % blocks, memory->data() + i * bytes);
  return *memory;
}

TEST_P(EveryCheckpoint, IsGatheredWhole) {
  ThreadPool pool(2);
  auto weights = load_checkpoint(GetParam().dir, config_);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const auto placed = gather_weights(*weights, config_, pool);
  ASSERT_NE(placed, nullptr);
  EXPECT_EQ(placed->owner, nullptr);
  EXPECT_EQ(placed->lm_head.data == placed->embed.data, config_.tie_word_embeddings);
  const auto from = list_of(config_, &*weights), to = list_of(config_, placed.get());
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    SCOPED_TRACE(from[i].name);
    std::vector<uint8_t> memory;
    const auto differs = [](const void* a, const void* b, size_t bytes) {
      EXPECT_NE(a, b);
      return std::memcmp(a, b, bytes);
    };
    const void* data = to[i].matrix ? to[i].matrix->data : to[i].vector->data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    if (!from[i].matrix) {
      ASSERT_EQ(to[i].vector->size(), from[i].vector->size());
      EXPECT_EQ(differs(from[i].vector->data(), to[i].vector->data(), from[i].bytes()), 0);
      continue;
    }
    const WeightView &a = *from[i].matrix, &b = *to[i].matrix;
    ASSERT_EQ(b.bytes(), a.bytes());
    EXPECT_EQ(differs(a.data, as_in_file(b, &memory).data(), a.data_bytes()), 0);
    ASSERT_EQ(b.scales == nullptr, a.scales == nullptr);
    if (a.scales) {
      EXPECT_EQ(differs(a.scales, b.scales, a.bytes() - a.data_bytes()), 0);
    }
  }
}

// Half the heads, intermediates and vocabulary: a split weight is half as large, any other as large as before.
TEST_P(EveryCheckpoint, SplitsWhatHeadsIntermediatesAndVocabularyMake) {
  ModelConfig whole = config_, half = config_;
  whole.num_heads *= 2;
  whole.num_kv_heads *= 2;
  whole.intermediate_size *= 2;
  whole.vocab_size *= 2;
  if (whole.deepseek) whole.deepseek->moe_intermediate *= 2;
  ModelWeights a, b;
  const auto large = list_of(whole, &a), small = list_of(half, &b);
  ASSERT_EQ(large.size(), small.size());
  for (size_t i = 0; i < large.size(); ++i) {
    EXPECT_EQ(large[i].rows, small[i].rows * (small[i].split == WeightSplit::rows ? 2 : 1)) << small[i].name;
    EXPECT_EQ(large[i].cols, small[i].cols * (small[i].split == WeightSplit::cols ? 2 : 1)) << small[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryCheckpoint, testing::ValuesIn(all_goldens(FOVEA_SOURCE_DIR)),
                         [](const auto& info) { return info.param.name; });

TEST(ForEachWeight, StopsAtTheFirstFailure) {
  ModelConfig c;
  c.num_layers = 1;
  int seen = 0;
  ModelWeights w;
  const auto third_fails = [&](const ListedWeight& one) { return ++seen == 3 ? Status::corrupt(one.name) : Status(); };
  const Status s = for_each_weight(c, &w, third_fails);
  EXPECT_EQ(s.message(), "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(seen, 3);
}

TEST(LinearMatrices, AreAllButEmbeddingAndRouters) {
  ModelConfig c;
  c.num_layers = 2;
  c.vocab_size = 7;
  c.hidden_size = 3;
  ModelWeights w;
  for (const bool tied : {false, true}) {
    c.tie_word_embeddings = tied;
    ASSERT_TRUE(for_each_weight(c, &w, [](const ListedWeight& one) {
                  if (one.matrix) *one.matrix = weight_view(nullptr, DType::bf16, one.rows, one.cols);
                  return Status();
                }).ok());
    const auto all = linear_matrices(c, w);
    ASSERT_EQ(all.size(), 2u * 7 + 1);
    EXPECT_EQ(all.back().rows, 7);
    EXPECT_EQ(all.back().cols, 3);
  }
}

}  // namespace
}  // namespace fovea
