// DiskReads: one channel's reads that a disk has under way, into memory of their own or lent memory. A disk may hang: a
// read that has not come back within the patience is given up, and counts as failed; its memory, its file and its place stay as they
// are until the kernel gives them back. So nobody else's memory is ever written late, and what hangs takes kDepth places of a channel
// at most.
// The memory lies in huge pages where the system has them: a disk is told where to write run by run of it, and many can be told
// only a few hundred runs at once. 256 KiB in pages of 4 KiB are up to 64 of them: three such reads fill the queue of a virtual
// disk, and it gives 1.2 GB/s where the same reads into huge pages get 2.9.
#pragma once

#include "base/clock.h"
#include "base/mapped_buffer.h"
#include "store/aligned_buffer.h"
#include "store/io_engine.h"
#include "store/lent_memory.h"
#include "store/slab_file.h"

#include <array>
#include <memory>
#include <vector>

namespace fovea {

// For one thread, but for bytes().
class DiskReads {
 public:
  static constexpr int kDepth = 64;           // under way at a time
  static constexpr int kPlaces = 2 * kDepth;  // more, for disks end many reads at once: while those are copied others are under way
  // A place has memory for a small read, so that those of a decode step share one huge page, and for a large one: eight fill a huge
  // page, and none lies in two. What is larger still takes memory of its own.
  static constexpr size_t kSmallBytes = size_t{32} << 10, kLargeBytes = size_t{256} << 10;

  DiskReads(std::unique_ptr<IoEngine> engine, double patience_s);
  ~DiskReads();  // waits for what is under way, but not for what was given up: that is left to itself

  // `offset` and `bytes`: multiples of a page. False: no place is free, or kDepth are under way.
  // `straight`: where in lent memory it goes, in whole pages.
  bool begin(uint32_t tag, std::shared_ptr<const SlabFile> file, uint64_t offset, size_t bytes,
             std::span<const iovec> straight = {}, std::shared_ptr<LentMemory> lent = {});
  void submit() { state_->engine->submit(); }

  struct Ended {
    static constexpr int32_t kGivenUp = -2;
    uint32_t tag;
    int32_t place;   // to be freed; kGivenUp: it hangs
    int64_t result;  // bytes, or -errno
  };
  // What has ended or was given up; waits up to timeout_s for the first.
  size_t reap(std::span<Ended> out, double timeout_s);
  const std::byte* bytes(int32_t place) const {  // of a read into memory of its own
    return static_cast<const std::byte*>(state_->reads[static_cast<size_t>(place)].to[0].iov_base);
  }
  void free(int32_t place);
  // For whoever has to wait for the disk: memory that large reads have not used yet but will, if those under way all end at once.
  // The system gives it and zeroes it when it is first touched, which the disk would wait for. False: there is none.
  bool touch_next();

  bool is_idle() const { return waiting_ == 0 && given_up_ == 0; }
  int waiting() const { return waiting_; }  // under way, and not given up
  bool some_hang() const { return given_up_ > 0; }
  bool all_hang() const { return given_up_ == kDepth; }

 private:
  struct Read {
    std::shared_ptr<const SlabFile> file;  // null: not under way
    AlignedBuffer larger;                  // than kLargeBytes
    std::shared_ptr<LentMemory> lent;      // null: memory of its own
    std::vector<iovec> to;
    uint32_t tag = 0;
    double begun_s = 0;
    bool arrived = false, given_up = false;

    void give_up();
    void end();
  };
  // What the kernel may still write to.
  struct State {
    MappedBuffer memory{kPlaces * (kSmallBytes + kLargeBytes)};  // small ones first
    std::array<Read, kPlaces> reads;
    std::unique_ptr<IoEngine> engine;  // ends first
  };
  std::byte* memory_for(size_t place, size_t bytes);
  size_t give_up(std::span<Ended> out);
  static void leave_behind(std::unique_ptr<State> state);

  const double patience_s_;
  const Clock clock_;
  std::unique_ptr<State> state_;
  std::vector<int32_t> free_;
  int32_t touched_ = 0;  // places whose memory for large reads has been used are below it
  int waiting_ = 0, given_up_ = 0;
  double looked_s_ = 0;  // for reads to be given up
};

}  // namespace fovea
