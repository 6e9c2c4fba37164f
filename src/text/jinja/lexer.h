// Template source to tokens, with the white space rules of jinja2 under trim_blocks and lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace fovea::jinja {

struct Token {
  enum class Type { data, block_begin, block_end, print_begin, print_end, name, text, integer, floating, op, end };
  Type type = Type::end;
  int line = 1;
  std::string text;  // data, name, unescaped string, operator
  Int integer = 0;
  double floating = 0;
};

// Fails with a TemplateError that has its line. The last token is `end`.
std::vector<Token> tokenize(std::string_view source);
std::string describe(const Token& token);  // for messages

}  // namespace fovea::jinja
