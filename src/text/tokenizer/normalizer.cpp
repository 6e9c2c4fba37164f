#include "text/tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include <utf8proc.h>

#include "base/check.h"
#include "text/tokenizer/unicode_data.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

// Below the first combining mark nothing decomposes in NFC's eyes: such text is its own NFC.
constexpr char32_t kFirstMark = 0x300;
constexpr size_t kRunChars = 1024;

bool is_compat(UnicodeForm form) { return form == UnicodeForm::nfkc || form == UnicodeForm::nfkd; }
bool is_composed(UnicodeForm form) { return form == UnicodeForm::nfc || form == UnicodeForm::nfkc; }

bool is_own_nfc(std::string_view text) {
  for (const char b : text) {
    if (static_cast<uint8_t>(b) >= 0xCC) return false;  // 0xCC leads U+0300
  }
  static_assert(kFirstMark == 0x300);
  return true;
}

using Chars = std::vector<utf8proc_int32_t>;

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

void decompose(utf8proc_int32_t c, bool compat, Chars& out) {
  constexpr utf8proc_ssize_t kLongest = 32;  // U+FDFA decomposes into 18
  utf8proc_int32_t buffer[kLongest];
  int boundary = 0;
  const int options = UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
  const utf8proc_ssize_t n = utf8proc_decompose_char(c, buffer, kLongest, static_cast<utf8proc_option_t>(options), &boundary);
  FOVEA_CHECK(n > 0 && n <= kLongest);
  out.insert(out.end(), buffer, buffer + n);
}

// utf8proc_map sorts marks by insertion, which takes hours on a megabyte of them: each run is sorted here.
void order_marks(Chars& chars) {
  const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
  auto at = chars.begin();
  while ((at = std::find_if(at, chars.end(), is_mark)) != chars.end()) {
    const auto end = std::find_if_not(at, chars.end(), is_mark);
    std::stable_sort(at, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    at = end;
  }
}

// chars: decomposed characters that later versions of Unicode did not touch. Cleared.
void finish_run(Chars& chars, bool compose, std::string& out) {
  if (chars.empty()) return;
  order_marks(chars);
  auto n = static_cast<utf8proc_ssize_t>(chars.size());
  if (compose) {
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    n = utf8proc_normalize_utf32(chars.data(), n, options);
    FOVEA_CHECK(n >= 0);
  }
  for (utf8proc_ssize_t i = 0; i < n; ++i) utf8::append(out, static_cast<char32_t>(chars[i]));
  chars.clear();
}

Result<std::string> replace_all(const Normalizer::Replace& step, std::string_view text, RegexScratch& scratch) {
  std::vector<Span> matches;
  FOVEA_TRY(step.pattern.find_all(text, scratch, matches));
  std::string out;
  size_t at = 0;
  for (const Span& m : matches) {
    if (m.begin > at) out.append(text, at, m.begin - at);
    out += step.content;
    at = m.end;
  }
  out.append(text, at, std::string_view::npos);
  return out;
}

}  // namespace

std::string normalize_unicode(std::string_view text, UnicodeForm form) {
  if (form == UnicodeForm::nfc && is_own_nfc(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  Chars run;
  while (!text.empty()) {
    const utf8::Step s = utf8::step(text);
    if (unicode::unknown_to_normalizer(s.codepoint)) {
      finish_run(run, is_composed(form), out);
      utf8::append(out, s.codepoint);
    } else {
      // ASCII never combines with what stands before it: the run may end here.
      if (s.codepoint < 0x80 && run.size() > kRunChars) finish_run(run, is_composed(form), out);
      decompose(static_cast<utf8proc_int32_t>(s.codepoint), is_compat(form), run);
    }
    text.remove_prefix(s.length);
  }
  finish_run(run, is_composed(form), out);
  return out;
}

void Normalizer::add(Step step) { steps_.push_back(std::move(step)); }

Result<std::string> Normalizer::run(std::string_view text, RegexScratch& scratch) const {
  std::string now(text);
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      now = normalize_unicode(now, *form);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      FOVEA_ASSIGN(now, replace_all(*replace, now, scratch));
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!now.empty()) now.insert(0, prepend->text);
    } else {
      now = byte_alphabet::encode(now);
    }
  }
  return now;
}

}  // namespace fovea
