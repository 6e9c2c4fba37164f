// The YAML of methods as UCM writes it, and one clear line for everything else.
#include "sparse/registry.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace fovea {
namespace {

std::string section(const std::string& lines) { return "ucm_sparse_config:\n  GSA_OnDevice:\n" + lines; }

Result<std::vector<MethodOptions>> parse(const std::string& yaml, std::vector<std::string>* notes = nullptr) {
  return parse_method_config(yaml, "m.yaml", notes);
}

GsaOptions options_of(const std::string& lines) {
  const auto m = parse(section(lines));
  EXPECT_TRUE(m.ok()) << m.status().message();
  if (!m.ok() || m->size() != 1) return {};
  EXPECT_EQ(m->at(0).name, "gsa_on_device");
  return m->at(0).gsa;
}

// The message of a refusal: one line that begins with the file and holds every part.
void expect_refused(const std::string& yaml, StatusCode code, std::initializer_list<const char*> parts) {
  const auto m = parse(yaml);
  ASSERT_FALSE(m.ok()) << yaml;
  EXPECT_EQ(m.status().code(), code) << m.status().message();
  const std::string& text = m.status().message();
  EXPECT_EQ(text.rfind("m.yaml: ", 0), 0u) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_LT(text.size(), 400u) << text;
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
}

TEST(MethodConfig, UcmsOwnFileIsRead) {
  std::vector<std::string> notes;
  const auto m = parse(
      "ucm_sparse_config:\n"
      "  GSA_OnDevice:\n"
      "    # hash\n"
      "    hash_bits: 64\n"
      "    hash_planes: 64\n"
      "\n"
      "    # sparsity\n"
      "    sparse_ratio: 0.3\n"
      "    local_window_sz: 2\n"
      "    init_window_sz: 1\n"
      "\n"
      "    hash_cache_size: 10000\n",
      &notes);
  ASSERT_TRUE(m.ok()) << m.status().message();
  ASSERT_EQ(m->size(), 1u);
  const GsaOptions& o = m->at(0).gsa;
  EXPECT_EQ(m->at(0).name, "gsa_on_device");
  EXPECT_EQ(o.hash_bits, 64);
  EXPECT_DOUBLE_EQ(o.sparse_ratio, 0.3);
  EXPECT_EQ(o.local_window_sz, 2);
  EXPECT_EQ(o.init_window_sz, 1);
  // The cache of the original has no counterpart: said once, with file and key.
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("m.yaml"), std::string::npos);
  EXPECT_NE(notes[0].find("hash_cache_size"), std::string::npos);
}

TEST(MethodConfig, WhatIsNotNamedKeepsItsDefault) {
  const GsaOptions d, o = options_of("    min_blocks: 9\n");
  EXPECT_EQ(o.min_blocks, 9);
  EXPECT_EQ(o.codes, GsaCodes::asymmetric);
  EXPECT_EQ(o.hash_bits, d.hash_bits);
  EXPECT_EQ(d.hash_bits, 0) << "what the codes take";
  EXPECT_EQ(o.hash_seed, 7u);
  EXPECT_EQ(o.budget_tokens, 0);
  EXPECT_DOUBLE_EQ(o.sparse_ratio, 0.3);
  // An empty section is the method with its defaults.
  EXPECT_EQ(parse("ucm_sparse_config: {GSA_OnDevice: {}}")->size(), 1u);
  EXPECT_EQ(parse("ucm_sparse_config:\n  GSA_OnDevice:\n")->size(), 1u);
}

TEST(MethodConfig, EveryKeyArrives) {
  const GsaOptions o = options_of(
      "    sparse_ratio: 0.25\n    budget_tokens: 512\n    init_window_sz: 3\n    local_window_sz: 5\n"
      "    min_blocks: 7\n    hash_bits: 256\n    hash_seed: 18446744073709551615\n    average_group: true\n"
      "    share_heads: true\n    dense_layers: [0, 5]\n");
  EXPECT_DOUBLE_EQ(o.sparse_ratio, 0.25);
  EXPECT_EQ(o.budget_tokens, 512);
  EXPECT_EQ(o.init_window_sz, 3);
  EXPECT_EQ(o.local_window_sz, 5);
  EXPECT_EQ(o.min_blocks, 7);
  EXPECT_EQ(o.hash_bits, 256);
  EXPECT_EQ(o.hash_seed, UINT64_MAX);
  EXPECT_TRUE(o.average_group);
  EXPECT_TRUE(o.share_heads);
  EXPECT_EQ(o.dense_layers, (std::vector<int32_t>{0, 5}));
}

TEST(MethodConfig, CodesAreOfTokensAlone) {
  GsaOptions o = options_of("    codes: asymmetric\n");
  EXPECT_EQ(o.codes, GsaCodes::asymmetric);
  EXPECT_FALSE(o.length_factor);
  EXPECT_EQ(o.hash_bits, 0);
  o = options_of("    hash_bits: 64\n    length_factor: true\n    codes: asymmetric\n    hash_planes: 64\n");
  EXPECT_TRUE(o.length_factor);
  EXPECT_EQ(o.hash_bits, 64);
  o = options_of("    codes: symmetric\n");
  EXPECT_EQ(o.codes, GsaCodes::symmetric);
  EXPECT_EQ(o.hash_bits, 0);
  EXPECT_EQ(o.budget_split, BudgetSplit::equal);
  o = options_of("    budget_split: mass\n    top_p: 0.95\n");
  EXPECT_EQ(o.budget_split, BudgetSplit::mass);
  EXPECT_EQ(o.top_p, 0.95);
  expect_refused(section("    budget_split: half\n"), StatusCode::invalid_argument, {"budget_split", "half", "equal or mass"});
  expect_refused(section("    codes: both\n"), StatusCode::invalid_argument, {"codes", "both", "symmetric or asymmetric"});
  expect_refused("ucm_sparse_config: {GSA: {codes: asymmetric, representation: mean_hash}}", StatusCode::invalid_argument,
                 {"GSA.codes", "representation"});
}

TEST(MethodConfig, SectionsOfSeveralMethodsAsUcmNestsThem) {
  std::vector<std::string> notes;
  const auto m = parse(
      "ucm_sparse_config:\n"
      "  GSA:\n"
      "    # sparsity\n"
      "    sparse_ratio: 0.3\n"
      "    local_window_sz: 2\n"
      "    init_window_sz: 1\n"
      "    min_blocks: 4\n"
      "\n"
      "    prefetch_workers: 4\n"
      "    max_pending_prefetch: 64\n"
      "    prefetch_ahead: 2\n"
      "\n"
      "    prefetch_cache_size: 1000\n"
      "  GSA_OnDevice: {reuse_layers: [2, 3]}\n",
      &notes);
  ASSERT_TRUE(m.ok()) << m.status().message();
  ASSERT_EQ(m->size(), 2u);
  EXPECT_EQ(m->at(0).name, "gsa");
  EXPECT_EQ(m->at(1).name, "gsa_on_device");
  EXPECT_EQ(m->at(1).gsa.reuse_layers, (std::vector<int32_t>{2, 3}));
  EXPECT_TRUE(notes.empty()) << "every key of the seed has its effect";
}

TEST(MethodConfig, GsasDefaultsAreTheSeeds) {
  const auto m = parse("ucm_sparse_config: {GSA: {}}");
  ASSERT_TRUE(m.ok());
  const GsaOptions& o = m->at(0).gsa;
  EXPECT_DOUBLE_EQ(o.sparse_ratio, 0.3);
  EXPECT_EQ(o.init_window_sz, 1);
  EXPECT_EQ(o.local_window_sz, 2);
  EXPECT_EQ(o.min_blocks, 4);
  EXPECT_EQ(o.prefetch_workers, 4);
  EXPECT_EQ(o.max_pending_prefetch, 64);
  EXPECT_EQ(o.prefetch_ahead, 2);
  EXPECT_EQ(o.prefetch_cache_size, 1000);
  EXPECT_EQ(o.representation, GsaRepresentation::hash);
  EXPECT_EQ(o.late_policy, LatePolicy::exact);
  EXPECT_TRUE(o.prefetch);
  EXPECT_FALSE(o.overlap);
}

TEST(MethodConfig, GsasOwnKeysArrive) {
  const std::pair<const char*, GsaRepresentation> names[] = {
      {"hash", GsaRepresentation::hash},       {"mean", GsaRepresentation::mean},           {"minmax", GsaRepresentation::minmax},
      {"recency", GsaRepresentation::recency}, {"mean_hash", GsaRepresentation::mean_hash}, {"oracle", GsaRepresentation::oracle}};
  for (const auto& [name, value] : names) {
    const auto m = parse(std::string("ucm_sparse_config: {GSA: {representation: ") + name +
                         ", overlap: true, prefetch: off, prefetch_ahead: 0, late_policy: best_effort}}");
    ASSERT_TRUE(m.ok()) << m.status().message();
    EXPECT_EQ(m->at(0).gsa.representation, value);
    EXPECT_TRUE(m->at(0).gsa.overlap);
    EXPECT_FALSE(m->at(0).gsa.prefetch);
    EXPECT_EQ(m->at(0).gsa.prefetch_ahead, 0);
    EXPECT_EQ(m->at(0).gsa.late_policy, LatePolicy::best_effort);
  }
  EXPECT_TRUE(options_of("    overlap: true\n    prefetch_workers: 2\n").overlap) << "shared with GSA_OnDevice";
  const auto bad = StatusCode::invalid_argument;
  expect_refused("ucm_sparse_config: {GSA: {representation: average}}", bad, {"GSA.representation", "average", "minmax"});
  expect_refused("ucm_sparse_config: {GSA: {representation: [mean]}}", bad, {"GSA.representation"});
  expect_refused("ucm_sparse_config: {GSA: {late_policy: never}}", bad, {"late_policy", "never", "best_effort"});
  expect_refused("ucm_sparse_config: {GSA: {prefetch: 7}}", bad, {"prefetch", "7", "on or off"});
}

TEST(MethodConfig, HashPlanesMustBeHashBitsWhicheverComesFirst) {
  EXPECT_EQ(options_of("    hash_planes: 256\n    hash_bits: 256\n").hash_bits, 256);
  EXPECT_EQ(options_of("    hash_planes: 128\n").hash_bits, 128) << "either says both";
  EXPECT_EQ(options_of("    hash_bits: 0\n    hash_planes: 64\n").hash_bits, 64);
  const auto bad = StatusCode::invalid_argument;
  expect_refused(section("    hash_planes: 64\n    hash_bits: 256\n"), bad, {"hash_planes", "64", "256"});
  expect_refused(section("    hash_bits: 256\n    hash_planes: 64\n"), bad, {"hash_planes", "64", "256"});
  expect_refused(section("    hash_planes: 300\n"), bad, {"hash_planes", "300", "0"});
  expect_refused(section("    hash_planes: many\n"), bad, {"hash_planes", "many"});
}

TEST(MethodConfig, DsaHasItsSection) {
  std::vector<std::string> notes;
  const auto m = parse(
      "ucm_sparse_config: {DSA: {precision: fp8, topk: 256, materialize: true, prefix_chunk_capacity: 65536}}", &notes);
  ASSERT_TRUE(m.ok()) << m.status().message();
  ASSERT_EQ(m->size(), 1u);
  EXPECT_EQ(m->at(0).name, "dsa");
  const DsaOptions& o = m->at(0).dsa;
  EXPECT_EQ(o.precision, IndexPrecision::fp8);
  EXPECT_EQ(o.topk, 256);
  EXPECT_TRUE(o.materialize);
  EXPECT_EQ(o.prefix_chunk_capacity, 65536);
  EXPECT_TRUE(notes.empty());
  expect_refused("ucm_sparse_config: {DSA: {transform: paged}}", StatusCode::invalid_argument, {"DSA.transform"});
  expect_refused("ucm_sparse_config: {DSA: {precision: fp4}}", StatusCode::invalid_argument, {"DSA.precision", "fp4", "bf16"});
  expect_refused("ucm_sparse_config: {DSA: {budget_tokens: 4}}", StatusCode::invalid_argument, {"DSA.budget_tokens"});
}

TEST(MethodConfig, UnknownKeysAndSectionsAreRefused) {
  const auto bad = StatusCode::invalid_argument;
  expect_refused(section("    hash_bit: 64\n"), bad, {"GSA_OnDevice.hash_bit"});
  expect_refused(section("    Hash_bits: 64\n"), bad, {"Hash_bits"});
  expect_refused("sparse_config: {}\n", bad, {"sparse_config", "ucm_sparse_config"});
  expect_refused("ucm_sparse_config: {ESA: {sparse_ratio: 0.3}}\n", StatusCode::unsupported, {"ESA", "DSA, GSA, GSA_OnDevice"});
  expect_refused(section("    representation: mean\n"), bad, {"GSA_OnDevice.representation"});
  expect_refused(section("    hash_bits: 64\n    hash_bits: 64\n"), bad, {"hash_bits", "twice"});
  // The indentation lost in a copy: everything at the top.
  expect_refused("ucm_sparse_config:\nGSA_OnDevice:\nhash_bits: 64\n", bad, {"ucm_sparse_config"});
}

TEST(MethodConfig, WrongTypesNameKeyAndValue) {
  const auto bad = StatusCode::invalid_argument;
  expect_refused(section("    hash_bits: lots\n"), bad, {"GSA_OnDevice.hash_bits", "lots"});
  expect_refused(section("    hash_bits: 64.5\n"), bad, {"hash_bits", "64.5"});
  expect_refused(section("    hash_bits: 99999999999\n"), bad, {"hash_bits", "99999999999"});
  expect_refused(section("    hash_bits:\n"), bad, {"hash_bits"});
  expect_refused(section("    hash_seed: -1\n"), bad, {"hash_seed", "-1"});
  expect_refused(section("    sparse_ratio: [0.3]\n"), bad, {"sparse_ratio", "0.3"});
  expect_refused(section("    average_group: 2\n"), bad, {"average_group", "2"});
  expect_refused(section("    dense_layers: 3\n"), bad, {"dense_layers", "3"});
  expect_refused(section("    dense_layers: [0, one]\n"), bad, {"dense_layers", "one"});
  expect_refused(section("    budget_tokens:\n      a: 1\n      b: 2\n"), bad, {"budget_tokens"});
  expect_refused("ucm_sparse_config:\n  GSA_OnDevice: 3\n", bad, {"GSA_OnDevice"});
  expect_refused("ucm_sparse_config: [GSA_OnDevice]\n", bad, {"ucm_sparse_config"});
}

TEST(MethodConfig, WhatIsNoYamlMapIsRefused) {
  const auto bad = StatusCode::invalid_argument;
  expect_refused("", bad, {"map"});
  expect_refused("just text\n", bad, {"map"});
  expect_refused("- a\n- b\n", bad, {"map"});
  expect_refused("ucm_sparse_config: {GSA_OnDevice: {hash_bits: 64}\n", bad, {"YAML"});
  expect_refused("a: b: c\n", bad, {"YAML"});
  expect_refused("ucm_sparse_config: *nowhere\n", bad, {"YAML"});
  expect_refused(std::string(100000, '['), bad, {"YAML"});
}

TEST(MethodConfig, FilesAreNamed) {
  const auto gone = load_method_config("/nonexistent/m.yaml", nullptr);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.status().code(), StatusCode::not_found);
  EXPECT_NE(gone.status().message().find("/nonexistent/m.yaml"), std::string::npos);

  const std::string path = ::testing::TempDir() + "method_config_test.yaml";
  std::ofstream(path) << section("    hash_bits: 64\n    hash_planes: 65\n");
  std::vector<std::string> notes;
  const auto m = load_method_config(path, &notes);
  ASSERT_FALSE(m.ok());
  EXPECT_EQ(m.status().message().rfind(path + ": ", 0), 0u) << m.status().message();
  std::remove(path.c_str());
}

}  // namespace
}  // namespace fovea
