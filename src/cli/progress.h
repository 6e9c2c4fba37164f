// A progress line on a terminal: bar, units a second, time left. Silent where stderr is no terminal.
#pragma once

#include <cstdint>
#include <string>

namespace fovea::cli {

class Progress {
 public:
  explicit Progress(std::string label, std::string unit = "tokens");
  ~Progress() { clear(); }
  void show(int64_t done, int64_t total);
  void clear();

 private:
  const std::string label_, unit_;
  const bool terminal_;
  bool shown_ = false;
  double start_s_ = 0;
  double last_s_ = 0;
};

}  // namespace fovea::cli
