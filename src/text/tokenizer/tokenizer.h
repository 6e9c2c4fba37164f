// Text to token ids and back, from a model's tokenizer.json, as the PyPI package `tokenizers` reads it, or from a Vocabulary: BPE
// over bytes, or over characters with tokens for bytes (SentencePiece's).
//
// Order of work, as there: added tokens found in the text as given, then the text between them normalized,
// added tokens found in that, then the pre-tokenizer's splits, then BPE of each piece, then the template (BOS
// and the like). Regexes are written for Oniguruma and run by PCRE2: text/tokenizer/regex.h says how they
// are made to agree. `truncation` and `padding` of the file are not applied: a prompt is never cut silently.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/status.h>

namespace fovea {

struct TokenizerParts;
struct Vocabulary;
struct VocabularyText;

using TokenId = int32_t;

struct EncodeOptions {
  bool add_special_tokens = false;  // apply the template: BOS of Llama 3, nothing for most others
  bool parse_special = true;        // special tokens written in the text become their ids; false: plain text
};

// Immutable after loading; every const method may be called from any thread.
class Tokenizer {
 public:
  // Errors are one line that leads with the path and names field and value.
  static Result<std::unique_ptr<Tokenizer>> load(const std::string& tokenizer_json_path);
  static Result<std::unique_ptr<Tokenizer>> parse(std::string_view json, const std::string& name);
  // Views of the vocabulary are not kept. `name` leads every error.
  static Result<std::unique_ptr<Tokenizer>> make(const Vocabulary& vocabulary, const std::string& name);
  ~Tokenizer();

  // Invalid UTF-8 is refused with its byte offset.
  Result<std::vector<TokenId>> encode(std::string_view utf8, const EncodeOptions& options = {}) const;

  // Always valid UTF-8: what is none becomes U+FFFD, one per maximal subpart. Ids that name no token add
  // nothing.
  std::string decode(std::span<const TokenId> ids, bool skip_special = true) const;

  // content: as tokenizer.json writes it (byte-level alphabet), e.g. "<|im_end|>" or "Ġthe".
  std::optional<TokenId> token_to_id(std::string_view content) const;

  // The bytes a token adds to the text, perhaps a part of a character. Empty for an id that names no token.
  std::string_view id_to_bytes(TokenId id) const;

  bool is_special(TokenId id) const;

  // One more than the largest id. Ids below may name no token.
  int32_t vocab_size() const;

  // What make() gives a tokenizer of the same ids from. Errors: unsupported, where a Vocabulary cannot say it all.
  Result<VocabularyText> vocabulary() const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  // Appends the bytes of one token; `first`: no token of the text came before it.
  bool append_token(std::string& bytes, TokenId id, bool skip_special, bool first) const;

  std::unique_ptr<const TokenizerParts> parts_;  // never null
};

// Detokenizes token by token and never emits half a character: the pieces and finish() joined are decode().
// One text per decoder: after finish() a new text begins.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  std::string push(TokenId id);  // the text that is certain now, perhaps empty; always valid UTF-8
  std::string finish();          // the rest: U+FFFD where a character was left unfinished

 private:
  const Tokenizer* tokenizer_;  // outlives the decoder
  bool skip_special_;
  bool first_ = true;
  std::string pending_;  // the beginning of a character, at most 3 bytes between calls
};

}  // namespace fovea
