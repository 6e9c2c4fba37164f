#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "text/tokenizer/pre_tokenizer_table.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr size_t kTokensMax = size_t{1} << 22;
constexpr size_t kMergedBytesMax = 512;  // of a token that merges by score make: each of its splits is looked up

std::string token_name(const Vocabulary& v, size_t id) { return "token " + std::to_string(id) + " " + shown_token(v.tokens[id]); }

bool is_added(TokenKind kind) {
  return kind == TokenKind::control || kind == TokenKind::user_defined || kind == TokenKind::unknown;
}

Status check(const Vocabulary& v) {
  if (v.tokens.empty() || v.tokens.size() > kTokensMax) {
    return Status::corrupt(std::to_string(v.tokens.size()) + " tokens are not from 1 to " + std::to_string(kTokensMax));
  }
  if (v.kinds.size() != v.tokens.size()) return Status::corrupt("kinds of " + std::to_string(v.kinds.size()) + " tokens");
  const bool scored = v.model == Vocabulary::Model::sentencepiece;
  if (scored && v.scores.size() != v.tokens.size())
    return Status::corrupt("scores of " + std::to_string(v.scores.size()) + " tokens");
  if (v.merges.size() > kMergesMax) return Status::corrupt(std::to_string(v.merges.size()) + " merges are too many");
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const bool added = is_added(v.kinds[i]);
    if (v.tokens[i].size() > (added ? kAddedTokenBytesMax : kTokenBytesMax))
      return Status::corrupt(token_name(v, i) + " is too long");
    if (scored && !std::isfinite(v.scores[i])) return Status::corrupt(token_name(v, i) + ": its score is not finite");
    if (utf8::first_invalid(v.tokens[i])) return Status::corrupt(token_name(v, i) + " is not valid UTF-8");
  }
  for (const auto& id : {v.bos, v.eos, v.unk}) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= v.tokens.size())) {
      return Status::corrupt("special token id " + std::to_string(*id) + " names no token");
    }
  }
  return {};
}

Result<std::unique_ptr<TokenizerParts>> make_parts(const Vocabulary& v, BpeModel::Options options) {
  Vocab vocab;
  std::vector<TokenizerParts::Token> tokens(v.tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (v.tokens[i].empty() || v.kinds[i] == TokenKind::unused) continue;
    tokens[i].content = tokens[i].bytes = v.tokens[i];
    tokens[i].used = true;
    tokens[i].special = v.kinds[i] == TokenKind::control || v.kinds[i] == TokenKind::unknown;
    if (!vocab.add(tokens[i].content, static_cast<TokenId>(i))) {
      return Status::corrupt(token_name(v, i) + " is there twice");
    }
  }
  auto parts = std::make_unique<TokenizerParts>(BpeModel(std::move(vocab), options));
  parts->tokens = std::move(tokens);
  return parts;
}

Status add_merges(const Vocabulary& v, BpeModel& model) {
  std::string joined;
  for (size_t i = 0; i < v.merges.size(); ++i) {
    const std::string_view merge = v.merges[i];
    const size_t blank = merge.find(' ', 1);
    if (blank == std::string_view::npos) return Status::corrupt("merge " + std::to_string(i) + " has no blank");
    const std::string_view left = merge.substr(0, blank), right = merge.substr(blank + 1);
    joined.assign(left).append(right);
    TokenId ids[3];
    for (int k = 0; k < 3; ++k) {
      const std::string_view part = k == 0 ? left : k == 1 ? right : std::string_view(joined);
      const auto id = model.vocab().find(part);
      if (!id) return Status::corrupt("merge " + std::to_string(i) + " needs token " + shown_token(part) + ", which is missing");
      ids[k] = *id;
    }
    model.add_merge(ids[0], ids[1], static_cast<uint32_t>(i), ids[2]);
  }
  return {};
}

// Two tokens merge where what they make is a token too; the best score first, equal ones from the left.
Status add_merges_by_score(const Vocabulary& v, BpeModel& model) {
  std::vector<float> order = v.scores;
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  const auto normal = [&](std::string_view content) -> std::optional<TokenId> {
    const auto id = model.vocab().find(content);
    return id && v.kinds[static_cast<size_t>(*id)] == TokenKind::normal ? id : std::nullopt;
  };
  size_t merges = 0;
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const std::string_view token = v.tokens[i];
    if (v.kinds[i] != TokenKind::normal || token.empty()) continue;
    if (token.size() > kMergedBytesMax) return Status::corrupt(token_name(v, i) + " is too long");
    const auto at = std::lower_bound(order.begin(), order.end(), v.scores[i], std::greater<>());
    const auto rank = static_cast<uint32_t>(at - order.begin());
    for (size_t cut = utf8::step(token).length; cut < token.size(); cut += utf8::step(token.substr(cut)).length) {
      const auto left = normal(token.substr(0, cut)), right = normal(token.substr(cut));
      if (!left || !right) continue;
      if (++merges > kMergesMax) return Status::corrupt("the tokens merge in more than " + std::to_string(kMergesMax) + " ways");
      model.add_merge(*left, *right, rank, static_cast<TokenId>(i));
    }
  }
  return {};
}

Status add_added_tokens(const Vocabulary& v, TokenizerParts& parts) {
  size_t added = 0;
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    if (!is_added(v.kinds[i]) || v.tokens[i].empty()) continue;
    if (++added > kAddedTokensMax) return Status::corrupt("more than " + std::to_string(kAddedTokensMax) + " special tokens");
    const auto id = static_cast<TokenId>(i);
    parts.added_ids.add(std::string(v.tokens[i]), id);
    parts.added.add({id, std::string(v.tokens[i]), false, false, false, parts.tokens[i].special});
  }
  return {};
}

void add_template(const Vocabulary& v, bool add_bos, TokenizerParts& parts) {
  if (v.bos && v.add_bos.value_or(add_bos)) parts.post.push_back({false, {*v.bos}});
  parts.post.push_back({true, {}});
  if (v.eos && v.add_eos.value_or(false)) parts.post.push_back({false, {*v.eos}});
}

Result<std::unique_ptr<TokenizerParts>> read_byte_level(const Vocabulary& v) {
  const PreTokenizerRow* row = find_pre_tokenizer(v.pre);
  if (row == nullptr) {
    return Status::unsupported("pre-tokenizer " + shown_token(v.pre) + " is not supported (known: " + pre_tokenizer_names() + ")");
  }
  BpeModel::Options options;
  options.ignore_merges = row->ignore_merges;
  FOVEA_ASSIGN(auto parts, make_parts(v, options));
  FOVEA_TRY(add_merges(v, parts->model));
  FOVEA_ASSIGN(parts->pre_tokenizer, make_pre_tokenizer(*row));
  if (row->nfc) parts->normalizer.add(UnicodeForm::nfc);
  parts->decoder = TokenizerParts::Decoder::byte_level;
  add_template(v, row->add_bos, *parts);
  return parts;
}

Result<std::unique_ptr<TokenizerParts>> read_sentencepiece(const Vocabulary& v) {
  BpeModel::Options options;
  options.characters = options.byte_fallback = options.fuse_unk = true;
  options.unk = v.unk;
  FOVEA_ASSIGN(auto parts, make_parts(v, options));
  FOVEA_TRY(add_merges_by_score(v, parts->model));
  if (v.space_prefix) parts->normalizer.add(Normalizer::Prepend{std::string(kWordMark)});
  FOVEA_ASSIGN(Regex blank, Regex::literal(" "));
  parts->normalizer.add(Normalizer::Replace{std::move(blank), std::string(kWordMark)});
  parts->decoder = TokenizerParts::Decoder::sentencepiece;
  parts->strip_blank = v.space_prefix;
  add_template(v, true, *parts);
  return parts;
}

}  // namespace

Result<std::unique_ptr<TokenizerParts>> read_vocabulary(const Vocabulary& v) {
  FOVEA_TRY(check(v));
  FOVEA_ASSIGN(auto parts, v.model == Vocabulary::Model::byte_level ? read_byte_level(v) : read_sentencepiece(v));
  FOVEA_TRY(add_added_tokens(v, *parts));
  parts->finish_tokens();
  return parts;
}

}  // namespace fovea
