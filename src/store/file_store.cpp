#include "store/file_store.h"

#include "base/check.h"
#include "base/clock.h"
#include "store/slab_io.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include <fcntl.h>

namespace fovea {
namespace {

// Whether files of this directory can be opened with O_DIRECT.
bool has_direct_io(FileSystem& fs, const std::string& dir) { return open_file(fs, dir + "/FORMAT", O_RDONLY | O_DIRECT).ok(); }

// A cold front costs a disk's latency or two: up to 16 are read at once.
std::vector<std::optional<Result<SlabFront>>> read_all(const StoreDirectory& directory, const std::vector<uint64_t>& numbers) {
  std::vector<std::optional<Result<SlabFront>>> fronts(numbers.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < numbers.size();) fronts[i].emplace(directory.read_front(numbers[i]));
  };
  std::vector<std::thread> others(std::min<size_t>(numbers.size() / 64, 15));
  for (std::thread& t : others) t = std::thread(work);
  work();
  for (std::thread& t : others) t.join();
  return fronts;
}

}  // namespace

Result<std::unique_ptr<FileStore>> FileStore::open(const FileStoreConfig& config) {
  FileSystem& fs = config.fs ? *config.fs : posix_file_system();
  const StoreOptions& o = config.options;
  if (o.size_bytes <= 0) return Status::invalid_argument(o.dir + ": a store of " + std::to_string(o.size_bytes) + " bytes");
  FOVEA_ASSIGN(StoreDirectory directory, StoreDirectory::open(fs, o.dir, o.readonly));
  bool direct = o.io == StoreIo::direct || (o.io == StoreIo::automatic && config.prefer_direct);
  if (direct && !has_direct_io(fs, o.dir)) {
    if (o.io == StoreIo::direct) return Status::unsupported(o.dir + ": its file system has no direct I/O; read it buffered");
    direct = false;
  }
  std::unique_ptr<FileStore> store(new FileStore(config, std::move(directory), direct));
  FOVEA_TRY(store->read_fronts());
  if (!o.readonly) {
    store->remove_dead();
    store->collect(o.size_bytes);
    store->writer_ = std::thread([s = store.get()] { s->write_loop(); });
  }
  return store;
}

FileStore::FileStore(const FileStoreConfig& config, StoreDirectory directory, bool direct)
    : SlabStore(config.options.size_bytes),
      config_(config),
      fs_(config.fs ? *config.fs : posix_file_system()),
      directory_(std::move(directory)),
      direct_(direct),
      files_(directory_, direct),
      openers_(files_, config.patience_s),
      helpers_(config.read_threads) {
  synced_s_ = usage_written_s_ = Clock().now_s();
}

FileStore::~FileStore() { close(1e30); }

bool FileStore::close(double patience_s) { return end_writer(patience_s) && openers_.close(patience_s); }

bool FileStore::end_writer(double patience_s) {
  if (!writer_.joinable()) return true;
  std::unique_lock lock(queue_mutex_);
  stop_ = true;
  work_.notify_all();
  while (!idle_.wait_for(lock, std::chrono::milliseconds(20), [&] { return ended_; })) {
    if (stalled_s() > patience_s) return false;
  }
  lock.unlock();
  writer_.join();
  return true;
}

double FileStore::stalled_s() const {
  const double alive_s = alive_s_;
  return alive_s == 0 ? 0 : Clock().now_s() - alive_s;
}

Status FileStore::read_fronts() {
  FOVEA_ASSIGN(const std::vector<uint64_t> numbers, directory_.slabs());
  const std::vector<std::optional<Result<SlabFront>>> fronts = read_all(directory_, numbers);
  const StoreDirectory::Usage usage = directory_.read_usage();
  const std::lock_guard lock(writing_);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const uint64_t number = numbers[i];
    const Result<SlabFront>& front = *fronts[i];
    next_number_ = std::max(next_number_, number + 1);
    if (front.ok()) {
      const auto used = usage.find(number);
      index_.add(std::make_shared<const SlabFront>(*front), used == usage.end() ? front->created_s : used->second);
      continue;
    }
    if (front.status().code() == StatusCode::not_found) continue;  // removed by its writer meanwhile
    note_error(front.status());
    if (front.status().code() == StatusCode::unsupported) {
      const auto bytes = static_cast<int64_t>(directory_.slab_bytes(number));
      ++other_slabs_;
      other_bytes_ += bytes;
      index_.occupy(bytes);
    }
    if (front.status().code() == StatusCode::corrupt) {
      ++bad_fronts_;
      if (!config_.options.readonly) directory_.set_aside(number);
    }
  }
  return {};
}

std::unique_ptr<StoreChannel> FileStore::open_channel() {
  const auto gone = [this](const Located& block) {
    if (const SlabIndex::Front front = index_.front(block.slab)) files_.forget(front->number);
    index_.take(block.slab);
  };
  ChannelHost host{.index = &index_,
                   .openers = &openers_,
                   .counters = &counters_,
                   .fs = &fs_,
                   .helpers = &helpers_,
                   .lost = [this](const Located& block) { lost(block); },
                   .slab_is_gone = gone,
                   .direct = direct_,
                   .patience_s = config_.patience_s,
                   .verify = config_.verify_reads};
  return std::make_unique<FileChannel>(std::move(host), fs_.make_engine(DiskReads::kDepth, std::max(config_.read_threads, 1)));
}

Status FileStore::put(PutRun run) {
  if (config_.options.readonly) return Status::unsupported(directory_.path() + ": opened read-only");
  {
    const std::lock_guard lock(queue_mutex_);
    if (queue_.size() >= kMaxQueuedRuns)
      return Status::busy("store: " + std::to_string(kMaxQueuedRuns) + " runs wait to be written");
    queue_.push_back(std::move(run));
  }
  work_.notify_all();
  return {};
}

void FileStore::flush() {
  std::unique_lock lock(queue_mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !running_; });
}

void FileStore::dead_slabs() {
  if (config_.options.readonly) return;  // its writer removes them
  {
    const std::lock_guard lock(queue_mutex_);
    dead_ = true;
  }
  work_.notify_all();
}

void FileStore::write_loop() {
  bool sync_is_due = false;
  std::unique_lock lock(queue_mutex_);
  for (;;) {
    alive_s_ = 0;
    work_.wait_for(lock, std::chrono::seconds(sync_is_due ? 0 : 1), [&] { return stop_ || dead_ || !queue_.empty(); });
    alive();
    const bool dead = std::exchange(dead_, false), last = stop_ && queue_.empty();
    PutRun run;
    if (!queue_.empty()) {
      run = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
    }
    lock.unlock();
    if (running_) write_run(std::move(run));
    if (dead) remove_dead();
    lock.lock();
    running_ = false;
    if (queue_.empty()) idle_.notify_all();
    lock.unlock();
    sync_is_due = sync_written(last);
    write_usage(last);
    lock.lock();
    if (!last) continue;
    alive_s_ = 0;
    ended_ = true;
    return idle_.notify_all();
  }
}

// One slab a call, so that runs that wait are not held up by more; all of them at the end. True: the next one is due.
bool FileStore::sync_written(bool all) {
  const double now_s = Clock().now_s();
  if (unsynced_.empty()) synced_s_ = now_s;
  if (!all && now_s - synced_s_ < config_.sync_interval_s) return false;
  while (!unsynced_.empty()) {
    // What fails here is found by its digest after a power failure; a running process has lost nothing.
    alive();
    const Status status = sync_slab(unsynced_.front());
    if (!status.ok() && status.code() != StatusCode::not_found) note_error(status);  // not found: removed meanwhile
    unsynced_.pop_front();
    if (!all) break;
  }
  return !unsynced_.empty();
}

Status FileStore::sync_slab(uint64_t number) {
  FOVEA_ASSIGN(const File file, open_file(fs_, directory_.slab_path(number), O_RDONLY));
  FOVEA_TRY(file.sync(true).with_context(directory_.slab_path(number)));
  if (direct_) fs_.advise(file.fd(), POSIX_FADV_DONTNEED);  // nobody will read it from the page cache
  return directory_.sync_slab_folder(number);
}

void FileStore::write_usage(bool now) {
  const double now_s = Clock().now_s();
  if (!now && now_s - usage_written_s_ < config_.usage_interval_s) return;
  alive();
  StoreDirectory::Usage usage;
  for (const SlabIndex::Usage& u : index_.usage()) usage[u.number] = u.used_s;
  if (const Status status = directory_.write_usage(usage); !status.ok()) note_error(status);
  usage_written_s_ = now_s;
}

Status FileStore::write_one(const PutRun& run, uint32_t first, SlabFront* front) {
  const Status status = write_file(run, first, front);
  if (!status.ok()) {  // what it left behind, wherever it failed
    for (const std::string& path : {directory_.tmp_path(front->number), directory_.slab_path(front->number)}) {
      uninterrupted([&] { return fs_.unlink(path); });
    }
  }
  return status.with_context(directory_.path());
}

Status FileStore::write_file(const PutRun& run, uint32_t first, SlabFront* front) {
  const std::string tmp = directory_.tmp_path(front->number), path = directory_.slab_path(front->number);
  const bool sync = config_.options.sync == StoreSync::slab;
  {
    FOVEA_ASSIGN(const File file, open_file(fs_, tmp, O_WRONLY | O_CREAT | O_EXCL));
    const WriteAt write = [&](uint64_t offset, std::span<const std::byte> bytes) {
      alive();
      return file.write(offset, bytes);
    };
    FOVEA_TRY(write_slab(run, first, write, buffer_, front));
    alive();
    if (sync) FOVEA_TRY(file.sync(true));
  }
  alive();
  FOVEA_TRY(directory_.make_slab_folder(front->number));
  FOVEA_TRY(os_status(uninterrupted([&] { return fs_.rename(tmp, path); }), path));
  if (sync) return directory_.sync_slab_folder(front->number);
  if (config_.options.sync == StoreSync::interval) unsynced_.push_back(front->number);
  return {};
}

void FileStore::remove_one(const SlabFront& front) {
  alive();
  files_.forget(front.number);
  const std::string path = directory_.slab_path(front.number);
  const int result = uninterrupted([&] { return fs_.unlink(path); });
  if (result < 0 && result != -ENOENT) note_error(os_status(result, path));
}

SlabVerdict FileStore::verify_one(uint64_t number) const {
  SlabVerdict out;
  auto front = directory_.read_front(number);
  Status status = front.status();
  if (front.ok()) {
    auto file = directory_.open_slab(number, direct_);
    status = file.status();
    if (file.ok()) {
      const SlabFile slab(std::make_shared<const SlabFront>(*front), std::move(*file));
      out = verify_slab(*front, [&](uint64_t offset, std::span<std::byte> to) { return slab.read(offset, to); });
    }
  }
  if (!status.ok()) out.fault = status.message();
  if (status.code() == StatusCode::not_found) out.fault.clear();  // removed by its writer meanwhile: no damage
  out.name = directory_.slab_path(number).substr(directory_.path().size() + 1);
  return out;
}

Status FileStore::verify(VerifySink* sink) {
  FOVEA_ASSIGN(const std::vector<uint64_t> numbers, directory_.slabs());
  int64_t bad = 0;
  for (const uint64_t number : numbers) {
    const SlabVerdict verdict = verify_one(number);
    bad += !verdict.fault.empty();
    if (sink) sink->checked(verdict);
  }
  if (bad == 0) return {};
  return Status::corrupt(directory_.path() + ": " + std::to_string(bad) + " of " + std::to_string(numbers.size()) +
                         " slabs are damaged");
}

}  // namespace fovea
