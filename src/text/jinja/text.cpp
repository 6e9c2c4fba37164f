// Searching, replacing, joining and escaping text.
#include <cstring>

#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

Value piece(Runtime& rt, const Value& whole, std::string_view part) {
  return rt.str(std::string(part), whole.as<Str>().markup);
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
  if (needle.size() > text.size()) return std::string_view::npos;
  if (needle.size() <= 8) return text.rfind(needle);
  const std::string backwards(text.rbegin(), text.rend()), needle_backwards(needle.rbegin(), needle.rend());
  const size_t found = find_text(backwards, needle_backwards, 0);
  return found == std::string_view::npos ? found : text.size() - found - needle.size();
}

std::string replace_text(Runtime& rt, std::string_view text, std::string_view from, std::string_view to,
                         Int count) {
  rt.meter().step_bytes(text.size());
  std::string out;
  size_t done = 0;  // text before this is in `out`
  const auto put = [&](std::string_view part) {
    rt.check_text(out.size() + part.size());
    out += part;
  };
  if (from.empty()) {  // between all code points, and at both ends
    for (Int i = 0; count < 0 || i < count; ++i) {
      put(to);
      if (done == text.size()) break;
      const size_t bytes = decode(text, done).bytes;
      put(text.substr(done, bytes));
      done += bytes;
    }
    put(text.substr(done));
    return out;
  }
  for (Int i = 0; count < 0 || i < count; ++i) {
    const size_t found = find_text(text, from, done);
    if (found == std::string_view::npos) break;
    put(text.substr(done, found - done));
    put(to);
    done = found + from.size();
  }
  put(text.substr(done));
  return out;
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
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value escape(Runtime& rt, const Value& value) {
  if (value.is_string() && value.as<Str>().markup) return value;
  return rt.str(escape_html(rt, to_text(rt, value)), true);
}

}  // namespace fovea::jinja
