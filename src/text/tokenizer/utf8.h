// UTF-8 by the Unicode rules (no surrogates, no overlong forms, up to U+10FFFF) and the byte-level alphabet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fovea::utf8 {

// What stands at the front of some bytes.
struct Step {
  enum class Kind : uint8_t { valid, invalid, cut } kind;
  uint8_t length;      // bytes of the character; of an invalid or cut one: its maximal subpart (1 to 3)
  char32_t codepoint;  // of a valid one
};

// bytes is not empty. `cut`: the bytes end inside what may still become a character.
Step step(std::string_view bytes);

// Offset of the first byte that is not part of a valid character; none: all of it is valid.
std::optional<size_t> first_invalid(std::string_view bytes);

void append(std::string& out, char32_t codepoint);
std::u32string decode(std::string_view valid_utf8);

// Appends bytes to out with U+FFFD for each maximal subpart of what is not a character. keep_cut: an
// unfinished character at the end is left out instead. Returns the number of bytes consumed.
size_t append_lossy(std::string& out, std::string_view bytes, bool keep_cut);

}  // namespace fovea::utf8

// The printable stand-ins that byte-level BPE writes its 256 bytes with (GPT-2's table): bytes that print
// stand for themselves, the others take U+0100 and up in ascending order.
namespace fovea::byte_alphabet {

char32_t to_char(uint8_t byte);
std::optional<uint8_t> to_byte(char32_t c);

// bytes written in the alphabet.
std::string encode(std::string_view bytes);

// The bytes that text stands for; none if it holds a character outside the alphabet.
std::optional<std::string> decode(std::string_view text);

}  // namespace fovea::byte_alphabet
