#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "model/model_files_test_util.h"

namespace fovea {
namespace {

using testing::HasSubstr;

struct BadHeader {
  const char* name;
  std::string json;
  uint64_t data_bytes;
  std::vector<std::string> says;  // all of these are in the one line
};

const std::string kTwo =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]}})";

std::string one(const std::string& fields) { return R"({"w":{)" + fields + "}}"; }

const BadHeader kBadHeaders[] = {
    {"empty", "", 0, {"does not begin with '{'"}},
    {"space_first", " {}", 0, {"does not begin with '{'"}},
    {"array", "[]", 0, {"does not begin with '{'"}},
    {"cut", R"({"w":{"dtype":"F32")", 8, {"not valid JSON", "byte"}},
    {"two_values", "{}{}", 0, {"not valid JSON"}},
    {"bad_utf8", "{\"\xff\":1}", 0, {"not valid JSON"}},
    {"entry_is_number", R"({"w":3})", 0, {"\"w\"", "the number 3"}},
    {"entry_is_array", R"({"w":[]})", 0, {"\"w\"", "an array"}},
    {"entry_is_null", R"({"w":null})", 0, {"\"w\"", "null"}},
    {"metadata_number", R"({"__metadata__":{"format":1}})", 0, {"__metadata__", "\"format\"", "1"}},
    {"metadata_list", R"({"__metadata__":[]})", 0, {"__metadata__"}},
    {"metadata_twice", R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__", "twice"}},
    {"metadata_key_twice", R"({"__metadata__":{"a":"","a":""}})", 0, {"\"a\"", "twice"}},
    {"tensor_twice",
     R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
     1,
     {"\"w\"", "twice"}},
    {"field_twice", one(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), 1, {"dtype", "twice"}},
    {"unknown_field", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1])"), 1, {"\"strides\""}},
    {"no_dtype", one(R"("shape":[1],"data_offsets":[0,1])"), 1, {"\"w\"", "dtype", "missing"}},
    {"no_shape", one(R"("dtype":"U8","data_offsets":[0,1])"), 1, {"\"w\"", "shape", "missing"}},
    {"no_offsets", one(R"("dtype":"U8","shape":[1])"), 1, {"\"w\"", "data_offsets", "missing"}},
    {"dtype_number", one(R"("dtype":8,"shape":[1],"data_offsets":[0,1])"), 1, {"dtype", "the number 8"}},
    {"shape_text", one(R"("dtype":"U8","shape":"1","data_offsets":[0,1])"), 1, {"shape", "\"1\""}},
    {"shape_negative", one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1, {"shape", "-1"}},
    {"shape_float", one(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), 1, {"shape", "1.0"}},
    {"shape_true", one(R"("dtype":"U8","shape":[true],"data_offsets":[0,1])"), 1, {"shape", "true"}},
    {"shape_nested", one(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])"), 1, {"shape", "an array"}},
    {"shape_rank",
     one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"),
     1,
     {"shape", "16 dimensions"}},
    {"shape_64_bits",
     one(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])"),
     1,
     {"shape", "9223372036854775808"}},
    {"shape_65_bits",
     one(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1])"),
     1,
     {"shape", "18446744073709551616"}},
    // 2^32 * 2^32 elements are 0 modulo 2^64: an unchecked product would agree with the offsets.
    {"shape_overflow",
     one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
     0,
     {"[4294967296, 4294967296]", "64 bits"}},
    {"bytes_overflow",
     one(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])"),
     0,
     {"[4611686018427387904]", "64 bits"}},
    {"half_a_byte", one(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), 1, {"[3]", "F4"}},
    {"offsets_one", one(R"("dtype":"U8","shape":[1],"data_offsets":[1])"), 1, {"data_offsets", "1 values, not 2"}},
    {"offsets_three", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 1, {"3 values, not 2"}},
    {"offsets_backward", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1, {"\"w\"", "[1, 0]"}},
    {"offsets_beyond", one(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])"), 8, {"\"w\"", "[0, 9]", "8 bytes"}},
    {"size_short", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4, {"needs 8 bytes", "hold 4"}},
    {"size_long", one(R"("dtype":"BF16","shape":[2],"data_offsets":[0,8])"), 8, {"needs 4 bytes", "hold 8"}},
    {"scalar_empty", one(R"("dtype":"F32","shape":[],"data_offsets":[0,0])"), 0, {"needs 4 bytes", "hold 0"}},
    {"gap_first", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), 2, {"\"w\"", "gap after byte 0"}},
    {"gap",
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
     3,
     {"\"b\"", "begin at 2", "gap after byte 1"}},
    {"overlap",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
     3,
     {"\"b\"", "begin at 1", "inside another tensor", "2"}},
    {"shared",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
     2,
     {"inside another tensor"}},
    {"tail", kTwo, 21, {"cover 20 of 21 bytes"}},
    {"no_tensor_but_data", "{}", 1, {"cover 0 of 1 bytes"}},
    {"name_on_one_line", "{\"w\\n\":3}", 0, {"\"w\\x0a\""}},
};

TEST(SafetensorsHeader, RefusesWithOneLine) {
  for (const BadHeader& bad : kBadHeaders) {
    SCOPED_TRACE(bad.name);
    const auto header = parse_safetensors_header(bad.json, bad.data_bytes, "dir/m.safetensors");
    ASSERT_FALSE(header.ok());
    EXPECT_EQ(header.status().code(), StatusCode::corrupt);
    const std::string& line = header.status().message();
    EXPECT_THAT(line, testing::StartsWith("dir/m.safetensors: "));
    EXPECT_EQ(line.find('\n'), std::string::npos);
    for (const std::string& part : bad.says) EXPECT_THAT(line, HasSubstr(part));
  }
}

TEST(SafetensorsHeader, DepthIsBounded) {
  const std::string deep = "{\"w\":" + std::string(1'000'000, '[');
  EXPECT_FALSE(parse_safetensors_header(deep, 0, "f").ok());
  const std::string objects = [] {
    std::string s;
    for (int i = 0; i < 100'000; ++i) s += "{\"w\":";
    return s;
  }();
  EXPECT_FALSE(parse_safetensors_header(objects, 0, "f").ok());
}

TEST(SafetensorsHeader, TakesWhatTheFormatAllows) {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"b":{"data_offsets":[8,20],"shape":[2,3],"dtype":"BF16"},)"
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"none":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]},)"
      R"("scalar":{"dtype":"F64","shape":[],"data_offsets":[20,28]},)"
      R"("new":{"dtype":"Q3","shape":[5],"data_offsets":[28,30]}}   )";
  const auto header = parse_safetensors_header(json, 30, "f");
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->tensors.size(), 5u);
  EXPECT_EQ(header->tensors.at("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header->tensors.at("b").begin, 8u);
  EXPECT_EQ(header->tensors.at("b").end, 20u);
  EXPECT_TRUE(parse_safetensors_header("{}", 0, "f").ok());
}

std::string data_of(int bytes) {
  std::string data;
  for (int i = 0; i < bytes; ++i) data += static_cast<char>(i + 1);
  return data;
}

TEST(SafetensorsFile, MapsTensors) {
  const TempDir dir;
  const std::string data = data_of(20);
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", safetensors_bytes(kTwo, data)));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const TensorInfo* b = (*file)->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_TRUE(b->readable);
  EXPECT_EQ(b->dtype, DType::bf16);
  EXPECT_EQ(b->bytes, 12u);
  EXPECT_EQ(std::memcmp(b->data, data.data() + 8, 12), 0);
  EXPECT_EQ((*file)->find("c"), nullptr);
  EXPECT_EQ((*file)->tensors().size(), 2u);
}

TEST(SafetensorsFile, AlignsWhatTheFileDoesNot) {
  for (int pad = 0; pad < 8; ++pad) {
    SCOPED_TRACE(pad);
    const TempDir dir;
    const std::string data = data_of(20);
    const std::string header = kTwo + std::string(static_cast<size_t>(pad), ' ');
    const auto file = SafetensorsFile::open(dir.write("m.safetensors", safetensors_bytes(header, data)));
    ASSERT_TRUE(file.ok()) << file.status().message();
    const TensorInfo* a = (*file)->find("a");
    const TensorInfo* b = (*file)->find("b");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a->data) % 4, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data) % 2, 0u);
    EXPECT_EQ(std::memcmp(a->data, data.data(), 8), 0);
    EXPECT_EQ(std::memcmp(b->data, data.data() + 8, 12), 0);
  }
}

TEST(SafetensorsFile, RefusesEveryTruncation) {
  const TempDir dir;
  const std::string whole = safetensors_bytes(kTwo, data_of(20));
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto file = SafetensorsFile::open(dir.write("m.safetensors", whole.substr(0, size)));
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_EQ(file.status().code(), StatusCode::corrupt) << size;
    EXPECT_THAT(file.status().message(), HasSubstr(dir.path()));
  }
}

TEST(SafetensorsFile, RefusesHugeHeaderLengths) {
  const TempDir dir;
  for (const uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{7}}) {
    const auto file = SafetensorsFile::open(dir.write("m.safetensors", le64(length) + "{}"));
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(file.status().message(), HasSubstr("header length " + std::to_string(length)));
  }
  const auto zero = SafetensorsFile::open(dir.write("m.safetensors", le64(0) + "{}"));
  ASSERT_FALSE(zero.ok());
}

TEST(SafetensorsFile, NamesWhatIsNotAFile) {
  const TempDir dir;
  const auto missing = SafetensorsFile::open(dir.file("none"));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::not_found);
  EXPECT_THAT(missing.status().message(), HasSubstr(dir.file("none")));
  EXPECT_FALSE(SafetensorsFile::open(dir.path()).ok());
}

const std::string kA = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
const std::string kB = R"({"b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})";

class Shards : public testing::Test {
 protected:
  void SetUp() override {
    dir_.write("1.safetensors", safetensors_bytes(kA, data_of(8)));
    dir_.write("2.safetensors", safetensors_bytes(kB, data_of(8)));
  }
  std::string error_of(const std::string& index) {
    dir_.write("model.safetensors.index.json", index);
    const auto map = SafetensorsSource::open(dir_.path());
    if (map.ok()) return "";
    EXPECT_EQ(map.status().message().find('\n'), std::string::npos);
    return map.status().message();
  }
  TempDir dir_;
};

TEST_F(Shards, Open) {
  ASSERT_EQ(error_of(R"({"metadata":{"total_size":16},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})"), "");
  const auto map = SafetensorsSource::open(dir_.path());
  EXPECT_EQ((*map)->names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ((*map)->find("a")->bytes + (*map)->find("b")->bytes, 16u);
  const int64_t two[] = {2}, one_by_two[] = {1, 2}, one[] = {1};
  EXPECT_TRUE((*map)->get("a", two).ok());
  const auto wrong = (*map)->get("a", one_by_two);
  EXPECT_EQ(wrong.status().code(), StatusCode::corrupt);
  EXPECT_EQ(wrong.status().message(), dir_.file("1.safetensors") + ": tensor \"a\": shape [2] is not the expected [1, 2]");
  const auto dtype = (*map)->get("b", one);
  EXPECT_EQ(dtype.status().code(), StatusCode::unsupported);
  EXPECT_EQ(dtype.status().message(), dir_.file("2.safetensors") + ": tensor \"b\": dtype \"I64\" is not one of F32, F16, BF16");
  const auto missing = (*map)->get("c", one);
  EXPECT_EQ(missing.status().code(), StatusCode::not_found);
  EXPECT_EQ(missing.status().message(), dir_.file("model.safetensors.index.json") + ": tensor \"c\" is missing");
}

TEST_F(Shards, RefusesBadIndexes) {
  const std::string file = dir_.file("model.safetensors.index.json");
  EXPECT_THAT(error_of("{}"), HasSubstr(file + ": field weight_map"));
  EXPECT_THAT(error_of("[]"), HasSubstr(file));
  EXPECT_THAT(error_of(R"({"weight_map":{}})"), HasSubstr("weight_map"));
  EXPECT_THAT(error_of(R"({"weight_map":{"a":1}})"), HasSubstr("\"a\": 1"));
  EXPECT_THAT(error_of(R"({"weight_map":{"a":"1.safetensors","a":"1.safetensors"}})"), HasSubstr("twice"));
  EXPECT_THAT(error_of(R"({"weight_map":{"a":"3.safetensors"}})"), HasSubstr("shard \"3.safetensors\""));
  EXPECT_THAT(error_of(R"({"weight_map":{"c":"1.safetensors"}})"), HasSubstr("tensor \"c\" is not in its shard \"1.safetensors\""));
}

TEST_F(Shards, RefusesPathsOutOfTheDirectory) {
  for (const char* name : {"../1.safetensors", "/etc/passwd", "..", ".", "", "x/1.safetensors", "1.safetensors\\u0000"}) {
    const std::string error = error_of(R"({"weight_map":{"a":")" + std::string(name) + R"("}})");
    EXPECT_THAT(error, HasSubstr("is not the name of a file in the model's directory")) << name;
  }
}

TEST_F(Shards, RefusesATensorInTwoShards) {
  dir_.write("2.safetensors", safetensors_bytes(kA, data_of(8)));
  EXPECT_THAT(error_of(R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})"),
              HasSubstr("2.safetensors: tensor \"a\" is in " + dir_.file("1.safetensors") + " too"));
}

TEST_F(Shards, OneFileComesFirstAndNeitherIsAnError) {
  EXPECT_THAT(SafetensorsSource::open(dir_.path()).status().message(), HasSubstr("neither model.safetensors nor"));
  dir_.write("model.safetensors", safetensors_bytes(kTwo, data_of(20)));
  dir_.write("model.safetensors.index.json", "{}");
  const auto map = SafetensorsSource::open(dir_.path());
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_EQ((*map)->find("a")->bytes + (*map)->find("b")->bytes, 20u);
}

TEST(SafetensorsSource, OpensTheShippedModel) {
  const auto map = SafetensorsSource::open(std::string(FOVEA_SOURCE_DIR) + "/models/tiny-gqa");
  ASSERT_TRUE(map.ok()) << map.status().message();
  const int64_t shape[] = {4096, 384};
  EXPECT_TRUE((*map)->get("model.embed_tokens.weight", shape).ok());
}

}  // namespace
}  // namespace fovea
