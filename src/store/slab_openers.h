// SlabOpeners: opens slabs and reads their digests on threads of its own, several at once where one is not enough, so that a disk
// that hangs there holds up these threads and nobody else for longer than the patience.
#pragma once

#include "store/slab_file.h"

#include <fovea/status.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace fovea {

// All calls from any thread.
class SlabOpeners {
 public:
  static constexpr int kThreads = 4;

  SlabOpeners(SlabFiles& files, double patience_s) : files_(files), patience_s_(patience_s) {}
  ~SlabOpeners() { close(1e30); }

  // An open slab with the digests of one of its parts.
  struct Opened {
    std::shared_ptr<SlabFile> file;
    const Digest128* table = nullptr;  // lives as long as the file
  };
  // What is open; where it is not, begins to open it and gives nothing (table is null). Does not wait.
  Opened ask(const SlabIndex::Front& front, size_t part);
  // Waits. Errors: SlabFiles::open()'s, of reading the table; io_error: the disk hangs.
  Result<Opened> open(const SlabIndex::Front& front, size_t part);
  // Ends the threads: the last call. False: one has not come back for so long, and this must not be destroyed.
  bool close(double patience_s);

 private:
  struct Job {
    SlabIndex::Front front;
    size_t part = 0;
    double asked_s = 0;
    bool done = false;
    Status status;
    Opened opened;
  };
  using Name = std::pair<uint64_t, size_t>;  // slab number, part

  std::shared_ptr<Job> find_or_add(const SlabIndex::Front& front, size_t part);
  void run();

  SlabFiles& files_;
  const double patience_s_;
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_, ended_;
  std::map<Name, std::shared_ptr<Job>> jobs_;  // not done
  std::deque<std::shared_ptr<Job>> queue_;     // of them, not begun
  bool hangs_ = false;                         // somebody's patience has ended, and nothing was opened since
  int running_ = 0, idle_ = 0;                 // threads; of them, those that wait for work
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fovea
