// Stream: operations enqueued on it run in order. On the CPU each is finished when its call returns.
#pragma once

#include <fovea/status.h>

namespace fovea {

class Stream {
 public:
  virtual ~Stream() = default;
  // Waits for everything enqueued; reports what failed since the last call.
  virtual Status synchronize() = 0;
  // What is known to have failed so far; does not wait, and forgets nothing.
  virtual const Status& error() const {
    static const Status kNone;
    return kNone;
  }
};

class CpuStream final : public Stream {
 public:
  Status synchronize() override { return {}; }
};

}  // namespace fovea
