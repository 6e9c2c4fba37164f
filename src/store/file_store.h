// FileStore: a BlockStore in a directory (docs/store.md). One writing process, any number of reading ones.
#pragma once

#include "base/clock.h"
#include "store/file_channel.h"
#include "store/slab_store.h"
#include "store/store_directory.h"

#include <fovea/store.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <thread>

namespace fovea {

struct FileStoreConfig {
  StoreOptions options;
  bool prefer_direct = false;  // what StoreIo::automatic means: direct where the file system has it, else buffered
  // Helpers: threads of the store, shared by its channels. They copy out of the page cache and digest, beside each channel's own
  // thread, into the memory of batches that have not ended; 0: that does it alone. And where io_uring is refused, threads of each
  // channel that read (at least one).
  int read_threads = 4;
  double patience_s = 30;        // of a read: what takes longer has failed; its memory stays until the kernel gives it back
  bool verify_reads = true;      // false: a switch for measurements alone
  double sync_interval_s = 5;    // of StoreSync::interval
  double usage_interval_s = 60;  // between writes of the file `usage`
  FileSystem* fs = nullptr;      // null: the real one
};

class FileStore final : public SlabStore {
 public:
  static constexpr size_t kMaxQueuedRuns = 256;

  // Makes the directory where it is missing, removes what a crash left, rebuilds the index from the slabs' fronts. Errors name the
  // directory: another writer (busy), something that is no store or of another version, direct I/O where there is none.
  static Result<std::unique_ptr<FileStore>> open(const FileStoreConfig& config);
  ~FileStore() override;

  std::unique_ptr<StoreChannel> open_channel() override;
  Status put(PutRun run) override;
  void flush() override;
  double stalled_s() const override;
  bool close(double patience_s) override;
  Status verify(VerifySink* sink) override;

  const StoreDirectory& directory() const { return directory_; }
  bool direct() const { return direct_; }
  // Fronts that were not valid at opening: moved to bad/ (left where they are if read-only).
  int64_t bad_fronts() const { return bad_fronts_; }
  // Of another version, at opening: left where they are.
  int64_t other_slabs() const { return other_slabs_; }
  int64_t other_bytes() const { return other_bytes_; }
  // Of every slab, by number.
  std::vector<SlabIndex::Front> fronts() const { return index_.fronts(); }
  std::vector<SlabIndex::Usage> usage() const { return index_.usage(); }

 private:
  FileStore(const FileStoreConfig& config, StoreDirectory directory, bool direct);
  Status read_fronts();
  bool end_writer(double patience_s);
  Status write_one(const PutRun& run, uint32_t first, SlabFront* front) override;
  Status write_file(const PutRun& run, uint32_t first, SlabFront* front);
  void remove_one(const SlabFront& front) override;
  void dead_slabs() override;
  SlabVerdict verify_one(uint64_t number) const;

  // The writer thread: puts, removals, syncs, usage.
  void write_loop();
  bool sync_written(bool all);
  Status sync_slab(uint64_t number);
  void write_usage(bool now);

  // The writer goes on to another call of the operating system.
  void alive() { alive_s_ = Clock().now_s(); }

  const FileStoreConfig config_;
  FileSystem& fs_;
  const StoreDirectory directory_;
  const bool direct_;
  SlabFiles files_;
  SlabOpeners openers_;
  ReadHelpers helpers_;
  int64_t bad_fronts_ = 0, other_slabs_ = 0, other_bytes_ = 0;
  AlignedBuffer buffer_;                       // guarded by writing_
  std::deque<uint64_t> unsynced_;              // slabs; the writer thread's
  double synced_s_ = 0, usage_written_s_ = 0;  // likewise
  std::atomic<double> alive_s_{0};             // when the writer last went on; 0: it waits for work

  std::mutex queue_mutex_;  // guards all below
  std::condition_variable work_, idle_;
  std::deque<PutRun> queue_;
  bool running_ = false, dead_ = false, stop_ = false, ended_ = false;
  std::thread writer_;  // the last member: it ends before the others go
};

}  // namespace fovea
