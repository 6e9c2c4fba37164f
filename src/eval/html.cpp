#include "eval/html.h"

#include <nlohmann/json.hpp>

namespace fovea {

std::string html_escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
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
