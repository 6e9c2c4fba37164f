// Stop strings in a stream of text pieces: nothing that could still become a stop string is let out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fovea {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds text; returns what may be shown now. After a stop was found it returns nothing more.
  std::string push(std::string_view text);
  // The answer has ended: returns what was held back.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace fovea
