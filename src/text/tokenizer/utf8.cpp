#include "text/tokenizer/utf8.h"

#include <array>

namespace fovea::utf8 {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

bool is_continuation(uint8_t b) { return (b & 0xC0) == 0x80; }

// Bounds of the second byte, which rule out overlong forms, surrogates and what lies above U+10FFFF.
bool second_fits(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return is_continuation(second);
  }
}

}  // namespace

Step step(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {Step::Kind::valid, 1, lead};
  uint8_t length = 0;
  if (lead >= 0xC2 && lead <= 0xDF) length = 2;
  if (lead >= 0xE0 && lead <= 0xEF) length = 3;
  if (lead >= 0xF0 && lead <= 0xF4) length = 4;
  if (length == 0) return {Step::Kind::invalid, 1, 0};
  char32_t codepoint = lead & (0x7F >> length);
  for (uint8_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Step::Kind::cut, i, 0};
    if (i == 1 ? !second_fits(lead, at(1)) : !is_continuation(at(i))) return {Step::Kind::invalid, i, 0};
    codepoint = codepoint << 6 | (at(i) & 0x3F);
  }
  return {Step::Kind::valid, length, codepoint};
}

std::optional<size_t> first_invalid(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (static_cast<uint8_t>(bytes[at]) < 0x80) {
      ++at;
      continue;
    }
    const Step s = step(bytes.substr(at));
    if (s.kind != Step::Kind::valid) return at;
    at += s.length;
  }
  return std::nullopt;
}

void append(std::string& out, char32_t c) {
  constexpr uint8_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  const int tails = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  out += static_cast<char>(kLead[tails] | c >> 6 * tails);
  for (int i = tails - 1; i >= 0; --i) out += static_cast<char>(0x80 | (c >> 6 * i & 0x3F));
}

std::u32string decode(std::string_view valid_utf8) {
  std::u32string out;
  out.reserve(valid_utf8.size());
  while (!valid_utf8.empty()) {
    const Step s = step(valid_utf8);
    out += s.kind == Step::Kind::valid ? s.codepoint : kReplacement;
    valid_utf8.remove_prefix(s.length);
  }
  return out;
}

size_t append_lossy(std::string& out, std::string_view bytes, bool keep_cut) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Step s = step(bytes.substr(at));
    if (s.kind == Step::Kind::valid) {
      out.append(bytes, at, s.length);
    } else if (s.kind == Step::Kind::cut && keep_cut) {
      return at;
    } else {
      append(out, kReplacement);
    }
    at += s.length;
  }
  return at;
}

}  // namespace fovea::utf8

namespace fovea::byte_alphabet {
namespace {

constexpr bool stands_for_itself(int b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF); }

constexpr char32_t kFirstStandIn = 0x100;

constexpr std::array<char32_t, 256> make_to_char() {
  std::array<char32_t, 256> table{};
  char32_t next = kFirstStandIn;
  for (int b = 0; b < 256; ++b) table[b] = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
  return table;
}

constexpr auto kToChar = make_to_char();
constexpr size_t kStandIns = 68;

constexpr std::array<uint8_t, kStandIns> make_stand_ins() {
  std::array<uint8_t, kStandIns> table{};
  size_t n = 0;
  for (int b = 0; b < 256; ++b) {
    if (!stands_for_itself(b)) table[n++] = static_cast<uint8_t>(b);
  }
  return table;
}

constexpr auto kStandInBytes = make_stand_ins();

}  // namespace

char32_t to_char(uint8_t byte) { return kToChar[byte]; }

std::optional<uint8_t> to_byte(char32_t c) {
  if (c < kFirstStandIn) {
    if (!stands_for_itself(static_cast<int>(c))) return std::nullopt;
    return static_cast<uint8_t>(c);
  }
  if (c - kFirstStandIn >= kStandIns) return std::nullopt;
  return kStandInBytes[c - kFirstStandIn];
}

std::string encode(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char b : bytes) utf8::append(out, to_char(static_cast<uint8_t>(b)));
  return out;
}

std::optional<std::string> decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const utf8::Step s = utf8::step(text);
    if (s.kind != utf8::Step::Kind::valid) return std::nullopt;
    const std::optional<uint8_t> byte = to_byte(s.codepoint);
    if (!byte) return std::nullopt;
    out += static_cast<char>(*byte);
    text.remove_prefix(s.length);
  }
  return out;
}

}  // namespace fovea::byte_alphabet
