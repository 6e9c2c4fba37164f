#include "bench/store_load.h"

#include "base/check.h"
#include "base/clock.h"
#include "store/file_store.h"
#include "store/lent_memory.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fovea {
namespace {

constexpr uint32_t kUnits = 256, kUnitBytes = 8192;  // Llama 8B in bf16: 32 layers of 8 KV heads of 128
constexpr uint64_t kBlockBytes = uint64_t{kUnits} * kUnitBytes;
constexpr uint32_t kSlabBlocks = kSlabCutBytes / kBlockBytes;
constexpr uint32_t kFirst = kSlabBlocks;  // block that is measured; the slab before it is what a channel reads beforehand
constexpr size_t kIoReads = FileChannel::kMaxIoBytes / kUnitBytes;  // neighbours that a channel reads at once
constexpr size_t kBatchReads = 256, kBatches = 32;                  // as many such I/Os as a channel has begun

ObjectLayout layout() { return {.block_tokens = 16, .parts = {{.name = "kv", .units = kUnits, .unit_bytes = kUnitBytes}}}; }

uint64_t next_random(uint64_t* state) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return *state >> 20;
}

// What is read into: in huge pages, and touched before, as memory that is used again and again.
Result<std::shared_ptr<LentMemory>> touched(size_t bytes) {
  FOVEA_ASSIGN(auto memory, LentMemory::make(bytes, "bench store"));
  std::memset(memory->data(), 1, bytes);
  return memory;
}

// Random bytes, other ones for each extent.
class RandomBytes final : public BlockBytes {
 public:
  RandomBytes() : words_(1 << 16) {
    uint64_t state = 3;
    for (uint64_t& w : words_) w = next_random(&state) * 0x9E3779B97F4A7C15ull;
  }
  void copy(uint32_t block, uint16_t, uint32_t unit, std::byte* to) const override {
    const size_t first = (size_t{block} * 977 + unit * 31) % (words_.size() - kUnitBytes / 8);
    std::memcpy(to, words_.data() + first, kUnitBytes);
  }

 private:
  std::vector<uint64_t> words_;
};

struct ByPage {
  bool direct, cold;
  const char* name;
};
constexpr ByPage kWays[] = {{true, true, "direct"}, {false, true, "buffered"}, {false, false, "page cache"}};

// In which order extents are read.
enum class Order : uint8_t {
  strips,  // a slab's units one after the other, each with all of its blocks: prefill
  random,  // anywhere: demand of a step
};

struct Place {
  uint32_t block, unit;
};
Place first_slab_place(uint64_t i) { return {static_cast<uint32_t>(i % kSlabBlocks), static_cast<uint32_t>(i / kSlabBlocks)}; }

// `a` over `b`, round by round.
Figure in_rounds(std::string name, const std::vector<double>& a, const std::vector<double>& b, bool most_is_best) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  Spread spread = spread_of(ratios);
  if (most_is_best) spread.best = *std::ranges::max_element(ratios);
  return {.name = std::move(name), .value = spread.median, .unit = "x", .spread = spread};
}

class StoreLoad {
 public:
  StoreLoad(std::string dir, uint64_t bytes) : dir_(std::move(dir)), blocks_(static_cast<uint32_t>(bytes / kBlockBytes)) {}
  ~StoreLoad() {
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }

  Status write() {
    FOVEA_ASSIGN(const std::unique_ptr<FileStore> store, open(false, true));
    FOVEA_CHECK(blocks_per_slab(layout()) == kSlabBlocks);
    uint64_t state = 11;
    keys_.resize(kFirst + blocks_);
    for (StoreKey& key : keys_) {
      for (uint8_t& b : key.bytes) b = static_cast<uint8_t>(next_random(&state));
    }
    const RandomBytes bytes;
    Status wrote;
    PutRun run{.keys = keys_, .last_tokens = 16, .bytes = &bytes};
    run.done = [&](Status s, std::span<const Located>) { wrote = std::move(s); };
    FOVEA_TRY(store->put(std::move(run)));
    store->flush();
    return wrote;
  }

  // In rounds: what a disk gives changes from second to second, so times are compared with those of their own round, in which each
  // has two turns, there and back: what grows or falls meanwhile meets all alike.
  Status measure(const ByPage& way, Order order, int rounds, Report* report) {
    enum : size_t { raw, verified, unverified, kinds };
    std::array<std::vector<double>, kinds> taken_s;  // [rounds], of both turns
    for (int round = 0; round < rounds; ++round) {
      std::array<double, kinds> both_s{};
      for (size_t kind : {raw, verified, unverified, unverified, verified, raw})
        FOVEA_TRY(kind == raw ? read_raw(way, order, &both_s[kind]) : load(way, order, kind == verified, &both_s[kind]));
      for (size_t kind = 0; kind < kinds; ++kind) taken_s[kind].push_back(both_s[kind]);
    }
    const std::string what = std::string(way.name) + (order == Order::strips ? " strips" : " extents of 8 KiB");
    const double mb = 2 * static_cast<double>(reads(order)) * kUnitBytes / 1e6;
    report->rate(what + " through the store, verified", mb / spread_of(taken_s[verified]).median, "MB/s",
                 "raw reads, depth " + std::to_string(DiskReads::kDepth), mb / spread_of(taken_s[raw]).median);
    report->add(in_rounds(what + ", verified, of raw reads", taken_s[raw], taken_s[verified], true));
    report->add(in_rounds(what + ", time verified, of unverified", taken_s[verified], taken_s[unverified], false));
    return {};
  }

 private:
  Result<std::unique_ptr<FileStore>> open(bool direct, bool verify) {
    FileStoreConfig config;
    config.options.dir = dir_;
    config.options.io = direct ? StoreIo::direct : StoreIo::buffered;
    config.options.size_bytes = INT64_MAX;
    config.verify_reads = verify;
    FOVEA_ASSIGN(std::unique_ptr<FileStore> store, FileStore::open(config));
    FOVEA_TRY(store->open_layout(layout()));
    return store;
  }

  // The page cache holds all of the files, or nothing.
  Status set_cache(const FileStore& store, const ByPage& way) {
    AlignedBuffer buffer(1 << 20);
    for (const SlabIndex::Front& front : store.fronts()) {
      FOVEA_ASSIGN(const File file, store.directory().open_slab(front->number, false));
      if (way.cold) {
        FOVEA_TRY(file.sync(true));  // what is dirty stays
        FOVEA_TRY(os_status(posix_file_system().advise(file.fd(), POSIX_FADV_DONTNEED), dir_));
        continue;
      }
      for (uint64_t at = 0; at < front->file_bytes; at += buffer.size())
        FOVEA_TRY(file.read(at, buffer.span().first(std::min<uint64_t>(buffer.size(), front->file_bytes - at))));
    }
    return {};
  }

  uint64_t extents() const { return uint64_t{blocks_} * kUnits; }
  uint64_t reads(Order order) const { return order == Order::strips ? extents() : extents() / 8; }

  // The i-th read of the order.
  Place place(Order order, uint64_t i) const {
    if (order == Order::random) {
      uint64_t state = i;
      next_random(&state);
      const uint64_t at = next_random(&state) % extents();
      return {kFirst + static_cast<uint32_t>(at / kUnits), static_cast<uint32_t>(at % kUnits)};
    }
    const uint64_t first = i / (uint64_t{kSlabBlocks} * kUnits) * kSlabBlocks;  // block, of the slab
    const uint64_t in_slab = std::min<uint64_t>(kSlabBlocks, blocks_ - first), rest = i - first * kUnits;
    return {static_cast<uint32_t>(kFirst + first + rest % in_slab), static_cast<uint32_t>(rest / in_slab)};
  }

  // Into memory that is lent, as an engine does that loads blocks. By a channel that has read before, as raw reads go into memory
  // that was used before: an engine keeps its channels, and a system may take long to give a channel its memory.
  Status load(const ByPage& way, Order order, bool verify, double* taken_s) {
    FOVEA_ASSIGN(const std::unique_ptr<FileStore> store, open(way.direct, verify));
    FOVEA_TRY(set_cache(*store, way));
    std::vector<Located> where(keys_.size());
    store->locate(keys_, where);
    FOVEA_ASSIGN(const auto to, touched(kBatches * kBatchReads * kUnitBytes));
    const std::unique_ptr<StoreChannel> channel = store->open_channel();
    double first_s = 0;
    Status loaded = load_all(*channel, where, to, kFirst * kUnits, first_slab_place, &first_s);
    if (loaded.ok())
      loaded = load_all(
          *channel, where, to, reads(order), [&](uint64_t i) { return place(order, i); }, taken_s);
    store->unpin(where);
    return loaded;
  }

  Status load_all(StoreChannel& channel, const std::vector<Located>& where, const std::shared_ptr<LentMemory>& to, uint64_t reads,
                  const std::function<Place(uint64_t)>& place, double* taken_s) {
    struct Batch {
      std::vector<ExtentRead> reads;
      ReadBatch ticket;
    };
    std::vector<Batch> batches(kBatches);
    const Clock clock;
    const double start = clock.now_s();
    int64_t bad = 0;
    const auto finish = [&](Batch& b) {
      FOVEA_TRY(channel.wait(b.ticket, 1e30));
      for (const ExtentRead& r : b.reads) bad += r.result != IoResult::ok;
      b.reads.clear();
      return Status();
    };
    uint64_t i = 0;
    for (size_t turn = 0; i < reads; ++turn) {
      Batch& b = batches[turn % kBatches];
      std::byte* const b_to = to->data() + turn % kBatches * kBatchReads * kUnitBytes;
      FOVEA_TRY(finish(b));
      if (to->hangs()) break;  // some of these reads is bad
      for (; b.reads.size() < kBatchReads && i < reads; ++i) {
        const auto [block, unit] = place(i);
        b.reads.push_back({.block = where[block], .key = keys_[block], .unit = unit, .to = b_to + b.reads.size() * kUnitBytes});
      }
      b.ticket.reads = b.reads;
      b.ticket.lent = to;
      FOVEA_TRY(channel.submit(b.ticket));
    }
    for (Batch& b : batches) FOVEA_TRY(finish(b));
    *taken_s += clock.now_s() - start;
    return bad == 0 ? Status() : Status::corrupt(dir_ + ": " + std::to_string(bad) + " extents were not read");
  }

  // The same bytes in the same order into as much memory, neighbours in one read, as many reads under way as a channel has.
  Status read_raw(const ByPage& way, Order order, double* taken_s) {
    FOVEA_ASSIGN(const std::unique_ptr<FileStore> store, open(way.direct, true));
    FOVEA_TRY(set_cache(*store, way));
    std::vector<File> files;
    const std::vector<SlabIndex::Front> fronts = store->fronts();
    for (const SlabIndex::Front& front : fronts) {
      FOVEA_ASSIGN(File file, store->directory().open_slab(front->number, way.direct));
      files.push_back(std::move(file));
    }
    const size_t count = order == Order::strips ? kIoReads : 1, read_bytes = count * kUnitBytes;
    const std::unique_ptr<IoEngine> engine = posix_file_system().make_engine(DiskReads::kDepth, FileStoreConfig{}.read_threads);
    FOVEA_ASSIGN(const auto buffer, touched(kBatches * kBatchReads * kUnitBytes));
    std::vector<iovec> to(kBatches * kBatchReads / count);
    std::deque<uint64_t> free;  // the longest ago first
    for (uint64_t slot = 0; slot < to.size(); ++slot) free.push_back(slot);
    const Clock clock;
    const double start = clock.now_s();
    int64_t bad = 0;
    for (uint64_t i = 0; i < reads(order) || free.size() < to.size();) {
      for (; to.size() - free.size() < DiskReads::kDepth && i < reads(order); free.pop_front()) {
        const auto [block, unit] = place(order, i);
        const SlabFront& front = *fronts[block / kSlabBlocks];
        to[free.front()] = {buffer->data() + read_bytes * free.front(), read_bytes};
        FOVEA_CHECK(engine->push(
            {files[block / kSlabBlocks].fd(), front.extent(0, unit, block % kSlabBlocks), {&to[free.front()], 1}, free.front()}));
        i += count;
      }
      IoCompletion done[64];
      const size_t n = engine->reap(done, 1);
      for (size_t d = 0; d < n; ++d) {
        bad += done[d].result != static_cast<int64_t>(to[done[d].tag].iov_len);
        free.push_back(done[d].tag);
      }
    }
    *taken_s += clock.now_s() - start;
    return bad == 0 ? Status() : Status::io_error(dir_ + ": " + std::to_string(bad) + " reads failed");
  }

  const std::string dir_;
  const uint32_t blocks_;
  std::vector<StoreKey> keys_;
};

}  // namespace

Status bench_store_load(const StoreBenchOptions& options, Report* report) {
  StoreLoad load(options.dir + "/fovea-bench-store.d", std::max(options.file_bytes, kBlockBytes));
  FOVEA_TRY(load.write());
  for (const ByPage& way : kWays) {
    for (Order order : {Order::strips, Order::random}) {
      const Status s = load.measure(way, order, options.rounds, report);
      if (!s.ok() && !way.direct) return s;
      if (!s.ok()) report->note(std::string(way.name) + ": " + s.message());
    }
  }
  return {};
}

}  // namespace fovea
