// FileChannel: one thread's reads of slabs. Batches are sorted by place and cut into I/Os; what arrives is digested while the rest
// is under way. Copying out of the page cache and digests are shared with the store's helpers where there is much of it: the
// thread of the channel submits, takes back what is done, and does its part while it waits.
#pragma once

#include "store/read_helpers.h"
#include "store/slab_file.h"
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
  SlabFiles* files = nullptr;
  StoreCounters* counters = nullptr;
  FileSystem* fs = nullptr;
  ReadHelpers* helpers = nullptr;
  std::function<void(const Located&)> lost;          // its bytes are bad
  std::function<void(const Located&)> slab_is_gone;  // its file is
  bool direct = false;
  bool verify = true;  // false: a switch for measurements alone
};

class FileChannel final : public StoreChannel, private ReadHelpers::Work {
 public:
  static constexpr int kDepth = 64;                     // reads of the disk under way
  static constexpr uint32_t kIos = 4 * kDepth;          // begun: the others are digested meanwhile
  static constexpr size_t kMaxBatches = 64;             // that wait or run
  static constexpr size_t kMaxIoBytes = 256u << 10;     // straight into the caller's memory; still in the CPU's cache when digested
  static constexpr size_t kMaxBounceBytes = 64u << 10;  // through ours, which is kDepth times that: 4 MiB
  static constexpr size_t kMaxPieces = 256;             // extents of an I/O
  static constexpr size_t kAloneBytes = 1u << 20;       // less work than that is not worth waking a helper

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
  // An I/O: `count` neighbours of a batch's plan.
  struct Io {
    Active* active = nullptr;
    size_t first = 0, count = 0;
    std::shared_ptr<SlabFile> file;
    const Digest128* table = nullptr;
    bool bounced = false;
    bool arrived = false;  // else the page cache is asked for it
    uint64_t offset = 0;   // of what is read
    size_t bytes = 0;
    int64_t result = 0;  // of reading
    std::vector<iovec> pieces;
    AlignedBuffer bounce;
    std::vector<IoResult> outcomes;  // [count] of what has arrived
  };

  bool advance(bool alone);
  void wait_for_some(double timeout_s);
  void pump();
  void flush(bool all);
  bool take_completions();
  void arrive(const IoCompletion& done);
  bool take_back();
  void add_work(uint32_t slot);
  bool work_some();
  void help() override;
  void work(Io& io);
  Active* next_active();
  void start(Io& io, Active& active);
  bool can_scatter(const Active& active, const Planned& p) const;
  size_t run_length(const Active& active, size_t first, bool* bounced) const;
  void set_pieces(Io& io);
  void check(Io& io);
  void finish(Io& io);
  void fail(Active& active, size_t first, size_t count, const Status& status);
  bool verified(const Io& io, const Planned& p, const std::byte* bytes) const;
  IoResult read_again(const Io& io, const Planned& p);
  // is_lost: its bytes are bad, so that nothing should find it again.
  void end(Active& active, const Planned& p, IoResult result, bool is_lost);
  void count_good();
  void release(Active& active);

  ChannelHost host_;
  std::unique_ptr<IoEngine> engine_;
  std::vector<Io> ios_;
  std::vector<uint32_t> free_ios_;
  std::deque<uint32_t> to_disk_;  // I/Os that the engine has not taken yet
  int on_disk_ = 0;               // I/Os that it has
  std::vector<uint32_t> taken_;   // scratch of take_back()
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
