// Vocabularies of GGUF files against llama.cpp's published vectors: NAME.gguf, texts in NAME.gguf.inp, what they become in
// NAME.gguf.out. tests/data/gguf/vocab has them cut down to the tokens that the texts can reach (tools/make_gguf_goldens.py);
// FOVEA_GGUF_VOCABS names a directory of whole ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "model/gguf_header.h"
#include "model/mapped_file.h"
#include "model/model_text.h"

namespace fovea {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::vector<std::string> texts_of(const std::string& all) {
  constexpr std::string_view kBorder = "\n__ggml_vocab_test__\n";
  std::vector<std::string> out;
  for (size_t at = 0, end; at < all.size(); at = end + kBorder.size()) {
    end = std::min(all.find(kBorder, at), all.size());
    out.push_back(all.substr(at, end - at));
  }
  return out;
}

std::vector<TokenId> ids_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<TokenId>(in), {}};
}

const std::filesystem::path kOurs = FOVEA_SOURCE_DIR "/tests/data/gguf/vocab";
bool is_ours(const std::filesystem::path& file) { return file.parent_path() == kOurs; }

std::vector<std::filesystem::path> vocabularies() {
  std::vector<std::filesystem::path> dirs{kOurs};
  if (const char* more = std::getenv("FOVEA_GGUF_VOCABS")) dirs.emplace_back(more);
  std::vector<std::filesystem::path> out;
  for (const auto& dir : dirs) {
    for (const auto& entry : std::filesystem::directory_iterator(dir)) {
      if (entry.path().extension() == ".gguf" && std::filesystem::exists(entry.path().string() + ".out"))
        out.push_back(entry.path());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

class GgufVocabulary : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GgufVocabulary, GivesThePublishedIds) {
  const auto file = MappedFile::open(GetParam(), 1);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto header = parse_gguf_header((*file)->bytes(), GetParam());
  ASSERT_TRUE(header.ok()) << header.status().message();
  const auto tokenizer = gguf_tokenizer(*header);
  if (!is_ours(GetParam()) && tokenizer.status().code() == StatusCode::unsupported) GTEST_SKIP() << tokenizer.status().message();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::vector<std::string> texts = texts_of(read(GetParam().string() + ".inp"));
  std::istringstream out(read(GetParam().string() + ".out"));
  ASSERT_GT(texts.size(), 40u);
  for (const std::string& text : texts) {
    std::string line;
    ASSERT_TRUE(std::getline(out, line));
    EncodeOptions plain;
    plain.parse_special = false;
    const auto ids = (*tokenizer)->encode(text, plain);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(*ids, ids_of(line)) << testing::PrintToString(text);
    EXPECT_EQ((*tokenizer)->decode(*ids, false), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, GgufVocabulary, testing::ValuesIn(vocabularies()), [](const auto& info) {
  std::string name = std::to_string(info.index) + "_" + info.param.stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

}  // namespace
}  // namespace fovea
