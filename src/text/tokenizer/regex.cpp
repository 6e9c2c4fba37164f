#include "text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"
#include "text/tokenizer/regex_property.h"
#include "text/tokenizer/regex_translate.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;          // backtracks of one match; Oniguruma stops there as well
constexpr uint32_t kDepthLimit = 10'000'000;          // of the interpreter, where there is no JIT
constexpr size_t kStackBytesMax = size_t{256} << 20;  // of one match that remembers much, as (?:ab)+ on a megabyte
constexpr size_t kPatternBytesMax = 64 * 1024;

std::string error_text(int code) {
  PCRE2_UCHAR buffer[160];
  const int n = pcre2_get_error_message(code, buffer, sizeof buffer);
  return n > 0 ? std::string(reinterpret_cast<const char*>(buffer), n) : "error " + std::to_string(code);
}

}  // namespace

struct Regex::Compiled {
  std::string source;
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;
  ~Compiled() {
    pcre2_code_free(code);
    pcre2_match_context_free(limits);
  }
};

namespace {

// The JIT runs on 32 KiB of the thread's stack, which does for nearly all; this is for the rest.
int match_with_large_stack(const pcre2_code* code, const pcre2_match_context* limits, std::string_view text, size_t at,
                           pcre2_match_data* match) {
  constexpr size_t kFirstBytes = 64 * 1024;
  const std::unique_ptr<pcre2_jit_stack, decltype(&pcre2_jit_stack_free)> stack(
      pcre2_jit_stack_create(kFirstBytes, kStackBytesMax, nullptr), &pcre2_jit_stack_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> own(
      pcre2_match_context_copy(const_cast<pcre2_match_context*>(limits)), &pcre2_match_context_free);
  if (!stack || !own) return PCRE2_ERROR_NOMEMORY;
  pcre2_jit_stack_assign(own.get(), nullptr, stack.get());
  return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK, match, own.get());
}

}  // namespace

RegexScratch::RegexScratch() : match_(pcre2_match_data_create(1, nullptr)) { FOVEA_CHECK(match_ != nullptr); }
RegexScratch::~RegexScratch() { pcre2_match_data_free(static_cast<pcre2_match_data*>(match_)); }

Regex::Regex(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

const std::string& Regex::source() const { return compiled_->source; }

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return Status::unsupported("a regex of " + std::to_string(pattern.size()) + " bytes (at most " +
                               std::to_string(kPatternBytesMax) + ")");
  }
  FOVEA_ASSIGN(const std::string translated, translate_regex(pattern));

  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(pcre2_compile_context_create(nullptr),
                                                                                              &pcre2_compile_context_free);
  auto compiled = std::make_unique<Compiled>();
  compiled->source = pattern;
  compiled->limits = pcre2_match_context_create(nullptr);
  if (!context || compiled->limits == nullptr) return Status::resource_exhausted("no memory for a regex");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  pcre2_set_match_limit(compiled->limits, kMatchLimit);
  pcre2_set_depth_limit(compiled->limits, kDepthLimit);
  pcre2_set_heap_limit(compiled->limits, kStackBytesMax / 1024);

  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK, &error,
                                 &offset, context.get());
  if (compiled->code == nullptr) return Status::unsupported(error_text(error));
  // No JIT on this machine: the interpreter runs, with the same result.
  (void)pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(compiled));
}

Result<Regex> Regex::literal(std::string_view text) {
  std::string pattern;
  for (const char32_t c : utf8::decode(text)) pattern += literal_char(c);
  return compile(pattern);
}

Status Regex::find_all(std::string_view text, RegexScratch& scratch, std::vector<Span>& matches) const {
  auto* match = static_cast<pcre2_match_data*>(scratch.match_);
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(match);
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  bool skip_next_empty = false;
  size_t at = 0;
  while (at <= text.size()) {
    int rc = pcre2_match(compiled_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, match, compiled_->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match_with_large_stack(compiled_->code, compiled_->limits, text, at, match);
    if (rc == PCRE2_ERROR_NOMATCH) return {};
    if (rc < 0) {
      return Status::resource_exhausted("the regex gave up at byte " + std::to_string(at) + ": " + error_text(rc));
    }
    const Span span{found[0], found[1]};
    // \K in a lookahead can put the end before the start; the oracle has no such matches.
    if (span.end < span.begin || span.end < at) {
      return Status::unsupported("the regex matches backwards at byte " + std::to_string(at));
    }
    at = span.end;
    if (span.begin == span.end) {
      at += at < text.size() ? utf8::step(text.substr(at)).length : 1;
      if (skip_next_empty) {
        skip_next_empty = false;
        continue;
      }
    } else {
      skip_next_empty = true;
    }
    matches.push_back(span);
  }
  return {};
}

}  // namespace fovea
