// The mini-language of format(): [[fill]align][sign][#][0][width][,][.precision][type], for strings and
// numbers.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/runtime.h"

namespace fovea::jinja {

struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, or 0: the type's own
  char sign = '-';
  bool alternate = false;
  bool zero = false;  // pads with zeros after the sign, unless there is an align
  char grouping = 0;  // ',' or '_'
  Int width = 0;
  Int precision = -1;
  char type = 0;
};

FormatSpec parse_format_spec(std::string_view text);
std::string format_with(Runtime& rt, const Value& value, std::string_view spec);  // format(value, spec)

// The digits of a number under a spec, and the sign before them, not padded yet.
// With grouping and zeros, the zeros are grouped too, up to the width.
std::string format_int(Int value, const FormatSpec& spec);
std::string format_double(double value, const FormatSpec& spec);
std::string pad(Runtime& rt, std::string text, const FormatSpec& spec, char default_align);

}  // namespace fovea::jinja
