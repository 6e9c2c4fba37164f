// A Vocabulary from a tokenizer: read_vocabulary the other way round. What GGUF files cannot say is refused.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "text/tokenizer/pre_tokenizer_table.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

struct RankedMerge {
  uint32_t rank;
  TokenId left, right, merged;
};

// In the order in which they are made.
std::vector<RankedMerge> ranked_merges(const BpeModel& model) {
  std::vector<RankedMerge> out;
  model.merges().for_each([&](TokenId left, TokenId right, const MergeTable::Merge& m) {
    out.push_back({m.rank, left, right, m.merged});
  });
  std::sort(out.begin(), out.end(),
            [](const RankedMerge& a, const RankedMerge& b) { return std::pair(a.rank, a.merged) < std::pair(b.rank, b.merged); });
  return out;
}

// Files have them found in the text as it is given.
Status check_added_tokens(const TokenizerParts& parts) {
  for (const AddedTokenMatcher* matcher : {&parts.added, &parts.added_normalized}) {
    for (const AddedToken& t : matcher->tokens()) {
      const std::string& content = parts.tokens[static_cast<size_t>(t.id)].content;
      const bool plain = !t.single_word && !t.lstrip && !t.rstrip;
      const bool ascii = std::ranges::all_of(content, [](char c) { return static_cast<uint8_t>(c) < 128; });
      const bool as_given = matcher == &parts.added || parts.normalizer.empty() || (ascii && t.pattern == content);
      if (plain && as_given) continue;
      return Status::unsupported("added_tokens: no file of this kind can say how " + shown_token(content) + " is found (" +
                                 (plain ? "normalized)" : "single_word, lstrip or rstrip)"));
    }
  }
  return {};
}

void write_tokens(const TokenizerParts& parts, VocabularyText* out) {
  const BpeModel::Options& options = parts.model.options();
  for (size_t i = 0; i < parts.tokens.size(); ++i) {
    const TokenizerParts::Token& token = parts.tokens[i];
    const std::string& content = token.content;
    TokenKind kind = TokenKind::normal;
    if (!token.used) {
      kind = TokenKind::unused;
    } else if (options.characters && options.unk == static_cast<TokenId>(i)) {
      kind = TokenKind::unknown;
    } else if (token.special) {
      kind = TokenKind::control;
    } else if (parts.added_ids.find(content)) {
      kind = TokenKind::user_defined;
    } else if (options.characters && content.size() == 6 && content.starts_with("<0x") && content.ends_with('>')) {
      kind = TokenKind::byte;
    }
    out->tokens.push_back(token.used ? content : "[PAD" + std::to_string(i) + "]");
    out->fields.kinds.push_back(kind);
  }
}

// The text, and before and after it at most one token.
Status write_template(const TokenizerParts& parts, Vocabulary* v) {
  v->add_bos = v->add_eos = false;
  bool after = false;
  for (const TokenizerParts::TemplateItem& item : parts.post) {
    if (item.is_text) {
      after = true;
      continue;
    }
    std::optional<bool>& adds = after ? v->add_eos : v->add_bos;
    if (*adds || item.ids.size() != 1)
      return Status::unsupported("post_processor: it adds more than one token before or after the text");
    adds = true;
    (after ? v->eos : v->bos) = item.ids[0];
  }
  return {};
}

// The regexes, if all that happens to text is that they isolate pieces of it, perhaps after NFC.
Status write_splits(const TokenizerParts& parts, VocabularyText* out) {
  const auto& normal = parts.normalizer.steps();
  bool known = normal.empty() || (normal.size() == 1 && std::holds_alternative<UnicodeForm>(normal[0]) &&
                                  std::get<UnicodeForm>(normal[0]) == UnicodeForm::nfc);
  std::vector<std::string> splits;
  for (const PreTokenizer::Step& step : parts.pre_tokenizer.steps()) {
    if (const auto* split = std::get_if<PreTokenizer::Split>(&step)) {
      known = known && split->behavior == SplitBehavior::isolated && !split->invert;
      const std::string& source = split->pattern.source();
      splits.push_back(source == PreTokenizer::kDigitsPattern ? R"(\p{N})" : source);
    } else if (const auto* bytes = std::get_if<PreTokenizer::ByteLevel>(&step)) {
      known = known && !bytes->add_prefix_space;
      if (bytes->pattern) splits.push_back(bytes->pattern->source());
    }
  }
  if (known) out->pre = name_pre_tokenizer(splits, !normal.empty(), parts.model.options().ignore_merges);
  if (!out->pre.empty()) return {};
  return Status::unsupported(
      "normalizer and pre_tokenizer: text is split in a way that has no name (known: " + pre_tokenizer_names() + ")");
}

void write_merges(const TokenizerParts& parts, VocabularyText* out) {
  const auto content = [&](TokenId id) -> const std::string& { return parts.tokens[static_cast<size_t>(id)].content; };
  for (const RankedMerge& m : ranked_merges(parts.model)) out->merges.push_back(content(m.left) + ' ' + content(m.right));
}

// Scores say of a token when it is made, not of what: so all pairs that make it must, and one after the other.
Status write_scores(const TokenizerParts& parts, VocabularyText* out) {
  constexpr float kNone = -1e9f;
  std::vector<float>& scores = out->fields.scores;
  scores.assign(out->tokens.size(), kNone);
  float made = 0;
  TokenId last = -1;
  for (const RankedMerge& m : ranked_merges(parts.model)) {
    float& score = scores[static_cast<size_t>(m.merged)];
    if (m.merged != last && score != kNone) {
      return Status::unsupported("model.merges: those that make " + shown_token(out->tokens[static_cast<size_t>(m.merged)]) +
                                 " do not follow each other, as SentencePiece's do");
    }
    if (m.merged != last) score = -++made;
    last = m.merged;
  }
  const auto normal = [&](std::string_view content) {
    const auto id = parts.model.vocab().find(content);
    return id && out->fields.kinds[static_cast<size_t>(*id)] == TokenKind::normal ? *id : -1;
  };
  for (size_t i = 0; i < out->tokens.size(); ++i) {
    const std::string_view token = out->tokens[i];
    if (out->fields.kinds[i] != TokenKind::normal || token.empty()) continue;
    for (size_t cut = utf8::step(token).length; cut < token.size(); cut += utf8::step(token.substr(cut)).length) {
      const TokenId left = normal(token.substr(0, cut)), right = normal(token.substr(cut));
      if (left < 0 || right < 0 || parts.model.merges().find(left, right)) continue;
      return Status::unsupported("model.merges: " + shown_token(token.substr(0, cut)) + " and " + shown_token(token.substr(cut)) +
                                 " do not merge, as SentencePiece's would");
    }
  }
  return {};
}

// Blanks become U+2581, and one stands before the text or not.
Status write_blanks(const TokenizerParts& parts, Vocabulary* v) {
  FOVEA_ASSIGN(const Regex blank, Regex::literal(" "));
  bool known = true, blanks = false;
  v->space_prefix = false;
  for (const Normalizer::Step& step : parts.normalizer.steps()) {
    const auto* prepend = std::get_if<Normalizer::Prepend>(&step);
    const auto* replace = std::get_if<Normalizer::Replace>(&step);
    if (prepend) v->space_prefix = true;
    if (replace) blanks = true;
    known = known && ((prepend && prepend->text == kWordMark) ||
                      (replace && replace->pattern.source() == blank.source() && replace->content == kWordMark));
  }
  for (const PreTokenizer::Step& step : parts.pre_tokenizer.steps()) {
    const auto* metaspace = std::get_if<PreTokenizer::Metaspace>(&step);
    known = known && metaspace && !blanks;
    blanks = true;
    v->space_prefix = metaspace && metaspace->prepend != PreTokenizer::Prepend::never;
  }
  return known && blanks ? Status() : Status::unsupported("normalizer and pre_tokenizer: they are not SentencePiece's");
}

}  // namespace

Result<VocabularyText> write_vocabulary(const TokenizerParts& parts) {
  VocabularyText out;
  FOVEA_TRY(check_added_tokens(parts));
  write_tokens(parts, &out);
  FOVEA_TRY(write_template(parts, &out.fields));
  if (parts.model.options().characters) {
    out.fields.model = Vocabulary::Model::sentencepiece;
    out.fields.unk = parts.model.options().unk;
    out.pre = "default";
    FOVEA_TRY(write_blanks(parts, &out.fields));
    FOVEA_TRY(write_scores(parts, &out));
  } else {
    FOVEA_TRY(write_splits(parts, &out));
    write_merges(parts, &out);
  }
  return out;
}

}  // namespace fovea
