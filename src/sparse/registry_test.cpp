#include "sparse/registry.h"

#include "device/step_memory.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

TEST(Registry, EveryListedNameCanBeMade) {
  const auto names = method_names();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names[0], "dense");
  for (const std::string& name : names) {
    MethodOptions o;
    o.name = name;
    const auto m = make_method(o);
    ASSERT_TRUE(m.ok()) << m.status().message();
    if (name == "dense") {
      EXPECT_EQ(*m, nullptr) << "dense needs no choice";
    } else {
      ASSERT_NE(*m, nullptr);
      EXPECT_EQ((*m)->name(), name);
      EXPECT_TRUE((*m)->decodes() || (*m)->prefills());
    }
  }
}

// What a method lacks is asked of the backend, whatever its device.
TEST(Registry, AMethodRefusesABackendWithoutItsOperations) {
  ModelShape shape;
  shape.num_layers = shape.num_heads = shape.kv_heads = 1;
  shape.head_dim = shape.index_dim = 64;
  shape.index_heads = 4;
  shape.index_topk = 16;
  const std::unique_ptr<Device> device = make_cpu_device();
  const OpSet gqa = {OpKind::linear, OpKind::kv_write, OpKind::hash_select, OpKind::paged_decode, OpKind::paged_prefill};
  for (const char* name : {"gsa", "dsa", "xattention", "gsa_on_device"}) {
    MethodOptions o;
    o.name = name;
    StepMemory staging(*device);
    const Status all = make_method(o).value()->attach(shape, {}, *device, staging);
    EXPECT_TRUE(all.ok()) << all.message();
    const Status s = make_method(o).value()->attach(shape, {.ops = gqa}, *device, staging);
    EXPECT_EQ(s.ok(), o.name == "gsa_on_device") << name;
    if (s.ok()) continue;
    EXPECT_TRUE(s.message().starts_with(o.name + ": device cpu has no ")) << s.message();
    EXPECT_EQ(s.message().find(';'), std::string::npos) << s.message() << " (sends nobody to another device: all have the same)";
  }
}

TEST(Registry, EveryOperationHasItsNameAndItsPlaceInASet) {
  EXPECT_STREQ(op_name(OpKind::embed), "embed");
  EXPECT_STREQ(op_name(OpKind::index_transform), "index_transform");
  const OpSet set = {OpKind::embed, OpKind::index_transform};
  EXPECT_TRUE(set.has(OpKind::embed) && set.has(OpKind::index_transform) && !set.has(OpKind::linear));
  EXPECT_TRUE(set.has_all({OpKind::embed}) && !set.has_all({OpKind::embed, OpKind::linear}) && OpSet::all().has_all(set));
}

TEST(Registry, TheOptionsReachTheMethod) {
  MethodOptions o;
  o.name = "gsa_on_device";
  o.gsa.hash_bits = 96;  // not a size of a code
  auto m = make_method(o);
  ASSERT_TRUE(m.ok());
  ModelShape shape;
  shape.num_layers = shape.num_heads = shape.kv_heads = 1;
  shape.head_dim = 64;
  const std::unique_ptr<Device> device = make_cpu_device();
  StepMemory staging(*device);
  const Status s = (*m)->attach(shape, {}, *device, staging);
  EXPECT_FALSE(s.ok());
  EXPECT_NE(s.message().find("96"), std::string::npos) << s.message();
}

TEST(Registry, AnUnknownNameIsRefusedWithTheKnownOnes) {
  for (const char* name : {"", "GSA_OnDevice", "Gsa", "dense "}) {
    MethodOptions o;
    o.name = name;
    const auto m = make_method(o);
    ASSERT_FALSE(m.ok()) << name;
    EXPECT_EQ(m.status().code(), StatusCode::invalid_argument);
    const std::string& text = m.status().message();
    EXPECT_NE(text.find("\"" + std::string(name) + "\""), std::string::npos) << text;
    for (const std::string& known : method_names()) EXPECT_NE(text.find(known), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace fovea
