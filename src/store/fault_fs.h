// FaultFs: a file system that fails when it is told to, and a disk as slow as it is told to be: for tests, and for benchmarks of
// what slow storage costs. Its engine executes reads at once and tells of them later, so one thread sees one order.
#pragma once

#include "store/file_system.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

namespace fovea {

class FaultFs final : public FileSystem {
 public:
  enum class Kind {
    error,      // the call does nothing and says so
    interrupt,  // EINTR
    short_io,   // reads or writes half of it, and says so
    flip,       // one bit of what was read or is written
    tear,       // the second half is not written (zeros), or not read; it says that all was
    stray,      // reads or writes 4096 bytes beside the place
  };

  explicit FaultFs(FileSystem& below) : below_(below) {}

  // The k-th call from now on (0: the next) fails, once or from then on. Kinds that need bytes leave other calls alone.
  void fail_call(int64_t k, Kind kind, int error = 0, bool for_good = false);
  // Each read fails with this probability, each kind as likely.
  void fail_reads(double share, uint64_t seed);
  // Every read takes latency_s, and no more than `iops` end in a second; 0: no bound.
  void throttle(double latency_s, double iops);
  // Engines made from now on read by threads, as where io_uring is refused: without throttle and hang.
  void read_by_threads() { threads_ = true; }
  // Reads through an engine do not end while it is on. What was asked for meanwhile is written to memory when they do.
  void hang(bool on) { hangs_ = on; }
  // The same for the k-th read through an engine from now on, or all from it on, until heal().
  void hang_read(int64_t k, bool for_good);
  bool has_hung_read();  // and was not healed
  // The k-th call from now on that another thread makes does not return before heal().
  void hang_call(int64_t k);
  bool is_hanging() const { return hanging_; }
  void heal();
  int64_t calls() const { return calls_; }  // since fail_call()

  int open(const std::string& path, int flags) override;
  int close(int fd) override { return below_.close(fd); }
  int64_t preadv(int fd, std::span<const iovec> to, uint64_t offset) override;
  int64_t preadv_cached(int fd, std::span<const iovec> to,
                        uint64_t offset) override;  // all of it, but where reads are slow or hang
  int64_t pwrite(int fd, std::span<const std::byte> from, uint64_t offset) override;
  int64_t size(int fd) override;
  int fsync(int fd, bool data_only) override;
  int lock(int fd) override;
  int advise(int fd, int advice) override { return below_.advise(fd, advice); }
  int rename(const std::string& from, const std::string& to) override;
  int unlink(const std::string& path) override;
  int mkdir(const std::string& path) override;
  int list(const std::string& path, std::vector<std::string>* names) override;
  std::unique_ptr<IoEngine> make_engine(int depth, int threads) override;

 private:
  class Engine;
  struct Fault {
    bool fails = false;
    Kind kind = Kind::error;
    int error = 0;
  };
  Fault next_call(bool is_read);
  template <typename Call>
  auto plain(Call&& call);
  bool is_slow();
  bool next_read_hangs();
  double due_s(double now_s);  // when a read that begins now ends

  FileSystem& below_;
  std::atomic<int64_t> calls_{0};
  std::atomic<bool> hangs_{false}, threads_{false}, hanging_{false};
  std::mutex mutex_;  // guards all below
  std::condition_variable healed_;
  int64_t hang_at_ = -1;  // calls of other threads until one hangs; -1: none does
  std::thread::id told_by_;
  int64_t hang_read_at_ = -1;  // reads until one hangs; -1: none does
  bool reads_hang_for_good_ = false, some_reads_hang_ = false;
  int64_t fail_at_ = -1;
  bool for_good_ = false;
  Fault fault_;
  double share_ = 0, latency_s_ = 0, iops_ = 0, last_due_s_ = 0;
  std::mt19937_64 random_;
};

}  // namespace fovea
