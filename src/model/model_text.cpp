#include "model/model_text.h"

#include <algorithm>
#include <iterator>

#include "model/gguf.h"
#include "model/json_reader.h"
#include "text/tokenizer/vocabulary.h"

namespace fovea {
namespace {

constexpr std::string_view kPrefix = "tokenizer.";

// Under tokenizer.ggml.: keys that are read, or that change nothing here.
constexpr std::string_view kVocabularyKeys[] = {
    "model",  "pre",           "tokens",        "token_type",    "token_type_count", "scores",
    "merges", "add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces"};

Status check_vocabulary_keys(const GgufHeader& h) {
  constexpr std::string_view kGgml = "tokenizer.ggml.";
  for (const auto& [key, value] : h.metadata) {
    if (!key.starts_with(kGgml) || key.ends_with("_token_id")) continue;
    if (std::ranges::find(kVocabularyKeys, key.substr(kGgml.size())) != std::end(kVocabularyKeys)) continue;
    return h.unsupported(key, "it may change how text is read");
  }
  FOVEA_ASSIGN(const auto remove, h.boolean("tokenizer.ggml.remove_extra_whitespaces"));
  return remove.value_or(false) ? h.unsupported("tokenizer.ggml.remove_extra_whitespaces", "false is") : Status();
}

Result<std::optional<TokenId>> token_id(const GgufHeader& h, const char* key) {
  FOVEA_ASSIGN(const auto id, h.integer(key, 0, INT32_MAX));
  return id ? std::optional<TokenId>(static_cast<TokenId>(*id)) : std::nullopt;
}

Result<std::vector<TokenKind>> token_kinds(const GgufHeader& h, size_t tokens) {
  constexpr const char* kKey = "tokenizer.ggml.token_type";
  FOVEA_ASSIGN(const std::vector<int64_t> numbers, h.integers(kKey));
  if (numbers.empty()) return std::vector<TokenKind>(tokens, TokenKind::normal);
  std::vector<TokenKind> kinds;
  for (const int64_t n : numbers) {
    if (n < 1 || n > 6) return h.wrong(kKey, "types from 1 to 6 only, not " + std::to_string(n));
    kinds.push_back(static_cast<TokenKind>(n));
  }
  return kinds;
}

// Views into the file.
Result<Vocabulary> read_vocabulary_keys(const GgufHeader& h) {
  Vocabulary v;
  FOVEA_ASSIGN(const std::string_view model, h.text("tokenizer.ggml.model"));
  if (model != "gpt2" && model != "llama") return h.unsupported("tokenizer.ggml.model", "known: gpt2, llama");
  FOVEA_TRY(check_vocabulary_keys(h));
  v.model = model == "gpt2" ? Vocabulary::Model::byte_level : Vocabulary::Model::sentencepiece;
  FOVEA_ASSIGN(v.pre, h.text("tokenizer.ggml.pre"));
  if (v.pre.empty()) v.pre = "default";
  FOVEA_ASSIGN(v.tokens, h.strings("tokenizer.ggml.tokens"));
  FOVEA_ASSIGN(v.kinds, token_kinds(h, v.tokens.size()));
  FOVEA_ASSIGN(v.scores, h.floats("tokenizer.ggml.scores"));
  FOVEA_ASSIGN(v.merges, h.strings("tokenizer.ggml.merges"));
  FOVEA_ASSIGN(const auto prefix, h.boolean("tokenizer.ggml.add_space_prefix"));
  v.space_prefix = prefix.value_or(true);
  FOVEA_ASSIGN(v.add_bos, h.boolean("tokenizer.ggml.add_bos_token"));
  FOVEA_ASSIGN(v.add_eos, h.boolean("tokenizer.ggml.add_eos_token"));
  FOVEA_ASSIGN(v.bos, token_id(h, "tokenizer.ggml.bos_token_id"));
  FOVEA_ASSIGN(v.eos, token_id(h, "tokenizer.ggml.eos_token_id"));
  FOVEA_ASSIGN(v.unk, token_id(h, "tokenizer.ggml.unknown_token_id"));
  return v;
}

Digest vocabulary_digest(const GgufHeader& h) {
  std::string all;
  for (const auto& [key, value] : h.metadata) {
    if (!key.starts_with(kPrefix)) continue;
    all += std::string(key) + ' ' + std::to_string(value.bytes.size()) + ' ';
    all += value.bytes;
  }
  return bytes_digest(all);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> gguf_tokenizer(const GgufHeader& h) {
  FOVEA_ASSIGN(const std::string_view model, h.text("tokenizer.ggml.model"));
  if (model.empty() || model == "none" || model == "no_vocab") return Status::not_found(h.where + ": it has no tokenizer");
  FOVEA_ASSIGN(const Vocabulary vocabulary, read_vocabulary_keys(h));
  return Tokenizer::make(vocabulary, h.where + ": tokenizer.ggml");
}

Result<ChatTemplateSource> gguf_chat_template(const GgufHeader& h) {
  ChatTemplateSource source;
  source.name = h.where;
  FOVEA_ASSIGN(source.text, h.text("tokenizer.chat_template"));
  FOVEA_ASSIGN(source.tool_use_text, h.text("tokenizer.chat_template.tool_use"));
  if (source.text.empty()) return Status::not_found(h.where + ": no chat template (key tokenizer.chat_template)");
  FOVEA_ASSIGN(const auto tokens, h.strings("tokenizer.ggml.tokens"));
  constexpr std::pair<const char*, const char*> kTokens[] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                                             {"eos_token", "tokenizer.ggml.eos_token_id"},
                                                             {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                                             {"pad_token", "tokenizer.ggml.padding_token_id"}};
  for (const auto& [name, key] : kTokens) {
    FOVEA_ASSIGN(const auto id, token_id(h, key));
    if (!id) continue;
    if (static_cast<size_t>(*id) >= tokens.size()) return h.wrong(key, "the id of a token");
    source.special_tokens[name] = std::string(tokens[static_cast<size_t>(*id)]);
  }
  return source;
}

Result<ModelTokenizer> load_tokenizer(const std::string& model) {
  ModelTokenizer out;
  if (is_gguf(model)) {
    FOVEA_ASSIGN(const std::unique_ptr<GgufSource> source, GgufSource::open(model));
    FOVEA_ASSIGN(out.tokenizer, gguf_tokenizer(source->header()));
    out.digest = vocabulary_digest(source->header());
    out.file = model;
    return out;
  }
  out.file = model + "/tokenizer.json";
  FOVEA_ASSIGN(out.tokenizer, Tokenizer::load(out.file));
  FOVEA_ASSIGN(out.digest, file_digest(out.file));
  return out;
}

Result<std::unique_ptr<ModelChat>> load_chat(const std::string& model, const std::string& variables) {
  if (!is_gguf(model)) return ModelChat::load(model, variables);
  FOVEA_ASSIGN(const std::unique_ptr<GgufSource> source, GgufSource::open(model));
  FOVEA_ASSIGN(ChatTemplateSource chat_template, gguf_chat_template(source->header()));
  return ModelChat::make(std::move(chat_template), variables);
}

}  // namespace fovea
