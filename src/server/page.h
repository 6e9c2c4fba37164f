// The page of `fovea serve`, built into the program (page/make_page.py).
#pragma once

#include <string_view>

namespace fovea::server {

// One HTML document, compressed by gzip. It asks nothing but this server, by paths relative to its own.
std::string_view page_gz();

}  // namespace fovea::server
