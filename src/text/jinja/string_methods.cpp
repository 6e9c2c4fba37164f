// The methods of str.
#include <algorithm>

#include "text/jinja/attributes.h"
#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

Value cased(Runtime& rt, const char* name, const Value& self, const Args& args, Case how) {
  const Params none(name, args, {}, 0);
  const Charge memory(&rt.meter(), self.text().size() * sizeof(char32_t));
  rt.meter().step_bytes(self.text().size() * 4);
  return piece(rt, self, change_case(self.text(), how));
}
Value upper(Runtime& rt, const Value& self, const Args& args) {
  return cased(rt, "upper", self, args, Case::upper);
}
Value lower(Runtime& rt, const Value& self, const Args& args) {
  return cased(rt, "lower", self, args, Case::lower);
}
Value title(Runtime& rt, const Value& self, const Args& args) {
  return cased(rt, "title", self, args, Case::title);
}
Value swapcase(Runtime& rt, const Value& self, const Args& args) {
  return cased(rt, "swapcase", self, args, Case::swap);
}
Value casefold(Runtime& rt, const Value& self, const Args& args) {
  return cased(rt, "casefold", self, args, Case::fold);
}
Value capitalize(Runtime& rt, const Value& self, const Args& args) {
  return cased(rt, "capitalize", self, args, Case::capitalize);
}

Value strip_ends(Runtime& rt, const char* name, const Value& self, const Args& args, bool left, bool right) {
  const Params params(name, args, {"chars"}, 0, true);
  std::string_view text = self.text();
  rt.meter().step_bytes(text.size());
  if (params.is_none_or_missing(0)) return piece(rt, self, strip_space(text, left, right));
  const std::vector<char32_t> chars = code_points(params.text(0));
  const auto dropped = [&](char32_t cp) { return std::find(chars.begin(), chars.end(), cp) != chars.end(); };
  while (left && !text.empty()) {
    const CodePoint cp = decode(text, 0);
    if (!dropped(cp.value)) break;
    rt.step(1 + static_cast<int64_t>(chars.size() / 16));
    text.remove_prefix(cp.bytes);
  }
  while (right && !text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    if (start + decode(text, start).bytes != text.size()) start = text.size() - 1;  // a lone byte
    if (!dropped(decode(text, start).value)) break;
    rt.step(1 + static_cast<int64_t>(chars.size() / 16));
    text = text.substr(0, start);
  }
  return piece(rt, self, text);
}
Value strip(Runtime& rt, const Value& self, const Args& args) {
  return strip_ends(rt, "strip", self, args, true, true);
}
Value lstrip(Runtime& rt, const Value& self, const Args& args) {
  return strip_ends(rt, "lstrip", self, args, true, false);
}
Value rstrip(Runtime& rt, const Value& self, const Args& args) {
  return strip_ends(rt, "rstrip", self, args, false, true);
}

// Splitting at white space: words, and where the limit is reached the rest.
std::vector<Value> split_space(Runtime& rt, const Value& self, Int limit) {
  std::vector<Value> parts;
  std::string_view rest = strip_space(self.text(), true, false);
  while (!rest.empty()) {
    if (limit >= 0 && static_cast<Int>(parts.size()) == limit) {
      parts.push_back(piece(rt, self, rest));
      break;
    }
    size_t end = 0;
    while (end < rest.size() && !is_space(decode(rest, end).value)) end += decode(rest, end).bytes;
    parts.push_back(piece(rt, self, rest.substr(0, end)));
    rest = strip_space(rest.substr(end), true, false);
  }
  return parts;
}

// As split_space from the other end; the rest keeps its leading space.
std::vector<Value> rsplit_space(Runtime& rt, const Value& self, Int limit) {
  std::vector<Value> all = split_space(rt, self, -1);
  if (limit < 0 || static_cast<Int>(all.size()) <= limit) return all;
  const size_t whole = all.size() - static_cast<size_t>(limit);  // words that stay together
  std::string_view head = strip_space(self.text(), false, true);
  for (size_t i = all.size(); i > whole; --i) {
    head = strip_space(head.substr(0, head.size() - all[i - 1].text().size()), false, true);
  }
  std::vector<Value> parts{piece(rt, self, head)};
  parts.insert(parts.end(), all.begin() + static_cast<int64_t>(whole), all.end());
  return parts;
}

std::string_view separator_of(const Params& params) {
  const std::string_view separator = params.text(0);
  if (separator.empty()) Runtime::fail("empty separator");
  return separator;
}

Value split(Runtime& rt, const Value& self, const Args& args) {
  const Params params("split", args, {"sep", "maxsplit"}, 0);
  const Int limit = params.integer(1, -1);
  std::string_view rest = self.text();
  rt.meter().step_bytes(rest.size());
  if (params.is_none_or_missing(0)) return rt.list(split_space(rt, self, limit));
  const std::string_view separator = separator_of(params);
  std::vector<Value> parts;
  size_t from = 0;
  while (limit < 0 || static_cast<Int>(parts.size()) < limit) {
    const size_t found = find_text(rest, separator, from);
    if (found == std::string_view::npos) break;
    parts.push_back(piece(rt, self, rest.substr(from, found - from)));
    from = found + separator.size();
  }
  parts.push_back(piece(rt, self, rest.substr(from)));
  return rt.list(std::move(parts));
}

Value rsplit(Runtime& rt, const Value& self, const Args& args) {
  const Params params("rsplit", args, {"sep", "maxsplit"}, 0);
  const Int limit = params.integer(1, -1);
  std::string_view rest = self.text();
  rt.meter().step_bytes(rest.size());
  if (params.is_none_or_missing(0)) return rt.list(rsplit_space(rt, self, limit));
  const std::string_view separator = separator_of(params);
  std::vector<Value> parts;
  while (limit < 0 || static_cast<Int>(parts.size()) < limit) {
    rt.meter().step_bytes(separator.size() > 8 ? rest.size() : 0);
    const size_t found = rfind_text(rest, separator);
    if (found == std::string_view::npos) break;
    parts.push_back(piece(rt, self, rest.substr(found + separator.size())));
    rest = rest.substr(0, found);
  }
  parts.push_back(piece(rt, self, rest));
  std::reverse(parts.begin(), parts.end());
  return rt.list(std::move(parts));
}

Value splitlines(Runtime& rt, const Value& self, const Args& args) {
  const Params params("splitlines", args, {"keepends"}, 0);
  const bool keep = params.integer(0, 0) != 0;
  const std::string_view text = self.text();
  rt.meter().step_bytes(text.size());
  std::vector<Value> lines;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && !is_line_break(decode(text, end).value)) end += decode(text, end).bytes;
    size_t next = end < text.size() ? end + decode(text, end).bytes : end;
    if (end < text.size() && text[end] == '\r' && next < text.size() && text[next] == '\n') ++next;
    lines.push_back(piece(rt, self, text.substr(begin, (keep ? next : end) - begin)));
    begin = next;
  }
  return rt.list(std::move(lines));
}

Value partition_at(Runtime& rt, const char* name, const Value& self, const Args& args, bool last) {
  const Params params(name, args, {"sep"}, 1, true);
  const std::string_view text = self.text(), separator = separator_of(params);
  const size_t found = last ? rfind_text(text, separator) : find_text(text, separator, 0);
  const Value empty = piece(rt, self, {});
  if (found == std::string_view::npos)
    return rt.tuple(last ? std::vector{empty, empty, self} : std::vector{self, empty, empty});
  return rt.tuple({piece(rt, self, text.substr(0, found)), piece(rt, self, separator),
                   piece(rt, self, text.substr(found + separator.size()))});
}
Value partition(Runtime& rt, const Value& self, const Args& args) {
  return partition_at(rt, "partition", self, args, false);
}
Value rpartition(Runtime& rt, const Value& self, const Args& args) {
  return partition_at(rt, "rpartition", self, args, true);
}

// The part of the text that arguments 1 (start) and 2 (end) of a search choose, in code points.
struct Window {
  std::string_view text;
  Int first = 0;  // code points before it
  bool valid = true;
};
Window window(Runtime& rt, const Value& self, const Params& params) {
  if (params.is_none_or_missing(1) && params.is_none_or_missing(2)) return {self.text()};
  const Int length = static_cast<Int>(self.as<Str>().length);
  rt.meter().step_bytes(self.text().size());
  const auto place = [&](size_t i, Int fallback) {
    if (params.is_none_or_missing(i)) return fallback;
    Int at = params.integer(i, fallback);
    if (at < 0) at = std::max<Int>(at + length, 0);
    return at;
  };
  const Int start = place(1, 0), end = std::min(place(2, length), length);
  if (start > end) return {{}, start, false};
  const size_t from = byte_offset(self.text(), static_cast<size_t>(start));
  const size_t to = byte_offset(self.text(), static_cast<size_t>(end));
  return {self.text().substr(from, to - from), start, true};
}

Int search(Runtime& rt, const char* name, const Value& self, const Args& args, bool last) {
  const Params params(name, args, {"sub", "start", "end"}, 1, true);
  const Window part = window(rt, self, params);
  const std::string_view needle = params.text(0);
  rt.meter().step_bytes(self.text().size());
  if (!part.valid) return -1;
  const size_t found = last ? rfind_text(part.text, needle) : find_text(part.text, needle, 0);
  if (found == std::string_view::npos) return -1;
  return part.first + static_cast<Int>(count_code_points(part.text.substr(0, found)));
}
Value found_or_fail(Int at) {
  if (at < 0) Runtime::fail("substring not found");
  return Value::integer(at);
}
Value find(Runtime& rt, const Value& self, const Args& args) {
  return Value::integer(search(rt, "find", self, args, false));
}
Value rfind(Runtime& rt, const Value& self, const Args& args) {
  return Value::integer(search(rt, "rfind", self, args, true));
}
Value index(Runtime& rt, const Value& self, const Args& args) {
  return found_or_fail(search(rt, "index", self, args, false));
}
Value rindex(Runtime& rt, const Value& self, const Args& args) {
  return found_or_fail(search(rt, "rindex", self, args, true));
}

Value count(Runtime& rt, const Value& self, const Args& args) {
  const Params params("count", args, {"sub", "start", "end"}, 1, true);
  const Window part = window(rt, self, params);
  const std::string_view needle = params.text(0);
  rt.meter().step_bytes(self.text().size());
  if (!part.valid) return Value::integer(0);
  if (needle.empty()) return Value::integer(static_cast<Int>(count_code_points(part.text)) + 1);
  Int found = 0;
  for (size_t at = 0; (at = find_text(part.text, needle, at)) != std::string_view::npos; at += needle.size())
    ++found;
  return Value::integer(found);
}

Value starts_or_ends(Runtime& rt, const char* name, const Value& self, const Args& args, bool ends) {
  const Params params(name, args, {"prefix", "start", "end"}, 1, true);
  const Window part = window(rt, self, params);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) {
      Runtime::fail(std::string(name) + "() needs a string or a tuple of strings, not " + type_name(affix));
    }
    return part.valid && (ends ? part.text.ends_with(affix.text()) : part.text.starts_with(affix.text()));
  };
  const Value given = params.get(0);
  if (!given.is(Kind::tuple)) return Value::boolean(matches(given));
  for (const Value& affix : given.items()) {
    if (matches(affix)) return Value::boolean(true);
  }
  return Value::boolean(false);
}
Value startswith(Runtime& rt, const Value& self, const Args& args) {
  return starts_or_ends(rt, "startswith", self, args, false);
}
Value endswith(Runtime& rt, const Value& self, const Args& args) {
  return starts_or_ends(rt, "endswith", self, args, true);
}

Value replace(Runtime& rt, const Value& self, const Args& args) {
  const Params params("replace", args, {"old", "new", "count"}, 2, true);
  const Value to = self.as<Str>().markup ? escape(rt, params.get(1)) : params.get(1);
  if (!to.is_string()) params.text(1);
  return piece(rt, self, replace_text(rt, self.text(), params.text(0), to.text(), params.integer(2, -1)));
}

Value removeprefix(Runtime& rt, const Value& self, const Args& args) {
  const std::string_view affix = Params("removeprefix", args, {"prefix"}, 1, true).text(0);
  return self.text().starts_with(affix) ? piece(rt, self, self.text().substr(affix.size())) : self;
}
Value removesuffix(Runtime& rt, const Value& self, const Args& args) {
  const std::string_view affix = Params("removesuffix", args, {"suffix"}, 1, true).text(0);
  if (affix.empty() || !self.text().ends_with(affix)) return self;
  return piece(rt, self, self.text().substr(0, self.text().size() - affix.size()));
}

Value join(Runtime& rt, const Value& self, const Args& args) {
  const Params params("join", args, {"iterable"}, 1, true);
  std::vector<std::string> parts;
  size_t bytes = 0;
  for (const Value& item : to_vector(rt, params.get(0))) {
    if (self.as<Str>().markup) {
      parts.emplace_back(escape(rt, item).text());
    } else {
      if (!item.is_string())
        Runtime::fail(std::string("join(): every item must be a string, not ") + type_name(item));
      rt.meter().step_bytes(item.text().size());
      parts.emplace_back(item.text());
    }
    rt.check_text(bytes += parts.back().size());
  }
  return piece(rt, self, join_texts(rt, self.text(), parts));
}

Value padded(Runtime& rt, const char* name, const Value& self, const Args& args, char align) {
  const Params params(name, args, {"width", "fillchar"}, 1, true);
  const Int width = params.integer(0, 0), length = static_cast<Int>(self.as<Str>().length);
  const std::string fill(params.has(1) ? params.text(1) : " ");
  if (count_code_points(fill) != 1)
    Runtime::fail(std::string(name) + "(): the fill must be exactly one character long");
  if (width <= length) return self;
  const Int missing = width - length;
  rt.check_text(missing > static_cast<Int>(rt.max_text_bytes()) ? SIZE_MAX
                                                                : static_cast<size_t>(missing) * fill.size());
  // As str.center(): of an odd rest, the left side gets more only when the width is odd.
  const Int left = align == '<' ? 0 : align == '>' ? missing : missing / 2 + (missing & width & 1);
  std::string out;
  for (Int i = 0; i < left; ++i) out += fill;
  out += self.text();
  for (Int i = left; i < missing; ++i) out += fill;
  return piece(rt, self, out);
}
Value center(Runtime& rt, const Value& self, const Args& args) {
  return padded(rt, "center", self, args, '^');
}
Value ljust(Runtime& rt, const Value& self, const Args& args) { return padded(rt, "ljust", self, args, '<'); }
Value rjust(Runtime& rt, const Value& self, const Args& args) { return padded(rt, "rjust", self, args, '>'); }

Value zfill(Runtime& rt, const Value& self, const Args& args) {
  const Params params("zfill", args, {"width"}, 1, true);
  const Int missing = params.integer(0, 0) - static_cast<Int>(self.as<Str>().length);
  if (missing <= 0) return self;
  rt.check_text(missing > static_cast<Int>(rt.max_text_bytes()) ? SIZE_MAX : static_cast<size_t>(missing));
  std::string out(self.text());
  const bool sign = !out.empty() && (out[0] == '-' || out[0] == '+');
  out.insert(sign ? 1 : 0, static_cast<size_t>(missing), '0');
  return piece(rt, self, out);
}

Value expandtabs(Runtime& rt, const Value& self, const Args& args) {
  const Int size = Params("expandtabs", args, {"tabsize"}, 0).integer(0, 8);
  std::string out;
  Int column = 0;
  for (char c : self.text()) {
    rt.check_text(out.size());
    if (c == '\t') {
      const Int spaces = size > 0 ? size - column % size : 0;
      rt.check_text(spaces > static_cast<Int>(rt.max_text_bytes()) ? SIZE_MAX : static_cast<size_t>(spaces));
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    } else {
      out += c;
      if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++column;
      if (c == '\n' || c == '\r') column = 0;
    }
  }
  return piece(rt, self, out);
}

Value format(Runtime& rt, const Value& self, const Args& args) {
  return piece(rt, self, brace_format(rt, self, args));
}

Value format_map(Runtime& rt, const Value& self, const Args& args) {
  const Params params("format_map", args, {"mapping"}, 1, true);
  Args named;
  if (!params.get(0).is(Kind::dict))
    return piece(rt, self, brace_format(rt, self, named));  // only texts without fields
  for (const auto& [key, value] : params.get(0).as<Dict>().items) {
    if (key.is_string()) named.named.emplace_back(key.text(), value);
  }
  return piece(rt, self, brace_format(rt, self, named));
}

// True when the text is not empty and every code point passes.
template <bool (*test)(char32_t)>
Value every(Runtime& rt, const Value& self, const Args& args) {
  const Params none("is...", args, {}, 0);
  const Charge memory(&rt.meter(), self.text().size() * sizeof(char32_t));
  rt.meter().step_bytes(self.text().size() * 4);
  const std::vector<char32_t> cps = code_points(self.text());
  return Value::boolean(!cps.empty() && std::all_of(cps.begin(), cps.end(), test));
}
bool is_alnum(char32_t cp) { return is_alpha(cp) || is_numeric(cp); }

Value isascii(Runtime&, const Value& self, const Args& args) {
  const Params none("isascii", args, {}, 0);
  return Value::boolean(is_ascii(self.text()));
}
Value isprintable(Runtime& rt, const Value& self, const Args& args) {
  return Value::boolean(truthy(every<is_printable>(rt, self, args)) || self.text().empty());
}
Value isidentifier(Runtime& rt, const Value& self, const Args& args) {
  if (!truthy(every<is_word>(rt, self, args))) return Value::boolean(false);
  const char32_t first = decode(self.text(), 0).value;
  return Value::boolean(first == '_' || is_alpha(first));
}

// All cased code points of one case, and at least one.
Value cased_as(Runtime& rt, const Value& self, const Args& args, bool upper_case) {
  const Params none(upper_case ? "isupper" : "islower", args, {}, 0);
  const Charge memory(&rt.meter(), self.text().size() * sizeof(char32_t));
  rt.meter().step_bytes(self.text().size() * 4);
  bool any = false;
  for (char32_t cp : code_points(self.text())) {
    if (upper_case ? is_lower(cp) || is_title(cp) : is_upper(cp) || is_title(cp))
      return Value::boolean(false);
    any = any || (upper_case ? is_upper(cp) : is_lower(cp));
  }
  return Value::boolean(any);
}
Value isupper(Runtime& rt, const Value& self, const Args& args) { return cased_as(rt, self, args, true); }
Value islower(Runtime& rt, const Value& self, const Args& args) { return cased_as(rt, self, args, false); }

Value istitle(Runtime& rt, const Value& self, const Args& args) {
  const Params none("istitle", args, {}, 0);
  const Charge memory(&rt.meter(), self.text().size() * sizeof(char32_t));
  rt.meter().step_bytes(self.text().size() * 4);
  bool any = false, in_word = false;
  for (char32_t cp : code_points(self.text())) {
    const bool starts = is_upper(cp) || is_title(cp), inside = is_lower(cp);
    if ((starts && in_word) || (inside && !in_word)) return Value::boolean(false);
    in_word = starts || inside;
    any = any || in_word;
  }
  return Value::boolean(any);
}

constexpr Method kMethods[] = {
    {"capitalize", capitalize},
    {"casefold", casefold},
    {"center", center},
    {"count", count},
    {"endswith", endswith},
    {"expandtabs", expandtabs},
    {"find", find},
    {"format", format},
    {"format_map", format_map},
    {"index", index},
    {"isalnum", every<is_alnum>},
    {"isalpha", every<is_alpha>},
    {"isascii", isascii},
    {"isdecimal", every<is_decimal>},
    {"isdigit", every<is_digit>},
    {"isidentifier", isidentifier},
    {"islower", islower},
    {"isnumeric", every<is_numeric>},
    {"isprintable", isprintable},
    {"isspace", every<is_space>},
    {"istitle", istitle},
    {"isupper", isupper},
    {"join", join},
    {"ljust", ljust},
    {"lower", lower},
    {"lstrip", lstrip},
    {"partition", partition},
    {"removeprefix", removeprefix},
    {"removesuffix", removesuffix},
    {"replace", replace},
    {"rfind", rfind},
    {"rindex", rindex},
    {"rjust", rjust},
    {"rpartition", rpartition},
    {"rsplit", rsplit},
    {"rstrip", rstrip},
    {"split", split},
    {"splitlines", splitlines},
    {"startswith", startswith},
    {"strip", strip},
    {"swapcase", swapcase},
    {"title", title},
    {"upper", upper},
    {"zfill", zfill},
};

}  // namespace

const Method* find_string_method(std::string_view name) {
  for (const Method& method : kMethods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace fovea::jinja
