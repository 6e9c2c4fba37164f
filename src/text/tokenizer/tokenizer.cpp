#include "text/tokenizer/tokenizer.h"

#include <cstdio>
#include <fstream>
#include <new>
#include <utility>

#include "base/check.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr size_t kTextBytesMax = size_t{1} << 30;

// What one call to encode carries along.
struct Run {
  const TokenizerParts& parts;
  bool skip_special;
  RegexScratch scratch;
  PreTokenizer::Pieces pieces;
  std::deque<std::string> normalized;  // pieces and the cache look into these
  BpeModel::Cache cache;
  std::vector<TokenId> ids;
};

Status encode_plain(Run& run, std::string_view text, bool at_start) {
  run.pieces.views.clear();
  const bool in_alphabet = run.parts.normalizer.is_byte_level();
  FOVEA_TRY(run.parts.pre_tokenizer.run(text, in_alphabet, at_start, run.scratch, run.pieces));
  for (const std::string_view piece : run.pieces.views) run.parts.model.encode(piece, run.cache, run.ids);
  return {};
}

// Text in which the added tokens that are found before normalization do not occur. at_start: the whole text begins with it.
Status encode_between(Run& run, std::string_view text, bool at_start) {
  if (!run.parts.normalizer.empty()) {
    FOVEA_ASSIGN(std::string normalized, run.parts.normalizer.run(text, run.scratch));
    text = run.normalized.emplace_back(std::move(normalized));
  }
  for (const auto& segment : run.parts.added_normalized.find(text, run.skip_special)) {
    if (segment.id >= 0) {
      run.ids.push_back(segment.id);
    } else {
      FOVEA_TRY(encode_plain(run, text.substr(segment.begin, segment.end - segment.begin), at_start && segment.begin == 0));
    }
  }
  return {};
}

Status encode_all(Run& run, std::string_view text) {
  for (const auto& segment : run.parts.added.find(text, run.skip_special)) {
    if (segment.id >= 0) {
      run.ids.push_back(segment.id);
    } else {
      FOVEA_TRY(encode_between(run, text.substr(segment.begin, segment.end - segment.begin), segment.begin == 0));
    }
  }
  return {};
}

std::vector<TokenId> apply_template(const TokenizerParts& parts, std::vector<TokenId> ids, bool add_special) {
  if (parts.post.size() == 1 && parts.post[0].is_text) return ids;
  std::vector<TokenId> out;
  for (const TokenizerParts::TemplateItem& item : parts.post) {
    if (!item.is_text && !add_special) continue;
    const std::vector<TokenId>& add = item.is_text ? ids : item.ids;
    out.insert(out.end(), add.begin(), add.end());
  }
  return out;
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status::not_found(path + ": cannot be opened");
  std::string text;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof buffer), file.gcount() > 0) text.append(buffer, file.gcount());
  if (file.bad()) return Status::io_error(path + ": cannot be read");
  return text;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& path) {
  FOVEA_ASSIGN(const std::string json, read_file(path));
  return parse(json, path);
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view json, const std::string& name) {
  Result<std::unique_ptr<TokenizerParts>> parts = read_tokenizer_json(json);
  if (!parts.ok()) return parts.status().with_context(name);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts).value()));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::make(const Vocabulary& vocabulary, const std::string& name) {
  Result<std::unique_ptr<TokenizerParts>> parts = read_vocabulary(vocabulary);
  if (!parts.ok()) return parts.status().with_context(name);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts).value()));
}

Result<VocabularyText> Tokenizer::vocabulary() const { return write_vocabulary(*parts_); }

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (const auto bad = utf8::first_invalid(text)) {
    char byte[8];
    std::snprintf(byte, sizeof byte, "0x%02X", static_cast<unsigned>(static_cast<uint8_t>(text[*bad])));
    return Status::invalid_argument("the text is not valid UTF-8 at byte offset " + std::to_string(*bad) + " (" + byte + ")");
  }
  if (text.size() > kTextBytesMax) {
    return Status::invalid_argument("a text of " + std::to_string(text.size()) + " bytes is too long (at most " +
                                    std::to_string(kTextBytesMax) + ")");
  }
  Run run{*parts_, !options.parse_special, {}, {}, {}, {}, {}};
  FOVEA_TRY(encode_all(run, text));
  return apply_template(*parts_, std::move(run.ids), options.add_special_tokens);
}

bool Tokenizer::append_token(std::string& bytes, TokenId id, bool skip_special, bool first) const {
  if (id < 0 || id >= vocab_size()) return false;
  const TokenizerParts::Token& token = parts_->tokens[static_cast<size_t>(id)];
  if (!token.used || (skip_special && token.skipped)) return false;
  if (parts_->decoder == TokenizerParts::Decoder::none && !first) bytes += ' ';
  const bool strip = first && parts_->strip_blank && token.bytes.starts_with(' ');
  bytes.append(token.bytes, strip ? 1 : 0, std::string::npos);
  return true;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  bool first = true;
  for (const TokenId id : ids) first = !append_token(bytes, id, skip_special, first) && first;
  std::string text;
  text.reserve(bytes.size());
  (void)utf8::append_lossy(text, bytes, false);
  return text;
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view content) const {
  if (const auto id = parts_->added_ids.find(content)) return id;
  return parts_->model.vocab().find(content);
}

std::string_view Tokenizer::id_to_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return parts_->tokens[static_cast<size_t>(id)].bytes;
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && id < vocab_size() && parts_->tokens[static_cast<size_t>(id)].special;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(parts_->tokens.size()); }

std::string StreamDecoder::push(TokenId id) {
  first_ = !tokenizer_->append_token(pending_, id, skip_special_, first_) && first_;
  std::string text;
  pending_.erase(0, utf8::append_lossy(text, pending_, true));
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  (void)utf8::append_lossy(text, pending_, false);
  pending_.clear();
  first_ = true;
  return text;
}

}  // namespace fovea
