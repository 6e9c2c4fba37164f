// Specs: what they stand for, and one clear line for each way they can be wrong.
#include "sparse/registry.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

using Parts = std::vector<std::string>;

TEST(SplitOutsideBrackets, ACommaInBracketsStays) {
  EXPECT_EQ(split_outside_brackets("dense, a[b=1,c=[0,2]] ,d").value(), (Parts{"dense", "a[b=1,c=[0,2]]", "d"}));
  EXPECT_EQ(split_outside_brackets("dense").value(), Parts{"dense"});
  for (const char* text : {"", ",", "a,", ",a", "a,,b", " ", "a[b", "a]", "a[b]]", "a[b[c]", "]a["}) {
    const auto parts = split_outside_brackets(text);
    ASSERT_FALSE(parts.ok()) << text;
    EXPECT_EQ(parts.status().message().rfind("\"" + std::string(text) + "\"", 0), 0u) << parts.status().message();
  }
}

TEST(MethodSpec, ANameHasItsDefaults) {
  const auto dense = parse_method_spec("dense");
  ASSERT_TRUE(dense.ok());
  EXPECT_EQ(dense->name, "dense");
  EXPECT_EQ(dense->label, "");
  const auto hash = parse_method_spec("gsa_on_device");
  ASSERT_TRUE(hash.ok());
  EXPECT_EQ(hash->gsa.hash_bits, GsaOptions().hash_bits);
}

TEST(MethodSpec, XAttentionsKeys) {
  const auto m = parse_method_spec(
      "xattention[stride=8,block_size=64,norm=2,threshold=0.8,top_k=9,sink_blocks=2,recent_blocks=3,group_vote=true,min_context="
      "1024,"
      "thresholds=[0.9,[0.5,0.6]]]");
  ASSERT_TRUE(m.ok()) << m.status().message();
  EXPECT_EQ(m->name, "xattention");
  const XAttentionOptions& o = m->xattention;
  EXPECT_EQ(o.stride, 8);
  EXPECT_EQ(o.block_size, 64);
  EXPECT_DOUBLE_EQ(o.norm, 2);
  EXPECT_DOUBLE_EQ(o.threshold, 0.8);
  EXPECT_EQ(o.top_k, 9);
  EXPECT_EQ(o.sink_blocks, 2);
  EXPECT_EQ(o.recent_blocks, 3);
  EXPECT_TRUE(o.group_vote);
  EXPECT_EQ(o.min_context, 1024);
  EXPECT_EQ(o.thresholds, (std::vector<std::vector<double>>{{0.9}, {0.5, 0.6}}));
  for (const char* spec : {"xattention[thresholds=0.9]", "xattention[thresholds=[[[1]]]]", "xattention[threshold=much]"}) {
    const auto bad = parse_method_spec(spec);
    ASSERT_FALSE(bad.ok()) << spec;
    EXPECT_NE(bad.status().message().find("threshold"), std::string::npos) << bad.status().message();
  }
}

TEST(MethodSpec, SettingsAreTheKeysOfTheYaml) {
  const std::string spec = "gsa_on_device[hash_bits=64,share_heads=true,dense_layers=[0,3],sparse_ratio=0.25]";
  const auto m = parse_method_spec(spec);
  ASSERT_TRUE(m.ok()) << m.status().message();
  EXPECT_EQ(m->name, "gsa_on_device");
  EXPECT_EQ(m->label, spec);
  EXPECT_EQ(m->gsa.hash_bits, 64);
  EXPECT_TRUE(m->gsa.share_heads);
  EXPECT_EQ(m->gsa.dense_layers, (std::vector<int32_t>{0, 3}));
  EXPECT_DOUBLE_EQ(m->gsa.sparse_ratio, 0.25);
  EXPECT_EQ(m->gsa.hash_seed, GsaOptions().hash_seed) << "what is not named has its default";
  EXPECT_TRUE(parse_method_spec("gsa_on_device[]").ok());
}

TEST(MethodSpec, AKeyWithoutEffectIsNoted) {
  std::vector<std::string> notes;
  ASSERT_TRUE(parse_method_spec("gsa[hash_bits=64,hash_cache_size=8]", &notes).ok());
  ASSERT_EQ(notes.size(), 1u);
  for (const char* part : {"gsa[hash_bits=64,hash_cache_size=8]", "GSA.hash_cache_size has no effect"})
    EXPECT_NE(notes[0].find(part), std::string::npos) << notes[0];
}

TEST(MethodSpec, WhatIsWrongIsNamed) {
  const auto refused = [](const char* spec, std::initializer_list<const char*> parts) {
    const auto m = parse_method_spec(spec);
    ASSERT_FALSE(m.ok()) << spec;
    const std::string& text = m.status().message();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
  };
  refused("magic", {"magic", "gsa_on_device"});
  refused("", {"unknown", "gsa_on_device"});
  refused("magic[hash_bits=64]", {"magic", "gsa_on_device"});
  refused("dense[hash_bits=64]", {"dense has no settings"});
  refused("gsa_on_device[hash_bits=64", {"gsa_on_device[hash_bits=64", "]"});
  refused("gsa_on_device[hash_bits]", {"\"hash_bits\" is not key=value"});
  refused("gsa_on_device[hash_bits=]", {"\"hash_bits=\" is not key=value"});
  refused("gsa_on_device[=64]", {"\"=64\" is not key=value"});
  refused("gsa_on_device[hash_bits=64,]", {"an entry is empty"});
  refused("gsa_on_device[hash_bits=64,hash_bits=128]", {"hash_bits is given twice"});
  refused("gsa_on_device[hash_bytes=8]", {"gsa_on_device[hash_bytes=8]", "GSA_OnDevice.hash_bytes", "not a known key"});
  refused("gsa_on_device[hash_bits=many]", {"hash_bits", "many"});
  refused("gsa_on_device[hash_bits={]", {"hash_bits={", "not YAML"});
  refused("gsa_on_device[hash_bits=64]x", {"does not end"});
}

}  // namespace
}  // namespace fovea
