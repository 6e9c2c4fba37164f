#include "eval/html.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace fovea {

std::string html_escaped(const std::string& text) {
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
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string base64(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < n ? bytes[i + k] : 0);
    for (size_t k = 0; k < 4; ++k) out += k <= n ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::string html_data(const nlohmann::ordered_json& data, const std::string& id) {
  std::string out = "<script type=\"application/json\" id=\"" + id + "\">";
  // Neither an end tag nor a comment may appear inside, and "<" stands in strings alone.
  for (char c : data.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) c == '<' ? out += "\\u003c" : out += c;
  return out + "</script>\n";
}

}  // namespace fovea
