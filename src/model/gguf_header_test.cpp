#include "model/gguf_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/gguf_test_util.h"

namespace fovea {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<GgufHeader> parse(const std::string& bytes) { return parse_gguf_header(bytes, "f"); }

// The error line, which leads with the file and is one line.
std::string error(const std::string& bytes) {
  const auto header = parse(bytes);
  EXPECT_FALSE(header.ok());
  if (header.ok()) return "";
  const std::string& message = header.status().message();
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_EQ(message.rfind("f: ", 0), 0u) << message;
  EXPECT_EQ(message.find("f: f:"), std::string::npos) << message;
  return message;
}

TEST(GgufHeader, ReadsEveryKindOfValue) {
  GgufFileText file;
  file.entry("a.u8", GgufType::u8, raw<uint8_t>(200)).entry("a.i8", GgufType::i8, raw<int8_t>(-3));
  file.entry("a.u16", GgufType::u16, raw<uint16_t>(60000)).entry("a.i16", GgufType::i16, raw<int16_t>(-300));
  file.u32("a.u32", 4000000000u).entry("a.i32", GgufType::i32, raw<int32_t>(-70000));
  file.entry("a.u64", GgufType::u64, raw<uint64_t>(1ull << 62)).entry("a.i64", GgufType::i64, raw<int64_t>(-1));
  file.f32("a.f32", 0.5f).entry("a.f64", GgufType::f64, raw(0.25)).flag("a.bool", true).text("a.text", "b\nc");
  file.strings("a.strings", {"x", "", "zz"}).numbers<float>("a.floats", GgufType::f32, {1, -2});
  file.numbers<int32_t>("a.ints", GgufType::i32, {7, -8});
  const std::string bytes = file.bytes();
  const auto h = parse(bytes);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const auto integer = [&](const char* key) { return h->integer(key, INT64_MIN, INT64_MAX).value().value(); };
  EXPECT_EQ(integer("a.u8"), 200);
  EXPECT_EQ(integer("a.i8"), -3);
  EXPECT_EQ(integer("a.u16"), 60000);
  EXPECT_EQ(integer("a.i16"), -300);
  EXPECT_EQ(integer("a.u32"), 4000000000);
  EXPECT_EQ(integer("a.i32"), -70000);
  EXPECT_EQ(integer("a.u64"), 1ll << 62);
  EXPECT_EQ(integer("a.i64"), -1);
  EXPECT_EQ(h->number("a.f32", 0, 1).value(), 0.5);
  EXPECT_EQ(h->number("a.f64", 0, 1).value(), 0.25);
  EXPECT_EQ(h->number("a.u8", 0, 1000).value(), 200);
  EXPECT_EQ(h->boolean("a.bool").value(), true);
  EXPECT_EQ(h->text("a.text").value(), "b\nc");
  EXPECT_THAT(h->strings("a.strings").value(), ElementsAre("x", "", "zz"));
  EXPECT_THAT(h->floats("a.floats").value(), ElementsAre(1, -2));
  EXPECT_THAT(h->integers("a.ints").value(), ElementsAre(7, -8));
  EXPECT_THAT(h->integers("a.u8").value(), ElementsAre(200));
  EXPECT_FALSE(h->integer("none", 0, 1).value());
  EXPECT_TRUE(h->text("none").value().empty());

  EXPECT_EQ(h->integer("a.u8", 0, 100).status().message(), "f: key \"a.u8\" is 200, expected an integer from 0 to 100");
  EXPECT_THAT(h->integer("a.text", 0, 1).status().message(), HasSubstr("\"a.text\" is \"b\\x0ac\", expected an integer"));
  EXPECT_THAT(h->integer("a.strings", 0, 9).status().message(), HasSubstr("is an array of 3"));
  EXPECT_THAT(h->integer("a.f32", 0, 1).status().message(), HasSubstr("expected an integer"));
  EXPECT_THAT(h->text("a.bool").status().message(), HasSubstr("is true, expected a string"));
  EXPECT_THAT(h->boolean("a.u8").status().message(), HasSubstr("expected true or false"));
  EXPECT_FALSE(h->strings("a.floats").ok());
  EXPECT_FALSE(h->integers("a.strings").ok());
  EXPECT_FALSE(h->floats("a.strings").ok());
  EXPECT_THAT(h->required_integer("none", 0, 1).status().message(), HasSubstr("key \"none\" is missing"));
}

TEST(GgufHeader, PlacesTensorsOfBlocks) {
  for (const uint32_t version : {2u, 3u}) {
    GgufFileText file;
    file.version = version;
    file.alignment = 64;
    file.u32("general.alignment", 64);
    file.tensor("a", {2, 64}, 8, std::string(2 * 2 * 34, 'a')).tensor("b", {3}, 0, std::string(12, 'b'));
    const std::string bytes = file.bytes();
    const auto h = parse(bytes);
    ASSERT_TRUE(h.ok()) << h.status().message();
    ASSERT_EQ(h->tensors.size(), 2u);
    EXPECT_THAT(h->tensors[0].shape, ElementsAre(2, 64));
    EXPECT_EQ(h->tensors[0].type->name, "Q8_0");
    EXPECT_EQ(h->tensors[0].bytes, 136u);
    EXPECT_EQ(bytes.substr(h->tensors[0].begin, 136), std::string(136, 'a'));
    EXPECT_EQ(bytes.substr(h->tensors[1].begin, 12), std::string(12, 'b'));
    EXPECT_EQ(h->data_begin % 64, 0u);
  }
}

TEST(GgufHeader, KnowsTheSizeOfEveryWeightType) {
  for (int i = 0; i <= static_cast<int>(WeightType::mxfp4); ++i) {
    const auto type = static_cast<WeightType>(i);
    bool found = false;
    for (uint32_t number = 0; number < 64; ++number) {
      GgufFileText file;
      file.tensor("t", {1, 256}, number, std::string(1024, 'x'));
      const std::string bytes = file.bytes();
      const auto h = parse(bytes);
      if (!h.ok() || h->tensors[0].type->weight != type) continue;
      found = true;
      EXPECT_EQ(h->tensors[0].type->block, weight_format(type).block);
      EXPECT_EQ(h->tensors[0].type->bytes, weight_format(type).bytes);
    }
    EXPECT_TRUE(found) << weight_type_name(type);
  }
}

// Every prefix of a good file is refused, and so is what its front does not describe.
TEST(GgufHeader, RefusesTruncatedFiles) {
  GgufFileText file;
  file.text("general.architecture", "llama").strings("s", {"a", "bc"}).floats("t", {2, 2}, {1, 2, 3, 4});
  const std::string whole = file.bytes();
  ASSERT_TRUE(parse(whole).ok());
  const size_t last = whole.size() - 32 + 16;  // the data, without what pads it
  for (size_t bytes = 0; bytes < last; ++bytes) EXPECT_FALSE(parse(whole.substr(0, bytes)).ok()) << bytes;
  EXPECT_THAT(error(whole.substr(0, last - 1)), HasSubstr("tensor \"t\": 16 bytes at offset 0 exceed the 15 of data"));
  EXPECT_THAT(error(whole.substr(0, 55)), HasSubstr("key \"general.architecture\" takes 4 bytes, but only 3"));
}

TEST(GgufHeader, RefusesWhatIsNoGguf) {
  GgufFileText file;
  file.magic = "GGML";
  EXPECT_THAT(error(file.bytes()), HasSubstr("does not begin with \"GGUF\""));
  file.magic = "GGUF";
  file.version = 1;
  EXPECT_THAT(error(file.bytes()), HasSubstr("version 1 is not supported"));
  file.version = 3u << 24;
  EXPECT_THAT(error(file.bytes()), HasSubstr("big endian"));
}

TEST(GgufHeader, RefusesHugeCounts) {
  const std::string front = "GGUF" + raw<uint32_t>(3);
  const std::string pad(64, '\0');
  EXPECT_THAT(error(front + raw<uint64_t>(0) + raw(UINT64_MAX) + pad), HasSubstr("keys do not fit"));
  EXPECT_THAT(error(front + raw(UINT64_MAX) + raw<uint64_t>(0) + pad), HasSubstr("tensors do not fit"));
  GgufFileText file;
  file.entry("k", GgufType::string, raw(UINT64_MAX));
  EXPECT_THAT(error(file.bytes()), HasSubstr("key \"k\" takes 18446744073709551615 bytes"));
  for (const GgufType type : {GgufType::u8, GgufType::f64, GgufType::string}) {
    GgufFileText array;
    array.entry("k", GgufType::array, raw(type) + raw(UINT64_MAX / 4));
    EXPECT_THAT(error(array.bytes()), HasSubstr("key \"k\": an array of 4611686018427387903 does not fit"));
  }
}

TEST(GgufHeader, RefusesWrongValues) {
  const auto entry = [](GgufType type, const std::string& value) {
    GgufFileText file;
    file.entry("k", type, value);
    return error(file.bytes());
  };
  EXPECT_THAT(entry(static_cast<GgufType>(13), "x"), HasSubstr("key \"k\": value type 13 is not known"));
  EXPECT_THAT(entry(GgufType::array, raw<uint32_t>(77) + raw<uint64_t>(0)), HasSubstr("value type 77 is not known"));
  EXPECT_THAT(entry(GgufType::array, raw(GgufType::array) + raw<uint64_t>(0)), HasSubstr("array of arrays"));
  EXPECT_THAT(entry(GgufType::boolean, "\2"), HasSubstr("neither 0 nor 1"));
  EXPECT_THAT(error(GgufFileText().u32("k", 1).u32("k", 1).bytes()), HasSubstr("key \"k\" is there twice"));
  EXPECT_THAT(error(GgufFileText().u32("", 1).bytes()), HasSubstr("key 0: a name of 0 bytes"));
  EXPECT_THAT(error(GgufFileText().u32("general.alignment", 24).bytes()), HasSubstr("expected a power of two"));
  EXPECT_THAT(error(GgufFileText().u32("general.alignment", 0).bytes()), HasSubstr("expected an integer from 8"));
  EXPECT_THAT(error(GgufFileText().text("general.alignment", "32").bytes()), HasSubstr("general.alignment"));
}

TEST(GgufHeader, RefusesWrongTensors) {
  const auto tensor = [](const std::vector<uint64_t>& shape, uint32_t type) {
    GgufFileText file;
    file.tensor("t\n", shape, type, std::string(64, 'x'));
    return error(file.bytes());
  };
  EXPECT_THAT(tensor({4}, 99), HasSubstr("tensor \"t\\x0a\": tensor type 99 is not known"));
  EXPECT_THAT(tensor({4}, 4), HasSubstr("tensor type 4 is not known"));
  EXPECT_THAT(tensor({}, 0), HasSubstr("0 dimensions are not 1 to 4"));
  EXPECT_THAT(tensor({1, 1, 1, 1, 1}, 0), HasSubstr("5 dimensions"));
  EXPECT_THAT(tensor({4, 0}, 0), HasSubstr("dimension 0 of 0 is impossible"));
  EXPECT_THAT(tensor({1ull << 32, 1ull << 32}, 0), HasSubstr("is impossible"));
  EXPECT_THAT(tensor({UINT64_MAX}, 0), HasSubstr("is impossible"));
  EXPECT_THAT(tensor({2, 33}, 8), HasSubstr("rows of 33 are not whole blocks of Q8_0"));
  EXPECT_THAT(tensor({2, 128}, 12), HasSubstr("rows of 128 are not whole blocks of Q4_K"));
  GgufFileText twice;
  twice.floats("t", {1}, {1}).floats("t", {1}, {1});
  EXPECT_THAT(error(twice.bytes()), HasSubstr("tensor \"t\" is there twice"));
}

TEST(GgufHeader, RefusesTensorsThatOverlapOrAreNotAligned) {
  GgufFileText file;
  file.floats("first", {8}, std::vector<float>(8)).floats("second", {8}, std::vector<float>(8));
  const std::string good = file.bytes();
  ASSERT_TRUE(parse(good).ok());
  const size_t offset = good.find("second") + 6 + 4 + 8 + 4;
  ASSERT_EQ(good.substr(offset, 8), raw<uint64_t>(32));
  const auto moved = [&](uint64_t to) { return std::string(good).replace(offset, 8, raw(to)); };
  EXPECT_THAT(error(moved(0)), HasSubstr("overlaps tensor"));
  EXPECT_THAT(error(moved(31)), HasSubstr("tensor \"second\": offset 31 is not aligned"));
  EXPECT_THAT(error(moved(64)), HasSubstr("32 bytes at offset 64 exceed"));
  EXPECT_THAT(error(moved(UINT64_MAX - 31)), HasSubstr("exceed the"));
}

}  // namespace
}  // namespace fovea
