// libFuzzer: a retrieval set. What is accepted has an id, a length and questions with texts; no input may crash, hang or read
// outside itself. Corpus: tests/fuzz/retrieval_set.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "eval/retrieval_set.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  const auto set = fovea::parse_retrieval_set(text, "fuzz");
  if (!set.ok()) return 0;
  const auto kept = fovea::filter_retrieval_set(*set, {.documents = 1});
  if (!kept.ok()) return 0;
  FOVEA_CHECK(!kept->empty() && kept->size() <= set->size());
  for (const fovea::RetrievalDocument& d : *kept) FOVEA_CHECK(!d.questions.empty());
  return 0;
}
