#include "model/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "model/model_files_test_util.h"

namespace fovea {
namespace {

std::string model(const std::string& name, size_t data_bytes, char changed = 0, size_t at = 0) {
  const std::string header = R"({")" + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(data_bytes) +
                             R"(],"data_offsets":[0,)" + std::to_string(data_bytes) + "]}}";
  std::string data(data_bytes, 'x');
  if (changed) data[at] = changed;
  return safetensors_bytes(header, data);
}

Digest digest_of(const TempDir& dir) {
  const auto d = model_digest(dir.path());
  EXPECT_TRUE(d.ok()) << d.status().message();
  return d.ok() ? *d : Digest{};
}

TEST(Digest, OfAFileIsItsSha256) {
  const TempDir dir;
  const auto d = file_digest(dir.write("t", "abc"));
  ASSERT_TRUE(d.ok());
  EXPECT_EQ(digest_hex(*d), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(file_digest(dir.file("none")).status().code(), StatusCode::not_found);
}

TEST(Digest, TellsModelsApart) {
  const TempDir dir;
  dir.write("config.json", "{}");
  std::set<Digest> seen;
  const auto fresh = [&] { return seen.insert(digest_of(dir)).second; };
  dir.write("model.safetensors", model("w", 1000));
  EXPECT_TRUE(fresh());
  EXPECT_FALSE(fresh());
  dir.write("model.safetensors", model("v", 1000));
  EXPECT_TRUE(fresh());
  dir.write("model.safetensors", model("w", 1001));
  EXPECT_TRUE(fresh());
  for (const size_t at : {0, 500, 999}) {  // a small file is hashed whole
    dir.write("model.safetensors", model("w", 1000, 'y', at));
    EXPECT_TRUE(fresh()) << at;
  }
  dir.write("config.json", "{ }");
  EXPECT_TRUE(fresh());
  EXPECT_TRUE(seen.insert(*dummy_model_digest(dir.path(), 0)).second);
  EXPECT_TRUE(seen.insert(*dummy_model_digest(dir.path(), 1)).second);
}

TEST(Digest, SamplesBigFilesAtBothEndsAndBetween) {
  const TempDir dir;
  dir.write("config.json", "{}");
  constexpr size_t kBytes = 3 << 20;
  std::set<Digest> seen;
  dir.write("model.safetensors", model("w", kBytes));
  seen.insert(digest_of(dir));
  constexpr size_t kStride = (kBytes - 64) / 4096;
  for (const size_t at : {size_t{0}, size_t{65535}, 2000 * kStride, 2000 * kStride + 63, kBytes - 65536, kBytes - 1}) {
    dir.write("model.safetensors", model("w", kBytes, 'y', at));
    EXPECT_TRUE(seen.insert(digest_of(dir)).second) << at;
  }
}

TEST(Digest, SaysWhatIsMissing) {
  const TempDir dir;
  EXPECT_THAT(model_digest(dir.path()).status().message(), testing::HasSubstr("config.json"));
  dir.write("config.json", "{}");
  EXPECT_THAT(model_digest(dir.path()).status().message(), testing::HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace fovea
