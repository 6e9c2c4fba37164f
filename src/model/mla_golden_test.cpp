// Latent attention and experts against what transformers computes (tools/make_mla_goldens.py).
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "device/stream.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ref/ref_ops.h"

namespace fovea {
namespace {

nlohmann::json read(const std::string& name) {
  std::ifstream in(std::string(FOVEA_SOURCE_DIR) + "/tests/data/mla/" + name + ".json");
  EXPECT_TRUE(in.good()) << name;
  return nlohmann::json::parse(in);
}

std::vector<float> floats(const nlohmann::json& j, const char* key) { return j.at(key).get<std::vector<float>>(); }

void expect_near(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5f * (1 + std::abs(want[i]))) << i;
}

class MlaGolden : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Ops> make(const OpsLimits& limits) {
    std::unique_ptr<Ops> ops =
        std::string(GetParam()) == "cpu" ? std::unique_ptr<Ops>(make_cpu_ops(pool_, Numerics::f32)) : make_ref_ops();
    EXPECT_TRUE(ops->prepare(limits).ok());
    return ops;
  }
  ThreadPool pool_{2};
  CpuStream stream_;
};

TEST_P(MlaGolden, Attention) {
  for (const char* name : {"attention_interleaved", "attention_half_split"}) {
    SCOPED_TRACE(name);
    const nlohmann::json g = read(name);
    const int32_t heads = g.at("heads"), tokens = g.at("tokens"), block = 8;
    const MlaShape shape = {g.at("latent"), g.at("rope"), g.at("nope"), g.at("v")};
    const int32_t entry = shape.latent + shape.rope;
    OpsLimits limits;
    limits.max_rows = limits.max_len = tokens;
    limits.num_heads = heads;
    limits.mla = shape;
    const std::unique_ptr<Ops> ops = make(limits);
    std::vector<float> q = floats(g, "q"), plane(size_t{4} * block * entry);
    const std::vector<float> kv_a = floats(g, "kv_a"), norm = floats(g, "norm"), kv_b = floats(g, "kv_b"), cos = floats(g, "cos"),
                             sin = floats(g, "sin");
    const std::vector<int32_t> table = {2, 0, 3, 1};
    std::vector<int64_t> slots;
    for (int32_t t = 0; t < tokens; ++t) slots.push_back(int64_t{table[t / block]} * block + t % block);
    KvView kv;
    kv.k = plane.data();
    kv.dtype = DType::f32;
    kv.block_size = block;
    kv.kv_heads = 1;
    kv.head_dim = entry;
    kv.block_stride = block * entry;
    kv.table = {table.data(), 4, 0};
    ops->mla_write({tokens, heads, shape, q.data(), kv_a.data(), norm.data(), g.at("eps"), g.at("interleaved"), cos.data(),
                    sin.data(), slots.data(), &kv},
                   stream_);
    std::vector<float> absorbed(size_t{1} * tokens * heads * entry), latent(size_t{1} * tokens * heads * shape.latent),
        out(size_t{1} * tokens * heads * shape.v);
    ops->mla_absorb({q.data(), weight_view(kv_b.data(), DType::f32, heads * (shape.nope + shape.v), shape.latent), tokens, heads,
                     shape, absorbed.data()},
                    stream_);
    const int32_t indptr[] = {0, tokens};
    ops->mla_attend({absorbed.data(), latent.data(), nullptr, heads, tokens, 1, indptr, &tokens, &kv, shape.latent, g.at("scale")},
                    stream_);
    ops->mla_unabsorb({latent.data(), weight_view(kv_b.data(), DType::f32, heads * (shape.nope + shape.v), shape.latent), tokens,
                       heads, shape, out.data()},
                      stream_);
    expect_near(out, floats(g, "out"));
  }
}

TEST_P(MlaGolden, Experts) {
  for (const char* name : {"moe_groups", "moe_one_group"}) {
    SCOPED_TRACE(name);
    const nlohmann::json g = read(name);
    const int32_t rows = g.at("rows"), hidden = g.at("hidden"), inter = g.at("inter"), experts = g.at("experts"),
                  top_k = g.at("top_k");
    OpsLimits limits;
    limits.max_rows = rows;
    limits.max_k = limits.max_n = std::max(hidden, inter);
    limits.moe = {experts, top_k, hidden, inter};
    const std::unique_ptr<Ops> ops = make(limits);
    const std::vector<float> x = floats(g, "x"), gate = floats(g, "gate"), bias = floats(g, "bias");
    const std::vector<float> w_gate = floats(g, "w_gate"), w_up = floats(g, "w_up"), w_down = floats(g, "w_down");
    std::vector<int32_t> ids(size_t{1} * rows * top_k);
    std::vector<float> weights(ids.size()), out(x.size());
    MoeRouteParams r{x.data(),    rows,    hidden,         weight_view(gate.data(), DType::f32, experts, hidden),
                     bias.data(), experts, g.at("groups"), g.at("topk_groups"),
                     2,           top_k};
    r.normalise = g.at("normalise");
    r.scaling = g.at("scaling");
    r.ids = ids.data();
    r.weights = weights.data();
    ops->moe_route(r, stream_);
    EXPECT_EQ(ids, g.at("ids").get<std::vector<int32_t>>());
    expect_near(weights, floats(g, "weights"));
    std::vector<FeedForwardWeights> expert_weights;
    for (int32_t e = 0; e < experts; ++e) {
      const size_t at = size_t{1} * e * inter * hidden;
      expert_weights.push_back({weight_view(&w_gate[at], DType::f32, inter, hidden),
                                weight_view(&w_up[at], DType::f32, inter, hidden),
                                weight_view(&w_down[at], DType::f32, hidden, inter)});
    }
    ops->moe_experts({x.data(), out.data(), rows, hidden, inter, experts, top_k, ids.data(), weights.data(), expert_weights.data()},
                     stream_);
    expect_near(out, floats(g, "out"));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MlaGolden, ::testing::Values("ref", "cpu"), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fovea
