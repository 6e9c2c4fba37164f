// A vocabulary with no pipeline written beside it, as GGUF files hold one: tokens with their kinds, merges or scores, and a name
// for how text is split. The pipeline behind each name is the one that the models of that name publish in tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/status.h>
#include "text/tokenizer/tokenizer.h"

namespace fovea {

// GGUF's numbers.
enum class TokenKind : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct Vocabulary {
  enum class Model {
    byte_level,    // "gpt2": BPE over bytes, merges in the order of their list
    sentencepiece  // "llama": BPE over characters, merges by score, <0xNN> tokens for what is in none
  };
  Model model = Model::byte_level;
  std::string_view pre;                  // byte_level: how text is split: "llama-bpe", "qwen2"; pre_tokenizer_table.h
  std::vector<std::string_view> tokens;  // by id; normal ones in the byte-level alphabet, or with U+2581 for blanks
  std::vector<TokenKind> kinds;          // [tokens]
  std::vector<float> scores;             // [tokens] of sentencepiece: the best merges first
  std::vector<std::string_view> merges;  // of byte_level: "left right"
  bool space_prefix = true;              // sentencepiece: text begins as a word does
  std::optional<TokenId> bos, eos, unk;
  std::optional<bool> add_bos, add_eos;  // absent: as models of this kind do
};

// A Vocabulary with texts of its own.
struct VocabularyText {
  Vocabulary fields;  // but for tokens, merges and pre, which are here
  std::string pre;
  std::vector<std::string> tokens, merges;
};

}  // namespace fovea
