// str() and repr() of values; searching, replacing, joining and escaping text.
#include <cstring>

#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

void append_hex(std::string* out, char letter, int digits, char32_t cp) {
  *out += '\\';
  *out += letter;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) *out += "0123456789abcdef"[(cp >> shift) & 15];
}

void append_quoted(std::string* out, std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  *out += quote;
  for (size_t pos = 0; pos < text.size();) {
    const auto [cp, bytes] = decode(text, pos);
    const std::string_view letter = text.substr(pos, bytes);
    pos += bytes;
    if (cp == static_cast<char32_t>(quote) || cp == '\\') {
      *out += '\\';
      *out += letter;
    } else if (cp == '\n' || cp == '\r' || cp == '\t') {
      *out += cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t";
    } else if (is_printable(cp)) {
      *out += letter;
    } else {
      append_hex(out, cp < 0x100 ? 'x' : cp < 0x10000 ? 'u' : 'U', cp < 0x100 ? 2 : cp < 0x10000 ? 4 : 8, cp);
    }
  }
  *out += quote;
}

void append_repr(Runtime& rt, const Value& value, std::string* out);

void append_items(Runtime& rt, const Value& value, const char* open, const char* close, std::string* out) {
  *out += open;
  for (size_t i = 0; i < value.items().size(); ++i) {
    if (i > 0) *out += ", ";
    append_repr(rt, value.items()[i], out);
  }
  *out += close;
}

void append_dict(Runtime& rt, const Dict& dict, std::string* out) {
  *out += '{';
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) *out += ", ";
    append_repr(rt, dict.items[i].first, out);
    *out += ": ";
    append_repr(rt, dict.items[i].second, out);
  }
  *out += '}';
}

void append_repr(Runtime& rt, const Value& value, std::string* out) {
  rt.step();
  rt.check_text(out->size());
  switch (value.kind()) {
    case Kind::undefined:
      *out += "Undefined";
      return;
    case Kind::none:
      *out += "None";
      return;
    case Kind::boolean:
      *out += value.as_int() != 0 ? "True" : "False";
      return;
    case Kind::integer:
      *out += std::to_string(value.as_int());
      return;
    case Kind::floating:
      *out += float_repr(value.as_double());
      return;
    case Kind::string:
      rt.meter().step_bytes(value.text().size());
      return append_quoted(out, value.text());
    case Kind::list:
      return append_items(rt, value, "[", "]", out);
    case Kind::tuple:
      return append_items(rt, value, "(", value.items().size() == 1 ? ",)" : ")", out);
    case Kind::dict:
      return append_dict(rt, value.as<Dict>(), out);
    default:
      Runtime::fail(std::string("printing a value of type '") + type_name(value) + "' is not supported", StatusCode::unsupported);
  }
}

}  // namespace

std::string to_repr(Runtime& rt, const Value& value) {
  std::string out;
  append_repr(rt, value, &out);
  rt.check_text(out.size());
  return out;
}

std::string to_text(Runtime& rt, const Value& value) {
  if (value.is_string()) return std::string(value.text());
  return value.is_undefined() ? std::string() : to_repr(rt, value);
}

size_t find_text(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // memmem takes linear time for every needle; std::string::find does not.
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t rfind_text(std::string_view text, std::string_view needle) {
  if (needle.size() <= 8) return text.rfind(needle);
  const std::string backwards(text.rbegin(), text.rend()), needle_backwards(needle.rbegin(), needle.rend());
  const size_t found = find_text(backwards, needle_backwards, 0);
  return found == std::string_view::npos ? found : text.size() - found - needle.size();
}

std::string replace_text(Runtime& rt, std::string_view text, std::string_view from, std::string_view to, Int count) {
  rt.meter().step_bytes(text.size());
  if (from.empty()) Runtime::fail("replacing an empty text is not supported", StatusCode::unsupported);
  std::string out;
  size_t done = 0;  // text before this is in `out`
  for (Int i = 0; count < 0 || i < count; ++i) {
    const size_t found = find_text(text, from, done);
    if (found == std::string_view::npos) break;
    rt.check_text(out.size() + found - done + to.size());
    out.append(text.substr(done, found - done)).append(to);
    done = found + from.size();
  }
  rt.check_text(out.size() + text.size() - done);
  return out.append(text.substr(done));
}

std::string join_texts(Runtime& rt, std::string_view separator, const std::vector<std::string>& parts) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    rt.check_text(out.size() + separator.size() + parts[i].size());
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

std::string escape_html(Runtime& rt, std::string_view text) {
  rt.meter().step_bytes(text.size());
  std::string out;
  for (const char c : text) {
    constexpr std::string_view kSpecial = "&<>'\"";
    constexpr const char* kEscaped[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const size_t at = kSpecial.find(c);
    at == std::string_view::npos ? out += c : out += kEscaped[at];
  }
  return out;
}

}  // namespace fovea::jinja
