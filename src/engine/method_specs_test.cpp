// Methods that runs name: held once under their spec, and refused with what could be used instead.
#include <fovea/method_specs.h>

#include <gtest/gtest.h>

namespace fovea {
namespace {

TEST(HoldMethod, ASpecIsHeldOnceUnderItsText) {
  EngineOptions o;
  const std::string spec = "gsa_on_device[hash_bits=64]";
  for (int i = 0; i < 2; ++i) {
    const Status s = hold_method("--decode-method", spec, false, &o);
    ASSERT_TRUE(s.ok()) << s.message();
    ASSERT_TRUE(hold_method("--decode-method", "gsa_on_device", false, &o).ok());
    ASSERT_TRUE(hold_method("--prefill-method", "dense", true, &o).ok());
  }
  ASSERT_EQ(o.methods.size(), 3u);
  EXPECT_EQ(o.methods[1].label, spec);
  EXPECT_EQ(o.methods[1].gsa.hash_bits, 64);
  EXPECT_EQ(o.methods[2].name, "gsa_on_device");
  EXPECT_EQ(o.methods[2].gsa.hash_bits, GsaOptions().hash_bits);
}

TEST(HoldMethod, WhatAFileConfiguredStays) {
  EngineOptions o;
  o.methods.push_back({.name = "gsa_on_device"});
  o.methods.back().gsa.hash_bits = 256;
  ASSERT_TRUE(hold_method("--decode-method", "gsa_on_device", false, &o).ok());
  ASSERT_EQ(o.methods.size(), 2u);
  EXPECT_EQ(o.methods[1].gsa.hash_bits, 256);
}

TEST(NotesOfSpecs, NameWhatHasNoEffect) {
  const std::vector<std::string> specs = {
      "dense", "auto", "gsa[late_policy=exact]", "gsa[", "gsa_on_device[hash_cache_size=9]"};
  const std::vector<std::string> notes = notes_of_specs(specs);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("hash_cache_size"), std::string::npos) << notes[0];
}

TEST(HoldMethod, WhatCannotServeIsNamedWithWhatCan) {
  EngineOptions o;
  EXPECT_EQ(hold_method("--prefill-method", "gsa_on_device", true, &o)
                .message()
                .rfind("--prefill-method gsa_on_device: it does not serve prompts; these do: dense", 0),
            0u);
  const std::string unknown = hold_method("--decode-method", "magic", false, &o).message();
  for (const char* part : {"--decode-method", "magic", "gsa_on_device"})
    EXPECT_NE(unknown.find(part), std::string::npos) << unknown;
}

}  // namespace
}  // namespace fovea
