// A test device that behaves like a hostile GPU, deterministically, on any machine.
//
// Its memory is pages that only its own work may touch: the host's read of one is a crash. What is enqueued runs later, in
// order, when something waits for it or when a seeded generator says so; graphs are lists of what was recorded. Any call that
// can fail on a GPU can be made to: at once or when its turn comes in the stream, once or from then on.
#pragma once

#include "device/device.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fovea::testing {

class FakeStream;

// What device, streams, events and memory share; outlives them all.
class FakeCore {
 public:
  explicit FakeCore(uint64_t seed) : random_(seed) {}

  // ---- faults ----
  // Counts a call that can fail; true: this one fails.
  bool strikes(const char* call);
  Status fault() const { return Status::internal("device fake: " + last_fault_ + ": made to fail"); }
  void plan(int64_t at, bool for_good, std::string only);
  int64_t calls() const { return calls_; }
  int64_t faults() const { return faults_; }
  const std::string& last_fault() const { return last_fault_; }

  // ---- memory ----
  void* map(size_t bytes, bool on_device);  // null: the system has none
  void unmap(void* data);
  bool is_device(const void* p, size_t bytes) const { return inside(device_, p, bytes); }
  bool is_pinned(const void* p, size_t bytes) const { return inside(pinned_, p, bytes); }
  int64_t taken_bytes(bool on_device) const;
  // Device memory can be touched between these two.
  void open();
  void close();

  bool chance(uint32_t one_in) { return random_() % one_in == 0; }
  uint64_t draw(uint64_t below) { return random_() % below; }
  void finish_all();  // of every stream
  void set_race(const FakeStream* stream, bool is_first) { racer_ = stream, racer_is_first_ = is_first; }
  // Work of `queued` that a stream runs although nothing waits for it.
  uint64_t runs_unasked(const FakeStream& s, uint32_t one_in, uint64_t queued);

  DeviceCounters counters;
  std::vector<FakeStream*> streams;

 private:
  struct Range {
    std::byte* base;  // of the pages
    size_t bytes;     // of the pages
    size_t size;      // asked for
  };
  using Ranges = std::map<const std::byte*, Range>;  // by the first byte handed out
  static bool inside(const Ranges& ranges, const void* p, size_t bytes);

  std::mt19937_64 random_;
  int64_t fail_at_ = -1;
  bool for_good_ = false;
  std::string only_;  // calls of this name; empty: all
  int64_t calls_ = 0, faults_ = 0;
  std::string last_fault_;
  const FakeStream* racer_ = nullptr;
  bool racer_is_first_ = false;
  Ranges device_, pinned_;
  int open_ = 0;
};

class FakeStream final : public Stream {
 public:
  explicit FakeStream(std::shared_ptr<FakeCore> core);
  ~FakeStream() override;

  // Runs everything, reports the first error noted since the last call and forgets it.
  Status synchronize() override;

  // Runs `work` later, or never where `call` fails: the stream's error tells, at once or when the work's turn would have come.
  // Behind a failure that came late, or that of an operation (what it leaves may be no valid input), nothing runs until the
  // error is taken.
  void enqueue(const char* call, std::function<void()> work, bool is_operation = false);
  void note(Status error);
  const Status& error() const override { return error_; }

 private:
  friend class FakeCore;
  friend class FakeDevice;
  friend class FakeEvent;
  friend class FakeGraph;
  using Work = std::vector<std::function<void()>>;

  void stop(Status error);
  Status take_error();
  void push(std::function<void()> work);
  void run_until(uint64_t number);  // the first `number` of all ever enqueued
  void run_unasked(uint32_t one_in);

  std::shared_ptr<FakeCore> core_;
  std::deque<std::function<void()>> queue_;
  uint64_t enqueued_ = 0, finished_ = 0;
  Work* recording_ = nullptr;
  Status error_;
  bool stopped_ = false;  // by that error
};

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(uint64_t seed = 1) : core_(std::make_shared<FakeCore>(seed)) {}

  std::string_view kind() const override { return "fake"; }
  std::string description() const override { return "fake device"; }
  bool is_host() const override { return false; }
  int64_t free_bytes() const override { return int64_t{1} << 28; }
  Result<Buffer> allocate(size_t bytes, std::string_view what) override { return take(bytes, what, true); }
  Result<Buffer> allocate_pinned(size_t bytes, std::string_view what) override { return take(bytes, what, false); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<FakeStream>(core_); }
  std::unique_ptr<Event> make_event() override;
  void copy(void* to, const void* from, size_t bytes, CopyKind kind, Stream& stream) override;
  Status transfer(std::span<const CopyExtent> extents, CopyKind kind, Stream& stream) override;
  void fill(void* to, int value, size_t bytes, Stream& stream) override;
  Result<std::unique_ptr<Graph>> capture(Stream& stream, const std::function<Status()>& work) override;
  Result<double> time(Stream& stream, const std::function<Status()>& work) override;
  DeviceCounters counters() const override { return core_->counters; }

  // Of the calls from now on that can fail (those named `only`, if given), the one numbered `at` (from 0) does, and all after it
  // where `for_good`. -1: none.
  void fail_call(int64_t at, bool for_good, std::string only = "") { core_->plan(at, for_good, std::move(only)); }
  int64_t calls() const { return core_->calls(); }                       // that could have failed, since fail_call()
  int64_t faults() const { return core_->faults(); }                     // of these failed
  const std::string& last_fault() const { return core_->last_fault(); }  // which call it was
  // Another call that can fail: this one does, or not.
  Status fallible(const char* call) { return core_->strikes(call) ? core_->fault() : Status(); }
  void finish_all() { core_->finish_all(); }
  // From now on the stream runs as early as events allow (or as late), and every other one as late (or as early).
  void race(const Stream& stream, bool is_first) { core_->set_race(static_cast<const FakeStream*>(&stream), is_first); }
  // No call fails any more: what was enqueued has run, and errors that nobody asked about are forgotten.
  void recover();
  int64_t taken_bytes(bool on_device) const { return core_->taken_bytes(on_device); }  // or of pinned memory
  // What the device's memory holds, once all that was enqueued has run.
  std::vector<std::byte> read(const void* from, size_t bytes);

 private:
  Result<Buffer> take(size_t bytes, std::string_view what, bool on_device);

  std::shared_ptr<FakeCore> core_;
};

}  // namespace fovea::testing
