#include "device/fake/fake_device_test_util.h"

#include "base/check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace fovea::testing {

// ---- faults ----

bool FakeCore::strikes(const char* call) {
  if (!only_.empty() && only_ != call) return false;
  const int64_t number = calls_++;
  if (fail_at_ < 0 || number < fail_at_ || (!for_good_ && number > fail_at_)) return false;
  ++faults_;
  last_fault_ = call;
  return true;
}

void FakeCore::plan(int64_t at, bool for_good, std::string only) {
  fail_at_ = at;
  for_good_ = for_good;
  only_ = std::move(only);
  calls_ = faults_ = 0;
}

// ---- memory ----

// Ends where its pages end, and a page that nobody may touch follows.
void* FakeCore::map(size_t bytes, bool on_device) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t used = (bytes + 63) / 64 * 64, pages = std::max(page, (used + page - 1) / page * page);
  void* base = mmap(nullptr, pages + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  if (!on_device || open_) FOVEA_CHECK(mprotect(base, pages, PROT_READ | PROT_WRITE) == 0);
  auto* first = static_cast<std::byte*>(base);
  std::byte* data = first + (pages - used);
  (on_device ? device_ : pinned_).emplace(data, Range{first, pages, bytes});
  return data;
}

void FakeCore::unmap(void* data) {
  finish_all();  // as freeing memory of a GPU waits for it
  for (Ranges* ranges : {&device_, &pinned_}) {
    const auto it = ranges->find(static_cast<std::byte*>(data));
    if (it == ranges->end()) continue;
    FOVEA_CHECK(munmap(it->second.base, it->second.bytes + static_cast<size_t>(sysconf(_SC_PAGESIZE))) == 0);
    ranges->erase(it);
    return;
  }
  FOVEA_CHECK(false);  // not of this device
}

int64_t FakeCore::taken_bytes(bool on_device) const {
  int64_t bytes = 0;
  for (const auto& [data, r] : on_device ? device_ : pinned_) bytes += static_cast<int64_t>(r.size);
  return bytes;
}

bool FakeCore::inside(const Ranges& ranges, const void* p, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(p);
  auto it = ranges.upper_bound(at);
  if (it == ranges.begin()) return false;
  --it;
  return at + bytes <= it->first + it->second.size;
}

void FakeCore::open() {
  if (open_++) return;
  for (const auto& [data, r] : device_) FOVEA_CHECK(mprotect(r.base, r.bytes, PROT_READ | PROT_WRITE) == 0);
}

void FakeCore::close() {
  if (--open_) return;
  for (const auto& [data, r] : device_) FOVEA_CHECK(mprotect(r.base, r.bytes, PROT_NONE) == 0);
}

void FakeCore::finish_all() {
  for (FakeStream* s : streams) s->run_until(s->enqueued_);
}

uint64_t FakeCore::runs_unasked(const FakeStream& s, uint32_t one_in, uint64_t queued) {
  if (racer_) return (&s == racer_) == racer_is_first_ ? queued : 0;
  return chance(one_in) ? draw(queued + 1) : 0;
}

// ---- streams ----

FakeStream::FakeStream(std::shared_ptr<FakeCore> core) : core_(std::move(core)) { core_->streams.push_back(this); }

FakeStream::~FakeStream() {
  run_until(enqueued_);
  std::erase(core_->streams, this);
}

void FakeStream::note(Status error) {
  if (error_.ok()) error_ = std::move(error);
}

void FakeStream::stop(Status error) {
  note(std::move(error));
  stopped_ = true;
}

Status FakeStream::take_error() {
  stopped_ = false;
  return std::exchange(error_, Status());
}

void FakeStream::enqueue(const char* call, std::function<void()> work, bool is_operation) {
  if (!core_->strikes(call)) return push(std::move(work));
  if (recording_ || (!is_operation && core_->chance(2))) return note(core_->fault());
  push([this, error = core_->fault()] { stop(error); });
}

void FakeStream::push(std::function<void()> work) {
  if (recording_) return recording_->push_back(std::move(work));
  queue_.push_back(std::move(work));
  ++enqueued_;
  run_unasked(16);
}

void FakeStream::run_unasked(uint32_t one_in) { run_until(finished_ + core_->runs_unasked(*this, one_in, queue_.size())); }

void FakeStream::run_until(uint64_t number) {
  if (finished_ >= number) return;
  core_->open();
  while (finished_ < number) {
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    ++finished_;
    if (!stopped_) work();
  }
  core_->close();
}

Status FakeStream::synchronize() {
  FOVEA_CHECK(!recording_);
  const bool fails = core_->strikes("synchronize");
  if (!queue_.empty()) ++core_->counters.synchronizations;
  if (fails) note(core_->fault());
  if (!fails || core_->chance(2)) run_until(enqueued_);
  return take_error();
}

// ---- events ----

class FakeEvent final : public Event {
 public:
  explicit FakeEvent(std::shared_ptr<FakeCore> core) : core_(std::move(core)) {}

  void record(Stream& stream) override {
    auto& s = static_cast<FakeStream&>(stream);
    FOVEA_CHECK(!s.recording_);
    stream_ = &s;
    if (core_->strikes("record")) return s.note(core_->fault());
    at_ = s.enqueued_;
  }
  void hold(Stream& stream) override {
    auto& s = static_cast<FakeStream&>(stream);
    FOVEA_CHECK(!s.recording_);
    if (stream_) s.push([from = stream_, at = at_] { from->run_until(at); });
  }
  bool done() override {
    if (!stream_) return true;
    stream_->run_unasked(2);
    return stream_->finished_ >= at_;
  }
  // Runs what was enqueued before the event, and nothing behind it.
  Status wait() override {
    if (!stream_) return {};
    ++core_->counters.late_reads;
    const bool fails = core_->strikes("wait");
    if (fails) stream_->note(core_->fault());
    if (!fails || core_->chance(2)) stream_->run_until(at_);
    return stream_->error();
  }

 private:
  std::shared_ptr<FakeCore> core_;
  FakeStream* stream_ = nullptr;
  uint64_t at_ = 0;
};

// ---- graphs ----

class FakeGraph final : public Graph {
 public:
  FakeGraph(std::shared_ptr<FakeCore> core, FakeStream::Work work)
      : core_(std::move(core)), work_(std::make_shared<const FakeStream::Work>(std::move(work))) {}

  // A launch that fails does nothing, or stops somewhere in the middle.
  Status launch(Stream& stream) override {
    auto& s = static_cast<FakeStream&>(stream);
    ++core_->counters.graph_launches;
    size_t runs = work_->size();
    if (core_->strikes("launch")) {
      if (core_->chance(2)) return core_->fault();
      runs = core_->draw(runs + 1);
      s.push([&s, runs, work = work_, error = core_->fault()] {
        for (size_t i = 0; i < runs; ++i) (*work)[i]();
        s.stop(error);
      });
      return {};
    }
    s.push([work = work_] {
      for (const auto& w : *work) w();
    });
    return {};
  }

 private:
  std::shared_ptr<FakeCore> core_;
  std::shared_ptr<const FakeStream::Work> work_;
};

// ---- the device ----

std::unique_ptr<Event> FakeDevice::make_event() { return std::make_unique<FakeEvent>(core_); }

Result<Buffer> FakeDevice::take(size_t bytes, std::string_view what, bool on_device) {
  ++core_->counters.allocations;
  const bool fails = core_->strikes(on_device ? "allocate" : "allocate_pinned");
  void* data = fails || bytes > (size_t{1} << 40) ? nullptr : core_->map(bytes, on_device);
  if (!data) return Status::resource_exhausted(std::string(what) + ": the fake device has no " + std::to_string(bytes) + " bytes");
  return Buffer(data, bytes, [core = core_](void* p) {
    ++core->counters.allocations;
    core->unmap(p);
  });
}

void FakeDevice::copy(void* to, const void* from, size_t bytes, CopyKind kind, Stream& stream) {
  if (bytes == 0) return;
  auto& s = static_cast<FakeStream&>(stream);
  FOVEA_CHECK((kind == CopyKind::to_host) != core_->is_device(to, bytes));
  FOVEA_CHECK((kind == CopyKind::to_device) != core_->is_device(from, bytes));
  s.enqueue("copy", [=] { std::memmove(to, from, bytes); });
  if (kind == CopyKind::on_device || core_->is_pinned(kind == CopyKind::to_device ? from : to, bytes)) return;
  FOVEA_CHECK(!s.recording_);
  ++core_->counters.synchronizations;
  s.run_until(s.enqueued_);
}

Status FakeDevice::transfer(std::span<const CopyExtent> extents, CopyKind kind, Stream& stream) {
  if (core_->strikes("transfer")) {
    if (core_->chance(2)) return core_->fault();
    auto& s = static_cast<FakeStream&>(stream);
    s.push([&s, error = core_->fault()] { s.stop(error); });
    return {};
  }
  return Device::transfer(extents, kind, stream);
}

void FakeDevice::fill(void* to, int value, size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  FOVEA_CHECK(core_->is_device(to, bytes));
  static_cast<FakeStream&>(stream).enqueue("fill", [=] { std::memset(to, value, bytes); });
}

Result<std::unique_ptr<Graph>> FakeDevice::capture(Stream& stream, const std::function<Status()>& work) {
  auto& s = static_cast<FakeStream&>(stream);
  FOVEA_CHECK(!s.recording_);
  FOVEA_TRY(s.error());
  ++core_->counters.graph_captures;
  const bool fails = core_->strikes("capture");
  if (fails && core_->chance(2)) return core_->fault();
  FakeStream::Work recorded;
  s.recording_ = &recorded;
  Status worked = work();
  s.recording_ = nullptr;
  FOVEA_TRY(std::move(worked));
  FOVEA_TRY(s.take_error());
  if (fails) return core_->fault();
  return std::unique_ptr<Graph>(std::make_unique<FakeGraph>(core_, std::move(recorded)));
}

Result<double> FakeDevice::time(Stream& stream, const std::function<Status()>& work) {
  FOVEA_TRY(work());
  FOVEA_TRY(stream.synchronize());
  return 1e-6;
}

void FakeDevice::recover() {
  fail_call(-1, false);
  finish_all();
  for (FakeStream* s : core_->streams) (void)s->take_error();
}

std::vector<std::byte> FakeDevice::read(const void* from, size_t bytes) {
  FOVEA_CHECK(core_->is_device(from, bytes));
  core_->finish_all();
  core_->open();
  std::vector<std::byte> out(static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes);
  core_->close();
  return out;
}

}  // namespace fovea::testing
