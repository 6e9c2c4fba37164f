// --device auto: which models and methods keep it off a GPU.
#include "runner/device_choice.h"

#include "kernels/cuda/cuda_ops.h"
#include "sparse/registry.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

TEST(Lacks, AnyMethodThatRunsOnTheHostAlone) {
  const ModelConfig llama;
  EngineOptions o;
  EXPECT_EQ(lacks(cuda_op_set(), llama, o), "");
  o.decode_method = "gsa_on_device[hash_bits=256]";
  EXPECT_EQ(lacks(cuda_op_set(), llama, o), "");
  o.decode_method = "gsa[representation=mean]";
  EXPECT_EQ(lacks(cuda_op_set(), llama, o), "");
  EXPECT_EQ(lacks(cuda_op_set().without({OpKind::summary_select}), llama, o), "gsa[representation=mean]");
  o.decode_method = "gsa_on_device[overlap=true]";
  EXPECT_EQ(lacks(cuda_op_set(), llama, o), "");
  o.decode_method = "auto";
  o.prefill_method = "xattention";
  EXPECT_EQ(lacks(cuda_op_set(), llama, o), "");
  const OpSet dense_prefill = cuda_op_set().without({OpKind::xattention_select});
  EXPECT_EQ(lacks(dense_prefill, llama, o), "xattention");
  o.prefill_method = "dense";
  o.methods.push_back({.name = "xattention", .label = "mine"});
  EXPECT_EQ(lacks(dense_prefill, llama, o), "mine") << "held for requests that name it";
}

TEST(Lacks, NothingForSeveralKindsOfHashCodes) {
  EngineOptions o;
  o.decode_method = "gsa_on_device";
  o.methods = {*parse_method_spec("gsa_on_device[hash_bits=192]"), *parse_method_spec("gsa_on_device[codes=symmetric]")};
  EXPECT_EQ(lacks(cuda_op_set(), ModelConfig(), o), "");
}

TEST(Lacks, AModelWithLatentAttention) {
  ModelConfig model;
  model.architecture = "DeepseekV32ForCausalLM";
  model.deepseek.emplace();
  EXPECT_EQ(lacks(cuda_op_set(), model, EngineOptions()), "");
  EXPECT_EQ(lacks(cuda_op_set().without({OpKind::mla_attend}), model, EngineOptions()), "DeepseekV32ForCausalLM");
}

TEST(Lacks, ActivationsInInt8) {
  EngineOptions o;
  o.numerics = NumericsChoice::int8;
  EXPECT_EQ(lacks(cuda_op_set(), ModelConfig(), o), "--numerics int8");
}

TEST(Lacks, WhatIsNoMethodIsLeftToItsOwnError) {
  EngineOptions o;
  o.decode_method = "magic";
  o.prefill_method = "gsa[";
  EXPECT_EQ(lacks(cuda_op_set(), ModelConfig(), o), "");
}

}  // namespace
}  // namespace fovea
