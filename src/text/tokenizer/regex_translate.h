// A regex written for Oniguruma (the dialect of tokenizer.json files) rewritten so that PCRE2 matches the
// same.
#pragma once

#include <string>
#include <string_view>

#include <fovea/status.h>

namespace fovea {

// The result is meant for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE with LF as the newline. What differs and is
// rewritten: sets (\s \w \h \p{..} [[:x:]], nested and intersected classes), {n,m}+ and {n}? and stacked
// quantifiers, (?m), isolated (?i), escapes that mean something else. What has no counterpart here is
// refused: absent groups, callouts, subexpression calls, conditionals, bytes above \x7f. pattern is valid
// UTF-8.
Result<std::string> translate_regex(std::string_view pattern);

}  // namespace fovea
