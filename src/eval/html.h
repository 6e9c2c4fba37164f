// What every page needs: data and text that stay data and text, whatever they hold.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace fovea {

// & < > and " as entities.
std::string html_escaped(const std::string& text);
// A script element of this id that holds the data as JSON: nothing in it can end the element, odd bytes become U+FFFD.
std::string html_data(const nlohmann::ordered_json& data, const std::string& id);

// A page from its first byte to the open <main>: the rules all pages share, then `style`.
std::string html_head(const std::string& title, const std::string& style);
// The rest of it: `script` finds page (the data), el(tag, class, text), and the tooltip: tip, place_tip(event).
std::string html_end(const nlohmann::ordered_json& data, const std::string& script);

// RFC 4648, padded.
std::string base64(std::span<const uint8_t> bytes);

}  // namespace fovea
