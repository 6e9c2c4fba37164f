// IoEngine: reads under way, of one thread. io_uring where the kernel lets us, else a few threads that call preadv (containers'
// seccomp rules often refuse io_uring).
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>

namespace fovea {

class FileSystem;

struct IoRequest {
  int fd = -1;
  uint64_t offset = 0;
  std::span<const iovec> to;  // lives, with its memory, until the completion
  uint64_t tag = 0;           // the caller's
};

struct IoCompletion {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes (may be short), or -errno
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;  // nothing may be under way
  // Takes a read; it begins at the next submit() or reap() at the latest. false: as many as the depth are under way.
  virtual bool push(const IoRequest& request) = 0;
  virtual void submit() = 0;
  // Completions that are there; waits up to timeout_s for the first if there is none (0: does not).
  virtual size_t reap(std::span<IoCompletion> out, double timeout_s) = 0;
  virtual const char* name() const = 0;
};

// Null where io_uring is refused.
std::unique_ptr<IoEngine> make_uring_engine(int depth);
std::unique_ptr<IoEngine> make_pread_engine(FileSystem& fs, int depth, int threads);

}  // namespace fovea
