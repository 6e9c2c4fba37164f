// libFuzzer: the file of when slabs were used, as it is and with its digest made right. What is accepted comes back from the
// encoder. Corpus: tests/fuzz/store_usage.
#include "base/check.h"
#include "store/store_directory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  for (int round = 0; round < 2; ++round) {
    const fovea::StoreDirectory::Usage usage = fovea::parse_usage(bytes);
    FOVEA_CHECK(fovea::parse_usage(fovea::encode_usage(usage)) == usage);
    if (size < 16) break;
    const fovea::Digest128 digest = fovea::plain_digest(std::as_bytes(std::span(bytes).first(size - 16)));
    bytes.replace(size - 16, 16, reinterpret_cast<const char*>(digest.data()), 16);
  }
  return 0;
}
