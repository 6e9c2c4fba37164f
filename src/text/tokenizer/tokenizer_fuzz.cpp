// Bytes -> a tokenizer.json, then, after a line of "----", a text for it. Nothing may crash, hang or grow
// without bound, and what is encoded must decode to valid UTF-8, at once and token by token.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/utf8.h"

namespace {

constexpr size_t kInputBytesMax = 1 << 16;
constexpr size_t kTextBytesMax = 512;  // a regex that backtracks up to its limit on each byte must still come to an end
constexpr std::string_view kBorder = "\n----\n";

void try_text(const fovea::Tokenizer& tokenizer, std::string_view text, const fovea::EncodeOptions& options) {
  const auto ids = tokenizer.encode(text, options);
  if (!ids.ok()) {
    FOVEA_CHECK(!ids.status().message().empty());
    return;
  }
  for (const bool skip_special : {false, true}) {
    const std::string whole = tokenizer.decode(*ids, skip_special);
    FOVEA_CHECK(!fovea::utf8::first_invalid(whole));
    fovea::StreamDecoder stream(tokenizer, skip_special);
    std::string joined;
    for (const fovea::TokenId id : *ids) {
      const std::string piece = stream.push(id);
      FOVEA_CHECK(!fovea::utf8::first_invalid(piece));
      joined += piece;
    }
    FOVEA_CHECK(joined + stream.finish() == whole);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > kInputBytesMax) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t border = input.find(kBorder);
  const auto tokenizer = fovea::Tokenizer::parse(input.substr(0, border), "fuzz");
  if (!tokenizer.ok()) {
    FOVEA_CHECK(tokenizer.status().message().rfind("fuzz: ", 0) == 0);
    FOVEA_CHECK(tokenizer.status().message().find('\n') == std::string::npos);
    return 0;
  }
  if (border == std::string_view::npos) return 0;
  const std::string_view text = input.substr(border + kBorder.size()).substr(0, kTextBytesMax);
  try_text(*tokenizer.value(), text, {});
  fovea::EncodeOptions bare;
  bare.add_special_tokens = true;
  bare.parse_special = false;
  try_text(*tokenizer.value(), text, bare);
  return 0;
}
