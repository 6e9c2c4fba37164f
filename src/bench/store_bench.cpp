// What a disk gives: random reads of a file, by size, depth of queue and way, beside the best of the run.
#include "base/check.h"
#include "base/clock.h"
#include "base/mapped_buffer.h"
#include "bench/bench.h"
#include "bench/store_load.h"
#include "store/aligned_buffer.h"
#include "store/file_system.h"
#include "store/io_engine.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace fovea {
namespace {

constexpr uint64_t kSizes[] = {4096, 8192, 65536, 262144, 1048576};  // bytes of a read
constexpr size_t kChunk = size_t{8} << 20;                           // of writing the file

uint64_t next_random(uint64_t* state) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return *state >> 33;
}

std::string size_text(uint64_t bytes) {
  return bytes >= 1048576 ? std::to_string(bytes >> 20) + " MiB" : std::to_string(bytes >> 10) + " KiB";
}

// How the file is read.
enum class Way : uint8_t {
  direct,    // past the page cache
  buffered,  // through it, empty at first
  cached,    // out of it
};
constexpr Way kWays[] = {Way::direct, Way::buffered, Way::cached};

const char* way_name(Way way) { return way == Way::direct ? "direct" : way == Way::buffered ? "buffered" : "page cache"; }

// A file of random bytes that goes with the object.
class Scratch {
 public:
  static Result<std::unique_ptr<Scratch>> make(const std::string& folder, uint64_t bytes) {
    std::unique_ptr<Scratch> s(new Scratch(folder + "/fovea-bench-store", bytes));
    FOVEA_TRY(s->write().with_context(s->path_));
    return s;
  }
  ~Scratch() { fs_.unlink(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Result<File> open(Way way) { return open_file(fs_, path_, O_RDONLY | (way == Way::direct ? O_DIRECT : 0)); }
  uint64_t bytes() const { return bytes_; }
  // The page cache holds the whole file, or nothing of it.
  Status warm(bool whole) {
    FOVEA_ASSIGN(const File file, open(Way::buffered));
    if (!whole) return os_status(fs_.advise(file.fd(), POSIX_FADV_DONTNEED), path_);
    AlignedBuffer buffer(kChunk);
    for (uint64_t at = 0; at < bytes_; at += kChunk) FOVEA_TRY(file.read(at, buffer.span()));
    return {};
  }

 private:
  Scratch(std::string path, uint64_t bytes) : path_(std::move(path)), bytes_(bytes) {}
  Status write() {
    FOVEA_ASSIGN(const File file, open_file(fs_, path_, O_WRONLY | O_CREAT | O_TRUNC));
    AlignedBuffer buffer(kChunk);
    uint64_t state = 1;
    for (uint64_t at = 0; at < bytes_; at += kChunk) {
      auto* words = reinterpret_cast<uint32_t*>(buffer.data());
      for (size_t i = 0; i < kChunk / 4; ++i) words[i] = static_cast<uint32_t>(next_random(&state));
      FOVEA_TRY(file.write(at, buffer.span()));
    }
    return file.sync(false);
  }

  FileSystem& fs_ = posix_file_system();
  const std::string path_;
  const uint64_t bytes_;
};

struct Rate {
  double reads_per_s = 0, bytes_per_s = 0;
};

// `depth` reads of `size` bytes at random places are under way for `seconds`.
class RandomReads {
 public:
  RandomReads(IoEngine& engine, int fd, uint64_t file_bytes, uint64_t size, int depth)
      : engine_(engine), fd_(fd), places_(file_bytes / size), size_(size), buffer_(size * static_cast<size_t>(depth)) {
    for (int i = 0; i < depth; ++i) to_.push_back({buffer_.data() + size * static_cast<size_t>(i), size});
  }

  Result<Rate> run(double seconds) {
    const Clock clock;
    for (uint64_t i = 0; i < to_.size(); ++i) push(i);
    const double start = clock.now_s();
    Status error;
    int64_t reads = 0;
    for (size_t under_way = to_.size(); under_way > 0;) {
      IoCompletion done[64];
      const size_t n = engine_.reap(done, 1);
      const bool more = error.ok() && clock.now_s() - start < seconds;
      for (size_t i = 0; i < n; ++i) {
        if (done[i].result != static_cast<int64_t>(size_))
          error = done[i].result < 0 ? os_status(done[i].result, "read") : Status::io_error("a read came back short");
        ++reads;
        more ? push(done[i].tag) : static_cast<void>(--under_way);
      }
    }
    FOVEA_TRY(error);
    const double rate = static_cast<double>(reads) / (clock.now_s() - start);
    return Rate{rate, rate * static_cast<double>(size_)};
  }

 private:
  void push(uint64_t slot) { FOVEA_CHECK(engine_.push({fd_, next_random(&state_) % places_ * size_, {&to_[slot], 1}, slot})); }

  IoEngine& engine_;
  const int fd_;
  const uint64_t places_, size_;
  MappedBuffer buffer_;    // in huge pages, as a store's
  std::vector<iovec> to_;  // of each read under way
  uint64_t state_ = 7;
};

// Copies out of a mapping at random places.
Result<Rate> read_mapped(int fd, uint64_t file_bytes, uint64_t size, double seconds) {
  void* base = ::mmap(nullptr, file_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return os_status(-errno, "mmap");
  // Read ahead, small reads would fetch what nobody asked for; without it, large ones fault page by page.
  if (size < 65536) ::madvise(base, file_bytes, MADV_RANDOM);
  AlignedBuffer buffer(size);
  const Clock clock;
  const double start = clock.now_s();
  uint64_t state = 7;
  int64_t reads = 0;
  double now = start;
  for (; now - start < seconds; now = clock.now_s(), ++reads)
    std::memcpy(buffer.data(), static_cast<std::byte*>(base) + next_random(&state) % (file_bytes / size) * size, size);
  ::munmap(base, file_bytes);
  const double rate = static_cast<double>(reads) / (now - start);
  return Rate{rate, rate * static_cast<double>(size)};
}

struct Cell {
  Way way;
  std::string name;
  Rate rate;
};

std::string cell_name(Way way, const char* engine, uint64_t size, int depth, const Rate& rate) {
  char text[96];
  std::snprintf(text, sizeof(text), "%s %s %s depth %d: %.1f K reads/s, %.0f us", way_name(way), engine, size_text(size).c_str(),
                depth, rate.reads_per_s / 1e3, 1e6 * depth / rate.reads_per_s);
  return text;
}

class StoreBench {
 public:
  StoreBench(const StoreBenchOptions& o, Scratch& scratch) : o_(o), scratch_(scratch) {}

  Result<Report> run() {
    for (Way way : kWays) {
      const Result<File> file = scratch_.open(way);
      if (!file.ok() && way == Way::direct) {
        report_.note("direct I/O: " + file.status().message());
        continue;
      }
      FOVEA_TRY(file.status());
      FOVEA_TRY(read_all_sizes(way, file->fd()));
    }
    add_figures();
    return std::move(report_);
  }

 private:
  Status read_all_sizes(Way way, int fd) {
    for (uint64_t size : kSizes) {
      if (way != Way::direct) {
        FOVEA_TRY(scratch_.warm(way == Way::cached));
        FOVEA_ASSIGN(const Rate rate, read_mapped(fd, scratch_.bytes(), size, o_.seconds));
        cells_.push_back({way, cell_name(way, "mmap", size, 1, rate), rate});
      }
      for (int depth : o_.depths) {
        FOVEA_TRY(read_by(make_uring_engine(depth), way, fd, size, depth));
        FOVEA_TRY(read_by(make_pread_engine(posix_file_system(), depth, depth), way, fd, size, depth));
      }
    }
    return {};
  }

  Status read_by(std::unique_ptr<IoEngine> engine, Way way, int fd, uint64_t size, int depth) {
    if (!engine) {
      refused_ = true;
      return {};
    }
    FOVEA_TRY(scratch_.warm(way == Way::cached));
    FOVEA_ASSIGN(const Rate rate, RandomReads(*engine, fd, scratch_.bytes(), size, depth).run(o_.seconds));
    cells_.push_back({way, cell_name(way, engine->name(), size, depth, rate), rate});
    return {};
  }

  void add_figures() {
    for (Way way : kWays) {
      double best = 0;
      for (const Cell& c : cells_) best = c.way == way ? std::max(best, c.rate.bytes_per_s) : best;
      for (const Cell& c : cells_) {
        if (c.way == way) report_.rate(c.name, c.rate.bytes_per_s / 1e6, "MB/s", std::string("best ") + way_name(way), best / 1e6);
      }
    }
    if (refused_) report_.note("io_uring is refused here");
  }

  const StoreBenchOptions& o_;
  Scratch& scratch_;
  std::vector<Cell> cells_;
  bool refused_ = false;
  Report report_;
};

}  // namespace

Result<Report> bench_store(const StoreBenchOptions& o) {
  if (o.depths.empty()) return Status::invalid_argument("--depths: none given");
  for (int depth : o.depths) {
    if (depth < 1 || depth > 64) return Status::invalid_argument("--depths " + std::to_string(depth) + ": 1 to 64");
  }
  const uint64_t bytes = o.file_bytes / kChunk * kChunk;
  if (bytes == 0) return Status::invalid_argument("--size " + std::to_string(o.file_bytes) + ": at least 8 MiB");
  FOVEA_ASSIGN(const std::unique_ptr<Scratch> scratch, Scratch::make(o.dir, bytes));
  FOVEA_ASSIGN(Report report, StoreBench(o, *scratch).run());
  FOVEA_TRY(bench_store_load(o, &report));
  return report;
}

}  // namespace fovea
