// libFuzzer: a GGUF file. What is accepted must keep the promises of gguf_header.h, and its vocabulary, chat template and numbers
// may be asked for; no input may crash, hang or read outside itself. Corpus: tests/fuzz/gguf.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/gguf_header.h"
#include "model/model_text.h"

namespace {

constexpr size_t kInputBytesMax = 1 << 16;

void check(const fovea::Status& s) { FOVEA_CHECK(s.message().find('\n') == std::string::npos); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size > kInputBytesMax) return 0;
  const std::string_view file(reinterpret_cast<const char*>(bytes), size);
  const auto header = fovea::parse_gguf_header(file, "fuzz");
  check(header.status());
  if (!header.ok()) return 0;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const fovea::GgufTensor& t : header->tensors) ranges.emplace_back(t.begin, t.begin + t.bytes);
  std::sort(ranges.begin(), ranges.end());
  uint64_t end = header->data_begin;
  for (const auto& [begin, past] : ranges) {
    FOVEA_CHECK(begin >= end && past > begin && past <= size);
    end = past;
  }
  for (const auto& [key, value] : header->metadata) {
    check(header->integer(key, 0, 100).status());
    check(header->number(key, 0, 100).status());
    check(header->boolean(key).status());
    check(header->text(key).status());
    check(header->strings(key).status());
    check(header->integers(key).status());
    check(header->floats(key).status());
  }
  const auto tokenizer = fovea::gguf_tokenizer(*header);
  check(tokenizer.status());
  if (tokenizer.ok()) {
    const auto ids = (*tokenizer)->encode("The 3 hähne\n\t<s>  x");
    check(ids.status());
    if (ids.ok()) static_cast<void>((*tokenizer)->decode(*ids));
  }
  check(fovea::gguf_chat_template(*header).status());
  return 0;
}
