// libFuzzer: any bytes as a model.safetensors.index.json. What is accepted names plain files only, each with a tensor; an
// error is one line. Corpus: tests/fuzz/safetensors_index.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto shards = fovea::parse_safetensors_index({reinterpret_cast<const char*>(bytes), size}, "fuzz");
  if (!shards.ok()) {
    FOVEA_CHECK(shards.status().message().find('\n') == std::string::npos);
    return 0;
  }
  FOVEA_CHECK(!shards->empty());
  for (const auto& [shard, tensors] : *shards) {
    FOVEA_CHECK(!shard.empty() && shard != ".." && shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos);
    FOVEA_CHECK(!tensors.empty());
  }
  return 0;
}
