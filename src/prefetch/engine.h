// The prefetch engine: one thread that reads extents ahead of attention, around EngineCore and a store.
//
// What it reads lands in memory of its own (landings x extent_bytes), verified by the store; the stepping thread collects it from
// there, and what it wants at once it gets through read_now(), which joins what is on its way: no extent is read twice at a time.
// The blocks of I/O under way are pinned by the engine itself, so a ticket may be cancelled, and its blocks unpinned, at any time.
#pragma once

#include "base/clock.h"
#include "base/mapped_buffer.h"
#include "prefetch/engine_core.h"
#include "store/block_store.h"

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace fovea::prefetch {

struct EngineOptions {
  CoreLimits limits;
  uint16_t part = 0;          // of the layout that is open: the one whose units tickets name
  uint32_t extent_bytes = 0;  // its unit_bytes
  bool threaded = true;       // false: it reads while its caller waits, and in pump() (simulations: one thread, one order)
};

// An extent that came. `bytes` lie there during the call.
using Collect = std::function<void(const Extent& extent, const std::byte* bytes)>;

// All calls from the stepping thread, but for counters(). Ends before its store; its destructor waits for I/O under way.
class Engine final : public ExtentSource {
 public:
  // `clock` measures queues, deadlines and timeouts, in seconds of the store's clock.
  Engine(BlockStore& store, const EngineOptions& options, const Clock& clock);
  ~Engine() override;

  // Errors: busy, invalid_argument (EngineCore::submit).
  Result<Ticket> submit(SequenceId owner, std::span<const Extent> extents, Priority priority, double deadline_s);
  // late: not within timeout_s.
  TicketState wait(Ticket ticket, double timeout_s);
  // Ends a ticket that is ready or failed, and hands out what it holds; else does nothing. The state it was in.
  TicketState get(Ticket ticket, const Collect& collect);
  // Without a thread: one turn of what it would do.
  void pump();
  void cancel(Ticket ticket);
  void cancel_owner(SequenceId owner);
  void settle(SequenceId owner, int64_t used, int64_t wasted);  // EngineCore::settle
  int64_t unused_room() const;                                  // extents
  int32_t tickets_room() const;
  const CoreLimits& limits() const { return options_.limits; }
  int64_t resident_bytes() const { return landings_.resident_bytes(); }  // memory really taken, for what has landed
  Counters counters() const;
  Counters take_counters(SequenceId owner);  // EngineCore::take_counters

  // Waits, on a channel of the stepping thread: what is on its way is waited for, what is not is read at once. With a deadline it
  // waits until then at most: reads that are late stay `pending`, though they go on, for whoever asks next, until drop_late().
  Status read_now(ReadBatch& batch) override;
  // Nobody asked for what was late.
  void drop_late() { cancel_owner(EngineCore::kDemand); }

 private:
  static constexpr int32_t kMaxFlying = 16;

  // A batch in the store, of a ticket's flights. The thread's own.
  struct Flying {
    ReadBatch batch;
    std::vector<ExtentRead> reads;
    std::vector<EngineCore::Start> starts;  // empty: free
    std::vector<StoreKey> keys;             // of the blocks of `starts`, and where they lie, pinned
    std::vector<Located> pins;
    bool submitted = false;
  };

  std::byte* landing(int32_t place) const { return landings_.data() + int64_t{place} * extent_stride_; }
  template <typename Done>
  void wait_until(std::unique_lock<std::mutex>& lock, double until_s, Done&& done);
  void run();
  bool turn(StoreChannel& channel, std::unique_lock<std::mutex>& lock);
  void end_all(StoreChannel& channel);
  bool take_next();
  void prepare(Flying& flying);
  void submit_taken(StoreChannel& channel);
  bool end_what_has_come();
  Status read_until(ReadBatch& batch, double deadline_s);
  size_t ask_for(const ReadBatch& batch, double deadline_s, std::vector<Ticket>* tickets);
  bool take(ExtentRead* read, const EngineCore::Claimed& claimed);
  void claim(ReadBatch& batch);
  Status read_claimed(ReadBatch& batch);
  void take_joined(ReadBatch& batch);

  BlockStore& store_;
  const EngineOptions options_;
  const Clock& clock_;
  const int64_t extent_stride_;
  const MappedBuffer landings_;               // each begins at a multiple of 4096
  std::unique_ptr<StoreChannel> demand_;      // the stepping thread's
  std::unique_ptr<StoreChannel> background_;  // without a thread: what it would have
  // Of read_now(): what it reads itself, and what it waits for; indices into the caller's reads.
  struct Joined {
    size_t read;
    EngineCore::Claimed claimed;
  };
  std::vector<size_t> own_;
  std::vector<ExtentRead> own_reads_;
  std::vector<Extent> asked_;
  std::vector<Joined> joined_;

  mutable std::mutex mutex_;  // guards core_ and stop_
  EngineCore core_;
  bool stop_ = false;
  std::condition_variable wake_;     // the thread: there may be something to take
  std::condition_variable arrived_;  // the stepping thread: something has ended
  std::array<Flying, kMaxFlying> flying_;
  std::thread thread_;
};

}  // namespace fovea::prefetch
