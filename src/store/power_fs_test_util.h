// PowerFs: a file system that forgets, when its power fails, what was not synced: the second half of each file that was written,
// and names, or not: a disk may have taken them early. For tests of which call comes before which.
#pragma once

#include "store/file_system.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <set>

namespace fovea::testing {

class PowerFs final : public FileSystem {
 public:
  // What is open stays usable, as none of it is in a real failure. `names`: new names and folders are lost too.
  void fail_power(bool names) {
    const std::lock_guard lock(mutex_);
    for (const std::string& path : unsynced_) {
      const auto bytes = std::filesystem::file_size(path);
      std::filesystem::resize_file(path, bytes / 2);
      std::filesystem::resize_file(path, bytes);
    }
    for (auto name = names_.rbegin(); names && name != names_.rend(); ++name) {
      if (name->from.empty()) {
        std::filesystem::remove_all(name->to);
      } else if (std::filesystem::exists(name->to)) {
        std::filesystem::rename(name->to, name->from);
      }
    }
    unsynced_.clear();
    names_.clear();
  }

  int open(const std::string& path, int flags) override {
    const int fd = below_.open(path, flags);
    const std::lock_guard lock(mutex_);
    if (fd >= 0) open_[fd] = path;
    return fd;
  }
  int64_t pwrite(int fd, std::span<const std::byte> from, uint64_t offset) override {
    const std::lock_guard lock(mutex_);
    unsynced_.insert(open_.at(fd));
    return below_.pwrite(fd, from, offset);
  }
  int fsync(int fd, bool) override {
    const std::lock_guard lock(mutex_);
    const std::string& path = open_.at(fd);
    unsynced_.erase(path);
    std::erase_if(names_, [&](const Name& n) { return std::filesystem::path(n.to).parent_path() == path; });
    return 0;
  }
  int rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    const int result = below_.rename(from, to);
    if (result < 0) return result;
    if (unsynced_.erase(from) > 0) unsynced_.insert(to);
    names_.push_back({from, to});
    return result;
  }
  int unlink(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    unsynced_.erase(path);
    return below_.unlink(path);
  }
  int mkdir(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const int result = below_.mkdir(path);
    if (result >= 0) names_.push_back({"", path});
    return result;
  }
  int close(int fd) override { return below_.close(fd); }
  int64_t preadv(int fd, std::span<const iovec> to, uint64_t offset) override { return below_.preadv(fd, to, offset); }
  int64_t preadv_cached(int fd, std::span<const iovec> to, uint64_t offset) override {
    return below_.preadv_cached(fd, to, offset);
  }
  int64_t size(int fd) override { return below_.size(fd); }
  int lock(int fd) override { return below_.lock(fd); }
  int advise(int fd, int advice) override { return below_.advise(fd, advice); }
  int list(const std::string& path, std::vector<std::string>* names) override { return below_.list(path, names); }
  std::unique_ptr<IoEngine> make_engine(int depth, int threads) override { return below_.make_engine(depth, threads); }

 private:
  struct Name {
    std::string from, to;  // no `from`: a folder that was made
  };
  FileSystem& below_ = posix_file_system();
  std::mutex mutex_;                 // guards all below
  std::map<int, std::string> open_;  // what a descriptor was opened as last
  std::set<std::string> unsynced_;   // files
  std::vector<Name> names_;          // whose folder was not synced since, in order
};

}  // namespace fovea::testing
