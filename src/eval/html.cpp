#include "eval/html.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace fovea {

std::string html_escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    const char* entity = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : nullptr;
    entity ? out += entity : out += c;
  }
  return out;
}

std::string html_head(const std::string& title, const std::string& style) {
  return R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fovea: )html" +
         title + R"html(</title>
<style>
:root { --ink:#222428; --dim:#6c7078; --line:#e4e6ea; --soft:#f6f7f9 }
* { box-sizing:border-box }
body { margin:0; background:#fff; color:var(--ink); font:14px/1.5 system-ui, "DejaVu Sans", sans-serif }
main { margin:0 auto; padding:36px 24px 64px }
h1 { font-size:26px; font-weight:600; letter-spacing:-.01em; margin:0 0 4px; overflow-wrap:anywhere }
#tip { position:fixed; pointer-events:none; display:none; background:#fff; border:1px solid #c9ccd2; border-radius:6px; padding:6px 11px;
  box-shadow:0 4px 14px #0002; font-size:13px; font-variant-numeric:tabular-nums; z-index:2 }
)html" + style +
         "</style></head><body><main>\n";
}

std::string html_end(const nlohmann::ordered_json& data, const std::string& script) {
  return html_data(data, "data") + R"html(
<div id="tip"></div>
<script>
const page = JSON.parse(document.getElementById('data').textContent), tip = document.getElementById('tip');
function el(tag, cls, text) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  return e;
}
// Beside the pointer, inside the window.
function place_tip(e) {
  tip.style.display = 'block';
  tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = e.clientY + 14 + 'px';
}
)html" + script +
         "</script></main></body></html>\n";
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
