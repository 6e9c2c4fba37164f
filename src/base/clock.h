// Seconds since some start, monotonic. Passed in wherever time matters, so that tests can hold it still.
#pragma once

#include <chrono>

namespace fovea {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual double now_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

}  // namespace fovea
