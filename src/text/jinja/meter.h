// What a run of a template may use: steps, bytes of live values, bytes of output. Passing a limit stops the
// run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include <fovea/status.h>

namespace fovea::jinja {

// Thrown inside this folder only; ChatTemplate turns it into a Status.
struct TemplateError : std::runtime_error {
  TemplateError(StatusCode code, const std::string& what, int line = 0) : std::runtime_error(what), code(code), line(line) {}
  StatusCode code;
  int line;  // 1-based; 0: not known
};

class Meter {
 public:
  Meter(int64_t max_steps, size_t max_bytes) : max_steps_(max_steps), max_bytes_(max_bytes) {}

  void step(int64_t count = 1) {
    steps_ += count;
    if (steps_ > max_steps_) {
      throw TemplateError(StatusCode::resource_exhausted, "the template takes more than " + std::to_string(max_steps_) + " steps");
    }
  }
  // Work over a text: about as much as one step for every KiB.
  void step_bytes(size_t bytes) { step(1 + static_cast<int64_t>(bytes / 1024)); }

  // Going through entries in search of one: what the first few cost is part of the step that searches.
  void step_search(size_t entries) { step(static_cast<int64_t>(entries / 64)); }

  void charge(size_t bytes) {
    if (bytes > max_bytes_ - live_) {
      throw TemplateError(StatusCode::resource_exhausted,
                          "the template's values take more than " + std::to_string(max_bytes_) + " bytes");
    }
    live_ += bytes;
  }
  void release(size_t bytes) { live_ -= bytes; }

 private:
  const int64_t max_steps_;
  const size_t max_bytes_;
  int64_t steps_ = 0;
  size_t live_ = 0;
};

// Bytes charged for as long as this lives. A null meter charges nothing (constants of the parsed template).
class Charge {
 public:
  Charge(Meter* meter, size_t bytes) : meter_(meter), bytes_(bytes) {
    if (meter_ != nullptr) meter_->charge(bytes_);
  }
  ~Charge() {
    if (meter_ != nullptr) meter_->release(bytes_);
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  Meter* const meter_;
  const size_t bytes_;
};

}  // namespace fovea::jinja
