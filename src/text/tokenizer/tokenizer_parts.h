// A tokenizer ready to run. Built once, from a tokenizer.json or from a Vocabulary, then constant.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/status.h>
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace fovea {

struct TokenizerParts {
  enum class Decoder {
    byte_level,
    sentencepiece,  // U+2581 is a blank, <0xNN> a byte
    none            // tokens as written, blanks between them
  };
  struct Token {
    std::string content;  // as the file writes it
    std::string bytes;    // what decoding it adds to the text
    bool used = false;    // false: no token has this id
    bool special = false;
    bool skipped = false;  // left out by decode(skip_special)
  };
  // One part of the template: the text, or ids around it.
  struct TemplateItem {
    bool is_text;
    std::vector<TokenId> ids;
  };

  explicit TokenizerParts(BpeModel m) : model(std::move(m)) {}

  std::vector<Token> tokens;           // by id
  Vocab added_ids;                     // contents of added tokens; they come before the model's
  AddedTokenMatcher added;             // found in the text as given
  AddedTokenMatcher added_normalized;  // found after normalization
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  std::vector<TemplateItem> post;
  Decoder decoder = Decoder::none;
  bool strip_blank = false;  // of sentencepiece: a text does not begin with the blank of its first word

  // Makes Token::bytes, which hold the text each token decodes from, what it decodes to. The last thing that building does.
  void finish_tokens();
};

// Most that is taken from a file.
inline constexpr size_t kTokenBytesMax = 1 << 16;
inline constexpr size_t kAddedTokensMax = 1 << 17;
inline constexpr size_t kAddedTokenBytesMax = 1024;  // finding them costs this much per byte of text at worst
inline constexpr size_t kMergesMax = size_t{1} << 23;

// What SentencePiece writes blanks with.
inline constexpr std::string_view kWordMark = "\u2581";

// Errors do not name the file.
Result<std::unique_ptr<TokenizerParts>> read_tokenizer_json(std::string_view json);
Result<std::unique_ptr<TokenizerParts>> read_vocabulary(const Vocabulary& vocabulary);
Result<VocabularyText> write_vocabulary(const TokenizerParts& parts);

// A token's content, cut to what an error line can show.
std::string shown_token(std::string_view content);

}  // namespace fovea
