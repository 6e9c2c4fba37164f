// libFuzzer: 8 bytes say how much data there would be, the rest is the header. What is accepted must keep the
// promises of safetensors.h; no input may crash, hang or read outside itself. Corpus: tests/fuzz/safetensors.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  uint64_t data_bytes = 0;
  if (size < sizeof data_bytes) return 0;
  std::memcpy(&data_bytes, bytes, sizeof data_bytes);
  const std::string_view json(reinterpret_cast<const char*>(bytes) + sizeof data_bytes, size - sizeof data_bytes);
  const auto header = fovea::parse_safetensors_header(json, data_bytes, "fuzz");
  if (!header.ok()) {
    FOVEA_CHECK(header.status().message().find('\n') == std::string::npos);
    return 0;
  }
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, entry] : header->tensors) ranges.emplace_back(entry.begin, entry.end);
  std::sort(ranges.begin(), ranges.end());
  uint64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    FOVEA_CHECK(begin == covered && end >= begin);
    covered = end;
  }
  FOVEA_CHECK(covered == data_bytes);
  return 0;
}
