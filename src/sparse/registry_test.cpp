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
