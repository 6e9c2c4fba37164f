#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

using Views = std::vector<std::string_view>;

struct Part {
  Span span;
  bool is_match;
};

std::vector<Part> parts_of(size_t length, const std::vector<Span>& matches, bool invert) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t at = 0;
  for (const Span& m : matches) {
    if (m.begin != at) parts.push_back({{at, m.begin}, invert});
    parts.push_back({m, !invert});
    at = m.end;
  }
  if (at != length) parts.push_back({{at, length}, invert});
  return parts;
}

Status split_views(const Regex& pattern, SplitBehavior behavior, bool invert, RegexScratch& scratch, Views& views) {
  Views cut;
  cut.reserve(views.size());
  std::vector<Span> matches;
  for (const std::string_view view : views) {
    matches.clear();
    FOVEA_TRY(pattern.find_all(view, scratch, matches));
    for (const Span& span : split_at(view.size(), matches, behavior, invert)) {
      if (span.end > span.begin) cut.push_back(view.substr(span.begin, span.end - span.begin));
    }
  }
  views = std::move(cut);
  return {};
}

constexpr std::string_view kMark = "\u2581";

std::string with_marks(std::string_view text) {
  std::string out;
  for (const char c : text) c == ' ' ? out.append(kMark) : out.append(1, c);
  return out;
}

// Each mark begins a piece.
Views split_at_marks(const Views& views) {
  Views cut;
  for (std::string_view view : views) {
    for (size_t next; !view.empty(); view.remove_prefix(next)) {
      next = std::min(view.find(kMark, 1), view.size());
      cut.push_back(view.substr(0, next));
    }
  }
  return cut;
}

void apply_metaspace(const PreTokenizer::Metaspace& step, bool at_start, Views& views, PreTokenizer::Pieces& pieces) {
  for (size_t i = 0; i < views.size(); ++i) {
    std::string text = with_marks(views[i]);
    const bool here = step.prepend == PreTokenizer::Prepend::always || (at_start && i == 0);
    if (step.prepend != PreTokenizer::Prepend::never && here && !text.starts_with(kMark)) text.insert(0, kMark);
    views[i] = pieces.made.emplace_back(std::move(text));
  }
  if (step.split) views = split_at_marks(views);
}

}  // namespace

std::optional<SplitBehavior> split_behavior(std::string_view name) {
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  return std::nullopt;
}

std::vector<Span> split_at(size_t length, const std::vector<Span>& matches, SplitBehavior behavior, bool invert) {
  const std::vector<Part> parts = parts_of(length, matches, invert);
  std::vector<Span> out;
  out.reserve(parts.size());
  bool previous_match = false;
  if (behavior == SplitBehavior::merged_with_next) {
    for (size_t i = parts.size(); i-- > 0;) {
      if (parts[i].is_match && !previous_match && !out.empty()) {
        out.back().begin = parts[i].span.begin;
      } else {
        out.push_back(parts[i].span);
      }
      previous_match = parts[i].is_match;
    }
    return {out.rbegin(), out.rend()};
  }
  for (const Part& part : parts) {
    bool join = false;
    if (behavior == SplitBehavior::contiguous) join = part.is_match == previous_match;
    if (behavior == SplitBehavior::merged_with_previous) join = part.is_match && !previous_match;
    previous_match = part.is_match;
    if (behavior == SplitBehavior::removed && part.is_match) continue;
    if (join && !out.empty()) {
      out.back().end = part.span.end;
    } else {
      out.push_back(part.span);
    }
  }
  return out;
}

Result<Regex> PreTokenizer::gpt2_pattern() { return Regex::compile(kGpt2Pattern); }

Result<Regex> PreTokenizer::digits_pattern() { return Regex::compile(kDigitsPattern); }

// ASCII punctuation and symbols, and category P of Unicode 8 without what came later; two marks have left it
// since.
Result<Regex> PreTokenizer::punctuation_pattern() {
  return Regex::compile(
      R"((?![\x{61d}\x{9fd}\x{a76}\x{c77}\x{c84}\x{1b4e}\x{1b4f}\x{1b7d}-\x{1b7f}\x{2e43}-\x{2e4f}\x{2e52}-\x{2e5d})"
      R"(\x{10d6e}\x{10ead}\x{10f55}-\x{10f59}\x{10f86}-\x{10f89}\x{113d4}-\x{113d8}\x{1144b}-\x{1144f}\x{1145a})"
      R"(\x{1145b}\x{1145d}\x{11660}-\x{1166c}\x{116b9}\x{1183b}\x{11944}-\x{11946}\x{119e2}\x{11a3f}-\x{11a46})"
      R"(\x{11a9a}-\x{11a9c}\x{11a9e}-\x{11aa2}\x{11b00}-\x{11b09}\x{11be1}\x{11c41}-\x{11c45}\x{11c70}\x{11c71})"
      R"(\x{11ef7}\x{11ef8}\x{11f43}-\x{11f4f}\x{11fff}\x{12ff1}\x{12ff2}\x{16d6d}-\x{16d6f}\x{16e97}-\x{16e9a})"
      R"(\x{16fe2}\x{1e5ff}\x{1e95e}\x{1e95f}])[\p{P}$+<=>^`|~\x{166d}\x{111c9}])");
}

bool PreTokenizer::has_byte_level() const {
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) return true;
  }
  return false;
}

Status PreTokenizer::run(std::string_view text, bool in_alphabet, bool at_start, RegexScratch& scratch, Pieces& pieces) const {
  Views views;
  if (!text.empty()) views.push_back(text);
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (const auto* split = std::get_if<Split>(&steps_[i])) {
      FOVEA_TRY(split_views(split->pattern, split->behavior, split->invert, scratch, views));
      continue;
    }
    if (const auto* metaspace = std::get_if<Metaspace>(&steps_[i])) {
      apply_metaspace(*metaspace, at_start, views, pieces);
      continue;
    }
    const auto& byte_level = std::get<ByteLevel>(steps_[i]);
    for (std::string_view& view : views) {
      if (byte_level.add_prefix_space && view.front() != ' ') {
        view = pieces.made.emplace_back(" " + std::string(view));
      }
    }
    if (byte_level.pattern) {
      FOVEA_TRY(split_views(*byte_level.pattern, SplitBehavior::isolated, false, scratch, views));
    }
    if (i + 1 == steps_.size()) continue;
    in_alphabet = true;
    for (std::string_view& view : views) view = pieces.made.emplace_back(byte_alphabet::encode(view));
  }
  if (in_alphabet) {
    for (std::string_view& view : views) {
      std::optional<std::string> bytes = byte_alphabet::decode(view);
      FOVEA_CHECK(bytes.has_value());  // it was written so, and only cut since
      view = pieces.made.emplace_back(*std::move(bytes));
    }
  }
  pieces.views.insert(pieces.views.end(), views.begin(), views.end());
  return {};
}

}  // namespace fovea
