// FileChannel: one thread's reads of slabs. Batches are sorted by place and cut into I/Os. What the page cache has is copied
// straight into the caller's memory; what it has not is read by the disk into memory of the channel (disk_reads.h) and copied from
// there, so that a disk which hangs holds nobody's memory but ours. Where memory was lent, the disk reads straight into that; not
// while something hangs, so that no more of it is ever held than what was under way by then.
// Copies and digests are shared with the store's helpers where there is much of it: the thread of the channel submits, takes back
// what is done, and does its part while it waits. While the disk has enough to do it does all of it: helpers would take cores from
// the one thread that keeps the disk busy.
#pragma once

#include "store/disk_reads.h"
#include "store/read_helpers.h"
#include "store/slab_openers.h"
#include "store/slab_store.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace fovea {

// What a channel needs of its store; all of it thread-safe.
struct ChannelHost {
  const SlabIndex* index = nullptr;
  SlabOpeners* openers = nullptr;
  StoreCounters* counters = nullptr;
  FileSystem* fs = nullptr;
  ReadHelpers* helpers = nullptr;
  std::function<void(const Located&)> lost;          // its bytes are bad
  std::function<void(const Located&)> slab_is_gone;  // its file is
  bool direct = false;
  double patience_s = 30;  // what the disk has not done by then has failed
  bool verify = true;      // false: a switch for measurements alone
};

class FileChannel final : public StoreChannel, private ReadHelpers::Work {
 public:
  static constexpr uint32_t kIos = 4 * DiskReads::kDepth;  // begun: more than the disk has, for others are copied or digested
  static constexpr size_t kMaxBatches = 64;                // that wait or run
  // 256 KiB: what the page cache gave is still in the CPU's cache when it is digested.
  static constexpr size_t kMaxIoBytes = DiskReads::kLargeBytes;
  static constexpr size_t kMaxWorkBytes = 64u << 10;  // that a thread takes at a time, if it is several I/Os
  static constexpr size_t kMaxPieces = 256;           // extents of an I/O
  // Runs of lent memory that an I/O goes straight into are so long on average, if it is not one: a disk is told each of them
  // (disk_reads.h). Against a copy, at 2.6 GB/s: one run of 256 KiB took 0.94 of the time, two 0.99, four 1.01, eight 1.22.
  static constexpr size_t kRunBytes = 64u << 10;
  static constexpr size_t kAloneBytes = 1u << 20;  // less work than that is not worth waking a helper

  FileChannel(ChannelHost host, std::unique_ptr<IoEngine> engine);
  ~FileChannel() override;

  Status submit(ReadBatch& batch) override;
  int poll() override;
  Status wait(ReadBatch& batch, double until_s) override;
  void cancel(ReadBatch& batch) override;

 private:
  // A read and where it lies.
  struct Planned {
    uint32_t read;  // index in the batch
    int32_t part;   // of the slab
    uint64_t slab_number, offset;
    SlabIndex::Front front;
  };
  struct Active {
    ReadBatch* batch = nullptr;
    uint64_t order = 0;
    std::vector<Planned> plan;  // by place
    size_t next = 0;            // of the plan: has not begun
    int32_t left = 0;           // reads without a result
  };
  // An I/O: `count` neighbours of a batch's plan. First the page cache is asked, if there is one, then the disk.
  struct Io {
    Active* active = nullptr;
    size_t first = 0, count = 0;
    SlabOpeners::Opened slab;
    bool again = false;              // one extent that failed, for the second and last time
    bool arrived = false;            // else the disk has to read it
    int32_t place = kFromCache;      // of disk_
    uint64_t offset = 0;             // of what the disk reads: whole pages
    size_t bytes = 0;                // likewise
    int64_t result = 0;              // of reading
    bool straight = false;           // the disk reads into the pieces, which were lent
    std::vector<iovec> pieces;       // of memory: where it goes
    std::vector<std::byte> gaps;     // between them
    std::vector<IoResult> outcomes;  // [count] of what has arrived
  };
  static constexpr int32_t kFromCache = -1;
  // An extent that failed once.
  struct Again {
    Active* active;
    size_t at;  // of its plan
    SlabOpeners::Opened slab;
  };

  bool advance(bool waits);
  void wait_for_some(double timeout_s);
  void pump();
  bool flush(bool all);
  bool take_completions();
  void arrive(const DiskReads::Ended& ended);
  bool take_back();
  void add_work(uint32_t slot);
  bool work_some();
  void help() override;
  void work(Io& io);
  Active* next_active();
  bool may_start(Io& io, const Active& active);
  bool start(Io& io, Active& active);
  void start_again(Io& io, Again again);
  size_t run_length(const Active& active, size_t first) const;
  void set_place(Io& io);
  void set_pieces(Io& io);
  bool may_go_straight(const Io& io) const;
  bool begin_on_disk(uint32_t slot);
  void check(Io& io);
  void finish(uint32_t slot, bool may_try_again);
  void fail(Active& active, size_t first, size_t count, const Status& status);
  bool verified(const Io& io, const Planned& p, const std::byte* bytes) const;
  // is_lost: its bytes are bad, so that nothing should find it again.
  void end(Active& active, const Planned& p, IoResult result, bool is_lost);
  void count_good();
  void release(Active& active);

  ChannelHost host_;
  DiskReads disk_;
  std::vector<Io> ios_;
  std::vector<uint32_t> free_ios_;
  std::deque<uint32_t> to_disk_;  // I/Os that wait for a place there
  std::deque<Again> again_;
  std::vector<uint32_t> taken_;  // scratch of take_back()
  std::vector<std::unique_ptr<Active>> active_, spare_;
  uint64_t next_order_ = 0;
  int ended_ = 0;                              // since the last poll()
  int64_t good_extents_ = 0, good_bytes_ = 0;  // not counted yet

  std::mutex mutex_;  // guards all below
  std::condition_variable came_back_;
  std::deque<uint32_t> work_;   // I/Os to be copied or digested, by any thread that helps
  size_t work_bytes_ = 0;       // of them
  int working_ = 0;             // I/Os that some thread has taken of them
  std::vector<uint32_t> back_;  // that are done
};

}  // namespace fovea
