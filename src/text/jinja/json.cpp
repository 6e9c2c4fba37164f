// The filter tojson: json.dumps of Python.
#include <algorithm>
#include <cmath>

#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

struct Writer {
  explicit Writer(Runtime& runtime) : rt(runtime) {}

  Runtime& rt;
  bool ascii = false, sort_keys = false, pretty = false;
  std::string indent, item_separator = ", ", key_separator = ": ";
  std::string out;

  void write(const Value& value, int depth);
  void write_text(std::string_view text);
  void write_escape(char32_t unit);
  void write_items(const std::vector<Value>& items, int depth);
  void write_dict(const Dict& dict, int depth);
  void new_line(int depth);
  std::string key_text(const Value& key);
};

std::string float_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return float_repr(value);
}

void Writer::write_escape(char32_t unit) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += "0123456789abcdef"[(unit >> shift) & 15];
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
    const CodePoint cp = decode(text, pos);
    switch (cp.value) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (cp.value < 0x20 || (ascii && cp.value >= 0x7F && cp.value < 0x10000 && cp.value != 0x7F)) {
          write_escape(cp.value);
        } else if (ascii && cp.value >= 0x10000) {
          write_escape(0xD800 + ((cp.value - 0x10000) >> 10));
          write_escape(0xDC00 + ((cp.value - 0x10000) & 0x3FF));
        } else {
          out += text.substr(pos, cp.bytes);
        }
    }
    pos += cp.bytes;
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
  if (items.empty()) {
    out += "[]";
    return;
  }
  out += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += item_separator;
    new_line(depth + 1);
    write(items[i], depth + 1);
  }
  new_line(depth);
  out += ']';
}

std::string Writer::key_text(const Value& key) {
  switch (key.kind()) {
    case Kind::string:
      return std::string(key.text());
    case Kind::none:
      return "null";
    case Kind::boolean:
      return key.as_int() != 0 ? "true" : "false";
    case Kind::integer:
      return int_text(key.as_int());
    case Kind::floating:
      return float_text(key.as_double());
    default:
      Runtime::fail(std::string("tojson: a key of a dict must be a string or a number, not ") +
                    type_name(key));
  }
}

void Writer::write_dict(const Dict& dict, int depth) {
  if (dict.items.empty()) {
    out += "{}";
    return;
  }
  std::vector<const std::pair<Value, Value>*> items;
  for (const auto& item : dict.items) items.push_back(&item);
  if (sort_keys) {
    std::stable_sort(items.begin(), items.end(),
                     [&](auto* a, auto* b) { return less(rt, a->first, b->first); });
  }
  out += '{';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += item_separator;
    new_line(depth + 1);
    write_text(key_text(items[i]->first));
    out += key_separator;
    write(items[i]->second, depth + 1);
  }
  new_line(depth);
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
      out += int_text(value.as_int());
      return;
    case Kind::floating:
      out += float_text(value.as_double());
      return;
    case Kind::string:
      write_text(value.text());
      return;
    case Kind::list:
    case Kind::tuple:
      write_items(value.items(), depth);
      return;
    case Kind::dict:
      write_dict(value.as<Dict>(), depth);
      return;
    case Kind::undefined:
      Runtime::fail("tojson of an undefined value" +
                    (value.object() ? ": " + value.as<Hint>().text : std::string()));
    default:
      Runtime::fail(std::string("tojson: a value of type ") + type_name(value) + " has no JSON form");
  }
}

}  // namespace

std::string to_json(Runtime& rt, const Value& value, const Args& args) {
  const Params params("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  Writer writer(rt);
  writer.ascii = params.flag(0, false);
  writer.sort_keys = params.flag(3, false);
  if (!params.is_none_or_missing(1)) {
    writer.pretty = true;
    writer.item_separator = ",";
    const Value indent = params.get(1);
    if (indent.is_string()) {
      writer.indent = std::string(indent.text());
    } else {
      const Int width = params.integer(1, 0);
      rt.check_text(static_cast<size_t>(std::clamp<Int>(width, 0, INT64_MAX)));
      writer.indent = std::string(static_cast<size_t>(std::max<Int>(width, 0)), ' ');
    }
  }
  if (!params.is_none_or_missing(2)) {
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
