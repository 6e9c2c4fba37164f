// The filter tojson: json.dumps of Python.
#include <algorithm>
#include <cmath>

#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

struct Writer {
  Runtime& rt;
  bool ascii, sort_keys, pretty;
  std::string indent, item_separator, key_separator;
  std::string out = {};

  void write(const Value& value, int depth);
  void write_text(std::string_view text);
  void write_letter(std::string_view letter);
  void write_escape(char32_t unit);
  void write_items(const std::vector<Value>& items, int depth);
  void write_dict(const Dict& dict, int depth);
  void new_line(int depth);
};

void Writer::write_escape(char32_t unit) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += "0123456789abcdef"[(unit >> shift) & 15];
}

void Writer::write_letter(std::string_view letter) {
  const char32_t cp = decode(letter, 0).value;
  constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f", kEscaped = "\"\\nrtbf";
  const size_t special = cp < 0x80 ? kSpecial.find(static_cast<char>(cp)) : std::string_view::npos;
  if (special != std::string_view::npos) {
    out += '\\';
    out += kEscaped[special];
  } else if (cp < 0x20 || (ascii && cp > 0x7F && cp < 0x10000)) {
    write_escape(cp);
  } else if (ascii && cp >= 0x10000) {
    write_escape(0xD800 + ((cp - 0x10000) >> 10));
    write_escape(0xDC00 + ((cp - 0x10000) & 0x3FF));
  } else {
    out += letter;
  }
}

void Writer::write_text(std::string_view text) {
  rt.meter().step_bytes(text.size());
  out += '"';
  for (size_t pos = 0; pos < text.size();) {
    size_t plain = pos;  // most text needs no escape
    while (plain < text.size() && text[plain] >= 0x20 && text[plain] != '"' && text[plain] != '\\') ++plain;
    out += text.substr(pos, plain - pos);
    pos = plain;
    if (pos == text.size()) break;
    const std::string_view letter = text.substr(pos, decode(text, pos).bytes);
    write_letter(letter);
    pos += letter.size();
  }
  out += '"';
}

void Writer::new_line(int depth) {
  if (!pretty) return;
  out += '\n';
  for (int i = 0; i < depth; ++i) {
    rt.check_text(out.size() + indent.size());
    out += indent;
  }
}

void Writer::write_items(const std::vector<Value>& items, int depth) {
  out += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += item_separator;
    new_line(depth + 1);
    write(items[i], depth + 1);
  }
  if (!items.empty()) new_line(depth);
  out += ']';
}

void Writer::write_dict(const Dict& dict, int depth) {
  std::vector<const std::pair<Value, Value>*> items;
  for (const auto& item : dict.items) items.push_back(&item);
  if (sort_keys) {
    std::stable_sort(items.begin(), items.end(), [&](auto* a, auto* b) { return less(rt, a->first, b->first); });
  }
  out += '{';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += item_separator;
    new_line(depth + 1);
    write_text(to_text(rt, items[i]->first));
    out += key_separator;
    write(items[i]->second, depth + 1);
  }
  if (!items.empty()) new_line(depth);
  out += '}';
}

void Writer::write(const Value& value, int depth) {
  rt.step();
  rt.check_text(out.size());
  switch (value.kind()) {
    case Kind::none:
      out += "null";
      return;
    case Kind::boolean:
      out += value.as_int() != 0 ? "true" : "false";
      return;
    case Kind::integer:
      out += std::to_string(value.as_int());
      return;
    case Kind::floating: {
      const double number = value.as_double();
      out += std::isnan(number) ? "NaN" : std::isinf(number) ? number < 0 ? "-Infinity" : "Infinity" : float_repr(number);
      return;
    }
    case Kind::string:
      return write_text(value.text());
    case Kind::list:
    case Kind::tuple:
      return write_items(value.items(), depth);
    case Kind::dict:
      return write_dict(value.as<Dict>(), depth);
    case Kind::undefined:
      Runtime::fail("tojson of an undefined value: " + value.as<Hint>().text);
    default:
      Runtime::fail(std::string("tojson: a value of type ") + type_name(value) + " has no JSON form");
  }
}

}  // namespace

std::string to_json(Runtime& rt, const Value& value, const Args& args) {
  const Params params("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  const bool pretty = params.has(1);
  Writer writer{rt, params.flag(0), params.flag(3), pretty, "", pretty ? "," : ", ", ": "};
  if (pretty && params.get(1).is_string()) {
    writer.indent = std::string(params.text(1));
  } else if (pretty) {
    const auto width = static_cast<size_t>(std::max<Int>(params.integer(1, 0), 0));
    rt.check_text(width);
    writer.indent = std::string(width, ' ');
  }
  if (params.has(2)) {
    const std::vector<Value> separators = to_vector(rt, params.get(2));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      Runtime::fail("tojson: separators must be two strings");
    }
    writer.item_separator = std::string(separators[0].text());
    writer.key_separator = std::string(separators[1].text());
  }
  writer.write(value, 0);
  rt.check_text(writer.out.size());
  return std::move(writer.out);
}

}  // namespace fovea::jinja
