#include "text/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/tokenizer/regex_property.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

// White_Space of Unicode, which no longer changes.
bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

char32_t last_char(std::string_view text, size_t& length) {
  length = 1;
  while (length < text.size() && (static_cast<uint8_t>(text[text.size() - length]) & 0xC0) == 0x80) ++length;
  return utf8::step(text.substr(text.size() - length)).codepoint;
}

size_t without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    size_t length = 0;
    if (!is_space(last_char(text, length))) break;
    text.remove_suffix(length);
  }
  return text.size();
}

size_t leading_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const utf8::Step s = utf8::step(text.substr(at));
    if (!is_space(s.codepoint)) break;
    at += s.length;
  }
  return at;
}

}  // namespace

bool AddedTokenMatcher::add(AddedToken token) {
  FOVEA_CHECK(!token.pattern.empty());
  uint32_t node = 0;
  for (const char b : token.pattern) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<uint8_t>(b);
    const auto [it, fresh] = edges_.try_emplace(edge, static_cast<uint32_t>(ends_.size()));
    if (fresh) ends_.push_back(kNone);
    node = it->second;
  }
  if (ends_[node] != kNone) return false;
  if (token.single_word && !word_char_) {
    // Rust's \w, which is Unicode's: the word characters and the joiners.
    Result<Regex> word = Regex::compile("[[:word:]\\x{200c}\\x{200d}]");
    FOVEA_CHECK(word.ok());
    word_char_ = std::move(word).value();
  }
  ends_[node] = static_cast<int32_t>(tokens_.size());
  starts_[static_cast<uint8_t>(token.pattern[0])] = true;
  tokens_.push_back(std::move(token));
  return true;
}

bool AddedTokenMatcher::stands_alone(std::string_view text, size_t begin, size_t end) const {
  const auto is_word = [&](std::string_view character) {
    RegexScratch scratch;
    std::vector<Span> matches;
    FOVEA_CHECK(word_char_->find_all(character, scratch, matches).ok());
    return !matches.empty();
  };
  size_t length = 0;
  if (begin > 0) {
    (void)last_char(text.substr(0, begin), length);
    if (is_word(text.substr(begin - length, length))) return false;
  }
  return end == text.size() || !is_word(text.substr(end, utf8::step(text.substr(end)).length));
}

size_t AddedTokenMatcher::longest(std::string_view text, int32_t& token) const {
  uint32_t node = 0;
  size_t length = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto it = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[i]));
    if (it == edges_.end()) break;
    node = it->second;
    if (ends_[node] == kNone) continue;
    token = ends_[node];
    length = i + 1;
  }
  return length;
}

std::vector<AddedTokenMatcher::Segment> AddedTokenMatcher::find(std::string_view text, bool skip_special) const {
  std::vector<Segment> segments;
  size_t done = 0;  // what the last token covered, its white space included
  size_t at = 0;
  size_t space_end = 0;  // of the last white space seen by rstrip: it is not walked again for every token inside it
  while (at < text.size()) {
    int32_t index = kNone;
    const size_t length = starts_[static_cast<uint8_t>(text[at])] ? longest(text.substr(at), index) : 0;
    if (length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at;
    size_t end = at += length;  // the search goes on here, even if rstrip takes more
    if (skip_special && token.special) continue;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip && done < begin) begin = done + without_trailing_space(text.substr(done, begin - done));
    if (token.lstrip && done > begin) begin = done;
    if (token.rstrip) {
      if (end >= space_end) space_end = end + leading_space(text.substr(end));
      end = space_end;
    }
    if (done < begin) segments.push_back({kNone, done, begin});
    segments.push_back({token.id, begin, end});
    done = end;
  }
  if (done < text.size()) segments.push_back({kNone, done, text.size()});
  return segments;
}

}  // namespace fovea
