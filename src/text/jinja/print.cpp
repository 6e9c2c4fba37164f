// str() and repr() of values.
#include "text/jinja/loop.h"
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
    const CodePoint cp = decode(text, pos);
    if (cp.value == static_cast<char32_t>(quote) || cp.value == '\\') {
      *out += '\\';
      *out += static_cast<char>(cp.value);
    } else if (cp.value == '\n' || cp.value == '\r' || cp.value == '\t') {
      *out += cp.value == '\n' ? "\\n" : cp.value == '\r' ? "\\r" : "\\t";
    } else if (is_printable(cp.value)) {
      *out += text.substr(pos, cp.bytes);
    } else if (cp.value < 0x100) {
      append_hex(out, 'x', 2, cp.value);
    } else if (cp.value < 0x10000) {
      append_hex(out, 'u', 4, cp.value);
    } else {
      append_hex(out, 'U', 8, cp.value);
    }
    pos += cp.bytes;
  }
  *out += quote;
}

void append_repr(Runtime& rt, const Value& value, std::string* out, int depth);

void append_items(Runtime& rt, const std::vector<Value>& values, std::string* out, int depth) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) *out += ", ";
    append_repr(rt, values[i], out, depth);
  }
}

void append_dict(Runtime& rt, const Dict& dict, std::string* out, int depth) {
  *out += '{';
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) *out += ", ";
    append_repr(rt, dict.items[i].first, out, depth);
    *out += ": ";
    append_repr(rt, dict.items[i].second, out, depth);
  }
  *out += '}';
}

void append_view(Runtime& rt, const View& view, std::string* out, int depth) {
  *out += view.of == ViewOf::keys     ? "dict_keys(["
          : view.of == ViewOf::values ? "dict_values(["
                                      : "dict_items([";
  const Dict& dict = view.dict.as<Dict>();
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) *out += ", ";
    const auto& [key, item] = dict.items[i];
    if (view.of == ViewOf::items) *out += '(';
    if (view.of != ViewOf::values) append_repr(rt, key, out, depth);
    if (view.of == ViewOf::items) *out += ", ";
    if (view.of != ViewOf::keys) append_repr(rt, item, out, depth);
    if (view.of == ViewOf::items) *out += ')';
  }
  *out += "])";
}

void append_namespace(Runtime& rt, const Namespace& object, std::string* out, int depth) {
  *out += "<Namespace {";
  for (size_t i = 0; i < object.attributes.size(); ++i) {
    if (i > 0) *out += ", ";
    append_quoted(out, object.attributes[i].first);
    *out += ": ";
    append_repr(rt, object.attributes[i].second, out, depth);
  }
  *out += "}>";
}

void append_range(const Range& range, std::string* out) {
  *out += "range(" + int_text(range.start) + ", " + int_text(range.stop);
  if (range.step != 1) *out += ", " + int_text(range.step);
  *out += ')';
}

void append_repr(Runtime& rt, const Value& value, std::string* out, int depth) {
  rt.step();
  rt.check_text(out->size());
  if (depth > 2 * kMaxValueDepth) Runtime::fail("the value holds itself", StatusCode::resource_exhausted);
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
      *out += int_text(value.as_int());
      return;
    case Kind::floating:
      *out += float_repr(value.as_double());
      return;
    case Kind::string:
      rt.meter().step_bytes(value.text().size());
      if (value.as<Str>().markup) *out += "Markup(";
      append_quoted(out, value.text());
      if (value.as<Str>().markup) *out += ')';
      return;
    case Kind::list:
      *out += '[';
      append_items(rt, value.items(), out, depth + 1);
      *out += ']';
      return;
    case Kind::tuple:
      *out += '(';
      append_items(rt, value.items(), out, depth + 1);
      *out += value.items().size() == 1 ? ",)" : ")";
      return;
    case Kind::dict:
      append_dict(rt, value.as<Dict>(), out, depth + 1);
      return;
    case Kind::view:
      append_view(rt, value.as<View>(), out, depth + 1);
      return;
    case Kind::range:
      append_range(value.as<Range>(), out);
      return;
    case Kind::name_space:
      append_namespace(rt, value.as<Namespace>(), out, depth + 1);
      return;
    case Kind::loop: {
      Loop& loop = value.as<Loop>();
      *out += "<LoopContext " + int_text(loop.index0 + 1) + "/" + int_text(loop.length(rt)) + ">";
      return;
    }
    default:
      *out += std::string("<") + type_name(value) + ">";
      return;
  }
}

}  // namespace

std::string to_repr(Runtime& rt, const Value& value) {
  std::string out;
  append_repr(rt, value, &out, 0);
  rt.check_text(out.size());
  return out;
}

std::string to_text(Runtime& rt, const Value& value) {
  if (value.is_string()) return std::string(value.text());
  if (value.is_undefined()) return {};
  return to_repr(rt, value);
}

Value to_str(Runtime& rt, const Value& value) {
  return value.is_string() ? value : rt.str(to_text(rt, value));
}

}  // namespace fovea::jinja
