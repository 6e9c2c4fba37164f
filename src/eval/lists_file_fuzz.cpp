// libFuzzer: recorded lists. What is accepted prints to a text that reads the same; no input may crash, hang or read outside
// itself. Corpus: tests/fuzz/lists_file.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "eval/lists_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto lists = fovea::parse_lists(std::string(reinterpret_cast<const char*>(bytes), size), "fuzz");
  if (!lists.ok()) return 0;
  const std::string text = fovea::print_lists(*lists);
  const auto again = fovea::parse_lists(text, "fuzz");
  FOVEA_CHECK(again.ok() && fovea::print_lists(*again) == text);
  return 0;
}
