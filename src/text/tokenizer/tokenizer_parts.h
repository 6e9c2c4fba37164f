// What a tokenizer.json says, ready to run. Built once by read_tokenizer_json, then constant.
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

namespace fovea {

struct TokenizerParts {
  enum class Decoder { byte_level, none };  // none: tokens as written, blanks between them
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
};

// Errors do not name the file.
Result<std::unique_ptr<TokenizerParts>> read_tokenizer_json(std::string_view json);

}  // namespace fovea
