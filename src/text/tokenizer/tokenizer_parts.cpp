#include "text/tokenizer/tokenizer_parts.h"

#include <charconv>
#include <optional>

#include <nlohmann/json.hpp>
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

// <0xNN>
std::optional<char> byte_token(std::string_view content) {
  if (content.size() != 6 || !content.starts_with("<0x") || content[5] != '>') return std::nullopt;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(content.data() + 3, content.data() + 5, byte, 16);
  if (error != std::errc() || end != content.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

std::string sentencepiece_bytes(const std::string& content) {
  if (const auto byte = byte_token(content)) return std::string(1, *byte);
  std::string out;
  for (size_t at = 0; at < content.size();) {
    const size_t mark = std::min(content.find(kWordMark, at), content.size());
    out.append(content, at, mark - at);
    if (mark < content.size()) out += ' ';
    at = mark + kWordMark.size();
  }
  return out;
}

}  // namespace

void TokenizerParts::finish_tokens() {
  Vocab special_texts;
  for (const Token& token : tokens) {
    if (token.special) special_texts.add(token.content, 0);
  }
  for (Token& token : tokens) {
    if (!token.used) continue;
    token.skipped = special_texts.find(token.bytes).has_value();
    if (decoder == Decoder::byte_level) {
      if (auto bytes = byte_alphabet::decode(token.bytes)) token.bytes = *std::move(bytes);
    } else if (decoder == Decoder::sentencepiece) {
      token.bytes = sentencepiece_bytes(token.bytes);
    }
  }
}

std::string shown_token(std::string_view content) {
  constexpr size_t kShown = 80;
  const std::string whole = nlohmann::json(content).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return whole.size() <= kShown ? whole : whole.substr(0, kShown) + "...\"";
}

}  // namespace fovea
