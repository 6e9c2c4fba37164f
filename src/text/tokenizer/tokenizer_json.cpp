#include <algorithm>
#include <string>
#include <utility>

#include "text/tokenizer/json_field.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr size_t kFileBytesMax = size_t{512} << 20;
constexpr int kNestingMax = 64;
constexpr int64_t kIdMax = (1 << 22) - 1;  // the largest vocabularies of today have 2^18
constexpr size_t kIdsFree = 1 << 16;
constexpr size_t kStepsMax = 32;  // of a Sequence, nested ones included

Result<std::string> type_of(const JsonField& field) { return field.text("type"); }

Status unsupported_type(const JsonField& field, const std::string& what) {
  Result<JsonField> type = field.at("type");
  if (!type.ok()) return std::move(type).status();
  return type->unsupported("is not supported (" + what + ")");
}

// Calls visit(step) for field and, where it is a Sequence, for what it holds under `list_key`, in order.
template <typename Visit>
Status for_each_step(const JsonField& field, const char* list_key, size_t& steps, Visit visit) {
  FOVEA_ASSIGN(const std::string type, type_of(field));
  if (type != "Sequence") {
    if (++steps > kStepsMax) return field.invalid("is one step too many (at most " + std::to_string(kStepsMax) + ")");
    return visit(field, type);
  }
  FOVEA_ASSIGN(const JsonField list, field.at(list_key));
  FOVEA_TRY(list.expect_array());
  for (size_t i = 0; i < list.value().size(); ++i) FOVEA_TRY(for_each_step(list.item(i), list_key, steps, visit));
  return {};
}

// {"Regex": "..."} or {"String": "..."}
Result<Regex> read_pattern(const JsonField& owner) {
  FOVEA_ASSIGN(const JsonField pattern, owner.at("pattern"));
  FOVEA_TRY(pattern.expect_object());
  const bool is_regex = pattern.has("Regex");
  FOVEA_ASSIGN(const JsonField source, pattern.at(is_regex ? "Regex" : "String"));
  FOVEA_ASSIGN(const std::string text, source.text());
  Result<Regex> regex = is_regex ? Regex::compile(text) : Regex::literal(text);
  if (regex.ok()) return regex;
  const Status& status = regex.status();
  return Status(status.code(), source.invalid("is no usable regex: " + status.message()).message());
}

// ---- model ----

struct Model {
  Vocab vocab;
  std::vector<TokenizerParts::Token> tokens;
};

Status put_token(std::vector<TokenizerParts::Token>& tokens, TokenId id, const std::string& content) {
  const auto index = static_cast<size_t>(id);
  if (index >= tokens.size()) tokens.resize(index + 1);
  tokens[index].content = content;
  tokens[index].used = true;
  return {};
}

Result<Model> read_vocab(const JsonField& field) {
  FOVEA_TRY(field.expect_object());
  Model model;
  // Ids may leave holes, but tokens are stored by id: a few tokens must not take much room.
  const auto id_max = std::min(kIdMax, static_cast<int64_t>(4 * field.value().size() + kIdsFree - 1));
  for (auto it = field.value().begin(); it != field.value().end(); ++it) {
    const JsonField entry(it.value(), field.path() + "[" + shown_token(it.key()) + "]");
    if (it.key().size() > kTokenBytesMax) return entry.invalid("belongs to a token that is too long");
    FOVEA_ASSIGN(const int64_t id, entry.integer(0, id_max));
    const auto index = static_cast<size_t>(id);
    if (index < model.tokens.size() && model.tokens[index].used) {
      return entry.invalid("is the id of " + shown_token(model.tokens[index].content) + " already");
    }
    FOVEA_TRY(put_token(model.tokens, static_cast<TokenId>(id), it.key()));
    model.vocab.add(it.key(), static_cast<TokenId>(id));
  }
  return model;
}

// "a b" or ["a", "b"]
Status split_merge(const JsonField& field, std::string& left, std::string& right) {
  const nlohmann::json& value = field.value();
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    left = value[0].get_ref<const std::string&>();
    right = value[1].get_ref<const std::string&>();
    return {};
  }
  if (!value.is_string()) return field.invalid("is no merge (\"a b\" or [\"a\", \"b\"])");
  const std::string& text = value.get_ref<const std::string&>();
  const size_t blank = text.find(' ');
  if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos) {
    return field.invalid("is no merge: it has not exactly one blank");
  }
  left = text.substr(0, blank);
  right = text.substr(blank + 1);
  return {};
}

Status read_merges(const JsonField& field, BpeModel& model) {
  FOVEA_TRY(field.expect_array());
  const nlohmann::json& list = field.value();
  if (list.size() > kMergesMax) return field.invalid("is too long (at most " + std::to_string(kMergesMax) + ")");
  uint32_t rank = 0;
  std::string left, right;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].is_string() && list[i].get_ref<const std::string&>().starts_with("#version")) continue;
    FOVEA_TRY(split_merge(field.item(i), left, right));
    TokenId ids[3];
    const std::string* parts[] = {&left, &right, nullptr};
    const std::string joined = left + right;
    parts[2] = &joined;
    for (int k = 0; k < 3; ++k) {
      const std::optional<TokenId> id = model.vocab().find(*parts[k]);
      if (!id) {
        return Status::invalid_argument(field.item(i).path() + ": the merge needs token " + shown_token(*parts[k]) +
                                        ", which model.vocab lacks");
      }
      ids[k] = *id;
    }
    model.add_merge(ids[0], ids[1], rank++, ids[2]);
  }
  return {};
}

Status check_model_options(const JsonField& field) {
  // Old files name no type: a vocabulary with merges is a BPE.
  if (field.has("type")) {
    FOVEA_ASSIGN(const std::string type, type_of(field));
    if (type != "BPE") return unsupported_type(field, "BPE is");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!field.has(key)) continue;
    FOVEA_ASSIGN(const JsonField affix, field.at(key));
    FOVEA_ASSIGN(const std::string text, affix.text());
    if (!text.empty()) return affix.unsupported("is not supported (BPE over bytes or with byte_fallback has none)");
  }
  if (field.has("dropout")) {
    FOVEA_ASSIGN(const JsonField dropout, field.at("dropout"));
    if (!dropout.value().is_number()) return dropout.invalid("is not a number");
    if (dropout.value().get<double>() != 0.0) return dropout.unsupported("is not supported (encoding is exact)");
  }
  return {};
}

// bytes: a step before it is ByteLevel.
Result<std::unique_ptr<TokenizerParts>> read_model(const JsonField& root, bool bytes) {
  FOVEA_ASSIGN(const JsonField field, root.at("model"));
  FOVEA_TRY(field.expect_object());
  FOVEA_TRY(check_model_options(field));
  FOVEA_ASSIGN(const JsonField vocab_field, field.at("vocab"));
  FOVEA_ASSIGN(Model model, read_vocab(vocab_field));
  BpeModel::Options options;
  FOVEA_ASSIGN(options.ignore_merges, field.boolean("ignore_merges", false));
  FOVEA_ASSIGN(options.byte_fallback, field.boolean("byte_fallback", false));
  if (!bytes && !options.byte_fallback) {
    return Status::unsupported("pre_tokenizer: without ByteLevel it is not supported (BPE over bytes, or with byte_fallback, is)");
  }
  options.characters = !bytes;
  FOVEA_ASSIGN(options.fuse_unk, field.boolean("fuse_unk", false));
  if (field.has("unk_token")) {
    FOVEA_ASSIGN(const std::string unk, field.text("unk_token"));
    options.unk = model.vocab.find(unk);  // absent from the vocabulary: never needed, or nothing to put there
  }
  auto parts = std::make_unique<TokenizerParts>(BpeModel(std::move(model.vocab), options));
  parts->tokens = std::move(model.tokens);
  FOVEA_ASSIGN(const JsonField merges, field.at("merges"));
  FOVEA_TRY(read_merges(merges, parts->model));
  return parts;
}

// ---- normalizer, pre_tokenizer, post_processor, decoder ----

constexpr std::pair<const char*, UnicodeForm> kForms[] = {
    {"NFC", UnicodeForm::nfc}, {"NFD", UnicodeForm::nfd}, {"NFKC", UnicodeForm::nfkc}, {"NFKD", UnicodeForm::nfkd}};

Status read_normalizer(const JsonField& root, Normalizer& normalizer) {
  if (!root.has("normalizer")) return {};
  FOVEA_ASSIGN(const JsonField field, root.at("normalizer"));
  size_t steps = 0;
  return for_each_step(field, "normalizers", steps, [&](const JsonField& step, const std::string& type) -> Status {
    if (normalizer.is_byte_level()) return unsupported_type(step, "nothing may follow ByteLevel");
    for (const auto& [name, form] : kForms) {
      if (type == name) return normalizer.add(form), Status();
    }
    if (type == "ByteLevel") {
      normalizer.add(Normalizer::ByteLevel{});
    } else if (type == "Prepend") {
      FOVEA_ASSIGN(std::string text, step.text("prepend"));
      normalizer.add(Normalizer::Prepend{std::move(text)});
    } else if (type == "Replace") {
      FOVEA_ASSIGN(Regex pattern, read_pattern(step));
      FOVEA_ASSIGN(std::string content, step.text("content"));
      normalizer.add(Normalizer::Replace{std::move(pattern), std::move(content)});
    } else {
      return unsupported_type(step, "NFC, NFD, NFKC, NFKD, Replace, Prepend, ByteLevel and Sequence are");
    }
    return {};
  });
}

Result<SplitBehavior> read_behavior(const JsonField& step) {
  FOVEA_ASSIGN(const JsonField field, step.at("behavior"));
  FOVEA_ASSIGN(const std::string name, field.text());
  const std::optional<SplitBehavior> behavior = split_behavior(name);
  if (!behavior) return field.invalid("is no split behavior");
  return *behavior;
}

// Old files say add_prefix_space where newer ones have a prepend_scheme.
Result<PreTokenizer::Metaspace> read_metaspace(const JsonField& step) {
  FOVEA_ASSIGN(const std::string mark, step.text("replacement"));
  FOVEA_ASSIGN(const bool prefix, step.boolean("add_prefix_space", true));
  PreTokenizer::Metaspace out;
  FOVEA_ASSIGN(out.split, step.boolean("split", true));
  out.prepend = prefix ? PreTokenizer::Prepend::always : PreTokenizer::Prepend::never;
  if (mark != kWordMark) return step.unsupported("is not supported: its replacement is not U+2581");
  if (!step.has("prepend_scheme")) return out;
  FOVEA_ASSIGN(const JsonField field, step.at("prepend_scheme"));
  FOVEA_ASSIGN(const std::string scheme, field.text());
  if (scheme != "always" && scheme != "first" && scheme != "never") return field.invalid("is no scheme (always, first, never are)");
  out.prepend = scheme == "always"  ? PreTokenizer::Prepend::always
                : scheme == "first" ? PreTokenizer::Prepend::first
                                    : PreTokenizer::Prepend::never;
  return out;
}

Status add_pre_step(const JsonField& step, const std::string& type, PreTokenizer& pre) {
  using Split = PreTokenizer::Split;
  if (type == "Split") {
    FOVEA_ASSIGN(Regex pattern, read_pattern(step));
    FOVEA_ASSIGN(const SplitBehavior behavior, read_behavior(step));
    FOVEA_ASSIGN(const bool invert, step.boolean("invert", false));
    pre.add(Split{std::move(pattern), behavior, invert});
  } else if (type == "ByteLevel") {
    if (pre.has_byte_level()) return unsupported_type(step, "only one ByteLevel is");
    PreTokenizer::ByteLevel byte_level;
    FOVEA_ASSIGN(byte_level.add_prefix_space, step.boolean("add_prefix_space"));
    FOVEA_ASSIGN(const bool use_regex, step.boolean("use_regex", true));
    if (use_regex) {
      FOVEA_ASSIGN(byte_level.pattern, PreTokenizer::gpt2_pattern());
    }
    pre.add(std::move(byte_level));
  } else if (type == "Digits") {
    FOVEA_ASSIGN(const bool individual, step.boolean("individual_digits"));
    FOVEA_ASSIGN(Regex pattern, PreTokenizer::digits_pattern());
    pre.add(Split{std::move(pattern), individual ? SplitBehavior::isolated : SplitBehavior::contiguous, false});
  } else if (type == "Punctuation") {
    SplitBehavior behavior = SplitBehavior::isolated;
    if (step.has("behavior")) {
      FOVEA_ASSIGN(behavior, read_behavior(step));
    }
    FOVEA_ASSIGN(Regex pattern, PreTokenizer::punctuation_pattern());
    pre.add(Split{std::move(pattern), behavior, false});
  } else if (type == "Metaspace") {
    FOVEA_ASSIGN(const PreTokenizer::Metaspace metaspace, read_metaspace(step));
    pre.add(metaspace);
  } else {
    return unsupported_type(step, "ByteLevel, Metaspace, Split, Digits, Punctuation and Sequence are");
  }
  return {};
}

Status read_pre_tokenizer(const JsonField& root, bool normalized_to_bytes, PreTokenizer& pre) {
  if (root.has("pre_tokenizer")) {
    FOVEA_ASSIGN(const JsonField field, root.at("pre_tokenizer"));
    size_t steps = 0;
    FOVEA_TRY(for_each_step(field, "pretokenizers", steps,
                            [&](const JsonField& step, const std::string& type) { return add_pre_step(step, type, pre); }));
  }
  if (pre.has_byte_level() && normalized_to_bytes) {
    return Status::unsupported("pre_tokenizer: ByteLevel here and in the normalizer is not supported");
  }
  return {};
}

// {"SpecialToken": {"id": "<s>"}} means the ids under special_tokens["<s>"].
Status read_template(const JsonField& step, TokenizerParts& parts) {
  FOVEA_ASSIGN(const JsonField single, step.at("single"));
  FOVEA_TRY(single.expect_array());
  FOVEA_ASSIGN(const JsonField specials, step.at("special_tokens"));
  parts.post.clear();
  for (size_t i = 0; i < single.value().size(); ++i) {
    const JsonField item = single.item(i);
    if (item.has("Sequence")) {
      FOVEA_ASSIGN(const JsonField sequence, item.at("Sequence"));
      FOVEA_ASSIGN(const std::string id, sequence.text("id"));
      if (id != "A") return sequence.invalid("is not sequence A, the only one there is");
      parts.post.push_back({true, {}});
      continue;
    }
    FOVEA_ASSIGN(const JsonField special, item.at("SpecialToken"));
    FOVEA_ASSIGN(const std::string name, special.text("id"));
    FOVEA_ASSIGN(const JsonField entry, specials.at(name.c_str()));
    FOVEA_ASSIGN(const JsonField ids, entry.at("ids"));
    FOVEA_TRY(ids.expect_array());
    TokenizerParts::TemplateItem out{false, {}};
    for (size_t k = 0; k < ids.value().size(); ++k) {
      FOVEA_ASSIGN(const int64_t id, ids.item(k).integer(0, static_cast<int64_t>(parts.tokens.size()) - 1));
      out.ids.push_back(static_cast<TokenId>(id));
    }
    parts.post.push_back(std::move(out));
  }
  return {};
}

// Roberta's and Bert's: cls, text, sep, each written ["content", id].
Status read_cls_sep(const JsonField& step, TokenizerParts& parts) {
  TokenId ids[2];
  const char* keys[] = {"cls", "sep"};
  for (int k = 0; k < 2; ++k) {
    FOVEA_ASSIGN(const JsonField pair, step.at(keys[k]));
    FOVEA_TRY(pair.expect_array());
    if (pair.value().size() != 2) return pair.invalid("is not [content, id]");
    FOVEA_ASSIGN(const int64_t id, pair.item(1).integer(0, static_cast<int64_t>(parts.tokens.size()) - 1));
    ids[k] = static_cast<TokenId>(id);
  }
  parts.post = {{false, {ids[0]}}, {true, {}}, {false, {ids[1]}}};
  return {};
}

Status read_post_processor(const JsonField& root, TokenizerParts& parts) {
  parts.post = {{true, {}}};
  if (!root.has("post_processor")) return {};
  FOVEA_ASSIGN(const JsonField field, root.at("post_processor"));
  size_t steps = 0;
  bool placed = false;
  return for_each_step(field, "processors", steps, [&](const JsonField& step, const std::string& type) -> Status {
    if (type == "ByteLevel") return {};  // moves offsets, no ids
    if (placed) return unsupported_type(step, "only one step may add tokens");
    placed = true;
    if (type == "TemplateProcessing") return read_template(step, parts);
    if (type == "RobertaProcessing" || type == "BertProcessing") return read_cls_sep(step, parts);
    return unsupported_type(step, "ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing and Sequence are");
  });
}

// SentencePiece's: Replace of U+2581 by a blank, ByteFallback, Fuse, and perhaps Strip of the first blank.
Status add_sentencepiece_step(const JsonField& step, const std::string& type, size_t index, TokenizerParts& parts) {
  constexpr const char* kOrder[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
  if (index >= std::size(kOrder) || type != kOrder[index]) {
    return unsupported_type(step, "Replace, ByteFallback, Fuse and Strip are, in this order");
  }
  if (type == "Replace") {
    FOVEA_ASSIGN(const JsonField pattern, step.at("pattern"));
    FOVEA_ASSIGN(const std::string mark, pattern.text("String"));
    FOVEA_ASSIGN(const std::string content, step.text("content"));
    if (mark != kWordMark || content != " ") return unsupported_type(step, "of U+2581 by a blank it is");
  } else if (type == "Strip") {
    FOVEA_ASSIGN(const std::string content, step.text("content"));
    FOVEA_ASSIGN(const JsonField start, step.at("start"));
    FOVEA_ASSIGN(const JsonField stop, step.at("stop"));
    FOVEA_ASSIGN(const int64_t blanks, start.integer(0, INT32_MAX));
    FOVEA_ASSIGN(const int64_t ends, stop.integer(0, INT32_MAX));
    if (content != " " || blanks > 1 || ends != 0) return unsupported_type(step, "of one blank at the start it is");
    parts.strip_blank = blanks == 1;
  }
  return {};
}

Status read_decoder(const JsonField& root, TokenizerParts& parts) {
  using Decoder = TokenizerParts::Decoder;
  if (!root.has("decoder")) return {};
  FOVEA_ASSIGN(const JsonField field, root.at("decoder"));
  size_t steps = 0;
  return for_each_step(field, "decoders", steps, [&](const JsonField& step, const std::string& type) -> Status {
    const size_t index = steps - 1;
    if (index == 0) parts.decoder = type == "Replace" ? Decoder::sentencepiece : Decoder::byte_level;
    if (parts.decoder == Decoder::sentencepiece) return add_sentencepiece_step(step, type, index, parts);
    if (type == (index == 0 ? "ByteLevel" : "Fuse")) return {};
    return unsupported_type(step, "ByteLevel is, perhaps followed by Fuse, and SentencePiece's sequence");
  });
}

// ---- added tokens ----

struct AddedEntry {
  AddedToken token;
  std::string content;
  bool normalized;
};

Result<AddedEntry> read_added_entry(const JsonField& field) {
  AddedEntry entry;
  FOVEA_ASSIGN(entry.content, field.text("content"));
  FOVEA_ASSIGN(const JsonField id_field, field.at("id"));
  FOVEA_ASSIGN(const int64_t id, id_field.integer(0, kIdMax));
  entry.token.id = static_cast<TokenId>(id);
  FOVEA_ASSIGN(entry.token.single_word, field.boolean("single_word", false));
  FOVEA_ASSIGN(entry.token.lstrip, field.boolean("lstrip", false));
  FOVEA_ASSIGN(entry.token.rstrip, field.boolean("rstrip", false));
  FOVEA_ASSIGN(entry.normalized, field.boolean("normalized", true));
  FOVEA_ASSIGN(entry.token.special, field.boolean("special", false));
  if (entry.content.size() > kAddedTokenBytesMax) {
    return field.invalid("has a content of more than " + std::to_string(kAddedTokenBytesMax) + " bytes");
  }
  return entry;
}

// The id must be the one the vocabulary gives, or the next free one: the package assigns ids in this way
// whatever the file says, so any other id would be a silent disagreement.
Status check_added_id(const JsonField& field, const AddedEntry& entry, const TokenizerParts& parts, TokenId& next) {
  std::optional<TokenId> expected = parts.added_ids.find(entry.content);
  if (!expected) expected = parts.model.vocab().find(entry.content);
  if (!expected) {
    expected = next++;
    const auto index = static_cast<size_t>(*expected);
    if (index < parts.tokens.size() && parts.tokens[index].used) {
      return field.invalid("gets id " + std::to_string(*expected) + ", which is another token's");
    }
  }
  if (*expected == entry.token.id) return {};
  return Status::invalid_argument(field.path() + ".id: " + std::to_string(entry.token.id) + " of token " +
                                  shown_token(entry.content) + " should be " + std::to_string(*expected));
}

Status match_added_tokens(const JsonField& list, std::vector<AddedEntry>& entries, TokenizerParts& parts) {
  RegexScratch scratch;
  for (AddedEntry& entry : entries) {
    std::string& pattern = entry.token.pattern;
    pattern = entry.content;
    if (entry.normalized) {
      FOVEA_ASSIGN(pattern, parts.normalizer.run(entry.content, scratch));
    }
    const std::string content = shown_token(entry.content);
    if (pattern.empty()) return list.invalid("holds " + content + ", of which normalization leaves nothing");
    TokenizerParts::Token& token = parts.tokens[static_cast<size_t>(entry.token.id)];
    token.bytes = pattern;  // as text for now; finish_tokens turns all of them into bytes
    token.special = entry.token.special;
    AddedTokenMatcher& matcher = entry.normalized ? parts.added_normalized : parts.added;
    if (!matcher.add(std::move(entry.token))) return list.invalid("holds two tokens that look like " + content);
  }
  return {};
}

Status read_added_tokens(const JsonField& root, TokenizerParts& parts) {
  for (TokenizerParts::Token& token : parts.tokens) token.bytes = token.content;
  if (!root.has("added_tokens")) return {};
  FOVEA_ASSIGN(const JsonField list, root.at("added_tokens"));
  FOVEA_TRY(list.expect_array());
  if (list.value().size() > kAddedTokensMax) {
    return list.invalid("is too long (at most " + std::to_string(kAddedTokensMax) + ")");
  }
  auto next = static_cast<TokenId>(parts.model.vocab().size());
  std::vector<AddedEntry> entries;
  for (size_t i = 0; i < list.value().size(); ++i) {
    const JsonField field = list.item(i);
    FOVEA_ASSIGN(AddedEntry entry, read_added_entry(field));
    if (entry.content.empty()) continue;
    FOVEA_TRY(check_added_id(field, entry, parts, next));
    FOVEA_TRY(put_token(parts.tokens, entry.token.id, entry.content));
    if (parts.added_ids.add(entry.content, entry.token.id)) {
      entries.push_back(std::move(entry));
      continue;
    }
    for (AddedEntry& other : entries) {  // said twice: the later flags hold, special for ever
      if (other.content != entry.content) continue;
      entry.token.special |= other.token.special;
      other = std::move(entry);
      break;
    }
  }
  return match_added_tokens(list, entries, parts);
}

}  // namespace

Result<std::unique_ptr<TokenizerParts>> read_tokenizer_json(std::string_view json) {
  FOVEA_ASSIGN(const nlohmann::json document, JsonField::parse(json, kFileBytesMax, kNestingMax));
  const JsonField root(document, "");
  FOVEA_TRY(root.expect_object());
  if (root.has("version")) {
    FOVEA_ASSIGN(const JsonField version, root.at("version"));
    FOVEA_ASSIGN(const std::string text, version.text());
    if (text != "1.0") return version.unsupported("is not supported (1.0 is)");
  }
  Normalizer normalizer;
  PreTokenizer pre;
  FOVEA_TRY(read_normalizer(root, normalizer));
  FOVEA_TRY(read_pre_tokenizer(root, normalizer.is_byte_level(), pre));
  const bool bytes = normalizer.is_byte_level() || pre.has_byte_level();
  FOVEA_ASSIGN(std::unique_ptr<TokenizerParts> parts, read_model(root, bytes));
  parts->normalizer = std::move(normalizer);
  parts->pre_tokenizer = std::move(pre);
  FOVEA_TRY(read_added_tokens(root, *parts));
  FOVEA_TRY(read_post_processor(root, *parts));
  FOVEA_TRY(read_decoder(root, *parts));
  parts->finish_tokens();
  return parts;
}

}  // namespace fovea
