#include "store/fault_fs.h"

#include "base/check.h"
#include "base/clock.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace fovea {
namespace {

size_t bytes_of(std::span<const iovec> pieces) {
  size_t n = 0;
  for (const iovec& p : pieces) n += p.iov_len;
  return n;
}

// fn(bytes) for what lies in [begin, end) of the pieces taken together.
template <typename Fn>
void each_piece(std::span<const iovec> pieces, size_t begin, size_t end, Fn&& fn) {
  size_t at = 0;
  for (const iovec& p : pieces) {
    const size_t a = std::max(at, begin), b = std::min(at + p.iov_len, end);
    if (a < b) fn(std::span(static_cast<std::byte*>(p.iov_base) + (a - at), b - a));
    at += p.iov_len;
  }
}

}  // namespace

void FaultFs::fail_call(int64_t k, Kind kind, int error, bool for_good) {
  const std::lock_guard lock(mutex_);
  calls_ = 0;
  fail_at_ = k;
  for_good_ = for_good;
  fault_ = {.fails = true, .kind = kind, .error = error};
}

void FaultFs::fail_reads(double share, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  share_ = share;
  random_.seed(seed);
}

void FaultFs::throttle(double latency_s, double iops) {
  const std::lock_guard lock(mutex_);
  latency_s_ = latency_s;
  iops_ = iops;
}

void FaultFs::hang_call(int64_t k) {
  const std::lock_guard lock(mutex_);
  hang_at_ = k;
  told_by_ = std::this_thread::get_id();
}

void FaultFs::hang_read(int64_t k, bool for_good) {
  const std::lock_guard lock(mutex_);
  hang_read_at_ = k;
  reads_hang_for_good_ = for_good;
}

void FaultFs::heal() {
  const std::lock_guard lock(mutex_);
  fail_at_ = hang_at_ = hang_read_at_ = -1;
  some_reads_hang_ = false;
  hanging_ = false;
  healed_.notify_all();
  fault_ = {};
  share_ = 0;
}

FaultFs::Fault FaultFs::next_call(bool is_read) {
  const int64_t k = calls_.fetch_add(1);
  std::unique_lock lock(mutex_);
  if (hang_at_ >= 0 && told_by_ != std::this_thread::get_id() && hang_at_-- == 0) {
    hanging_ = true;
    healed_.wait(lock, [&] { return !hanging_; });
  }
  if (fail_at_ >= 0 && (k == fail_at_ || (for_good_ && k > fail_at_))) return fault_;
  if (is_read && share_ > 0 && std::uniform_real_distribution(0.0, 1.0)(random_) < share_) {
    return {.fails = true, .kind = static_cast<Kind>(random_() % 6), .error = EIO};
  }
  return {};
}

// A call without bytes.
template <typename Call>
auto FaultFs::plain(Call&& call) {
  const Fault f = next_call(false);
  if (f.fails && f.kind == Kind::error) return static_cast<decltype(call())>(-f.error);
  if (f.fails && f.kind == Kind::interrupt && !for_good_) return static_cast<decltype(call())>(-EINTR);
  return call();
}

int FaultFs::open(const std::string& path, int flags) {
  return plain([&] { return below_.open(path, flags); });
}
int64_t FaultFs::size(int fd) {
  return plain([&] { return below_.size(fd); });
}
int FaultFs::fsync(int fd, bool data_only) {
  return plain([&] { return below_.fsync(fd, data_only); });
}
int FaultFs::lock(int fd) {
  return plain([&] { return below_.lock(fd); });
}
int FaultFs::rename(const std::string& from, const std::string& to) {
  return plain([&] { return below_.rename(from, to); });
}
int FaultFs::unlink(const std::string& path) {
  return plain([&] { return below_.unlink(path); });
}
int FaultFs::mkdir(const std::string& path) {
  return plain([&] { return below_.mkdir(path); });
}
int FaultFs::list(const std::string& path, std::vector<std::string>* names) {
  return plain([&] { return below_.list(path, names); });
}

int64_t FaultFs::preadv(int fd, std::span<const iovec> to, uint64_t offset) {
  const Fault f = next_call(true);
  if (!f.fails) return below_.preadv(fd, to, offset);
  if (f.kind == Kind::error) return -f.error;
  if (f.kind == Kind::interrupt && !for_good_) return -EINTR;
  if (f.kind == Kind::stray) offset += 4096;
  const int64_t n = below_.preadv(fd, to, offset);
  if (n <= 0) return n;
  const size_t all = std::min(bytes_of(to), static_cast<size_t>(n)), half = all / 2;
  if (f.kind == Kind::short_io && !for_good_) return static_cast<int64_t>(half);
  if (f.kind == Kind::tear) each_piece(to, half, all, [](std::span<std::byte> p) { std::memset(p.data(), 0, p.size()); });
  if (f.kind == Kind::flip) each_piece(to, half, half + 1, [](std::span<std::byte> p) { p[0] ^= std::byte{4}; });
  return n;
}

bool FaultFs::is_slow() {
  const std::lock_guard lock(mutex_);
  return hangs_ || hang_read_at_ >= 0 || some_reads_hang_ || latency_s_ > 0 || iops_ > 0;
}

bool FaultFs::next_read_hangs() {
  const std::lock_guard lock(mutex_);
  if (hang_read_at_ < 0 || hang_read_at_-- > 0) return hangs_;
  if (reads_hang_for_good_) hang_read_at_ = 0;
  return some_reads_hang_ = true;
}

bool FaultFs::has_hung_read() {
  const std::lock_guard lock(mutex_);
  return some_reads_hang_;
}

int64_t FaultFs::preadv_cached(int fd, std::span<const iovec> to, uint64_t offset) {
  return is_slow() ? -EAGAIN : preadv(fd, to, offset);
}

int64_t FaultFs::pwrite(int fd, std::span<const std::byte> from, uint64_t offset) {
  const Fault f = next_call(false);
  if (!f.fails) return below_.pwrite(fd, from, offset);
  const size_t half = from.size() / 2;
  switch (f.kind) {
    case Kind::error:
      return -f.error;
    case Kind::interrupt:
      return for_good_ ? below_.pwrite(fd, from, offset) : -EINTR;
    case Kind::short_io:
      return below_.pwrite(fd, half > 0 ? from.first(half) : from, offset);
    case Kind::stray:
      return below_.pwrite(fd, from, offset + 4096);
    case Kind::flip:
    case Kind::tear:
      break;
  }
  std::vector<std::byte> wrong(from.begin(), from.end());
  if (f.kind == Kind::flip) wrong[half] ^= std::byte{4};
  if (f.kind == Kind::tear) std::memset(wrong.data() + half, 0, wrong.size() - half);
  return below_.pwrite(fd, wrong, offset);
}

double FaultFs::due_s(double now_s) {
  const std::lock_guard lock(mutex_);
  last_due_s_ = std::max(now_s + latency_s_, last_due_s_ + (iops_ > 0 ? 1 / iops_ : 0));
  return last_due_s_;
}

class FaultFs::Engine final : public IoEngine {
 public:
  Engine(FaultFs& fs, int depth) : fs_(fs), depth_(static_cast<size_t>(depth)) {}
  // The kernel goes on writing to what a hanging read was given: whoever waits no more must leave it all as it is.
  ~Engine() override {
    const bool some_hang = fs_.has_hung_read();
    FOVEA_CHECK(std::ranges::none_of(done_, [&](const Done& d) { return d.hangs && some_hang; }));
  }

  bool push(const IoRequest& request) override {
    if (done_.size() == depth_) return false;
    done_.push_back({request, fs_.due_s(clock_.now_s()), fs_.next_read_hangs(), 0});
    if (!done_.back().hangs) read(&done_.back());
    return true;
  }
  void submit() override {}

  size_t reap(std::span<IoCompletion> out, double timeout_s) override {
    const double until_s = clock_.now_s() + timeout_s;
    for (;;) {
      if (const size_t n = take(out); n > 0) return n;
      const double now_s = clock_.now_s();
      if (done_.empty() || now_s >= until_s) return 0;
      std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(done_.front().due_s - now_s, 1e-5, 1e-3)));
    }
  }
  const char* name() const override { return "faulty"; }

 private:
  struct Done {
    IoRequest request;
    double due_s;
    bool hangs;
    int64_t result;
  };
  void read(Done* d) { d->result = fs_.preadv(d->request.fd, d->request.to, d->request.offset); }
  size_t take(std::span<IoCompletion> out) {
    if (fs_.hangs_) return 0;
    const double now_s = clock_.now_s();
    const bool some_hang = fs_.has_hung_read();
    size_t n = 0;
    std::erase_if(done_, [&](Done& d) {
      if (n == out.size() || d.due_s > now_s || (d.hangs && some_hang)) return false;
      if (d.hangs) read(&d);
      out[n++] = {.tag = d.request.tag, .result = d.result};
      return true;
    });
    return n;
  }

  FaultFs& fs_;
  const size_t depth_;
  const Clock clock_;
  std::vector<Done> done_;  // in the order they end
};

std::unique_ptr<IoEngine> FaultFs::make_engine(int depth, int threads) {
  if (threads_) return make_pread_engine(*this, depth, threads);
  return std::make_unique<Engine>(*this, depth);
}

}  // namespace fovea
