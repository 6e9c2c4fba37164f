#include "engine/store_loader.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace fovea {
namespace {

int32_t window_blocks(const ColumnExtents& extents, int64_t bytes) {
  return static_cast<int32_t>(std::clamp<int64_t>(bytes / extents.block_bytes(), 1, 256));
}

}  // namespace

StoreLoader::StoreLoader(BlockStore& store, ColumnIo& io, int64_t window_bytes)
    : store_(store), io_(io), where_(io.layout(), window_blocks(io.extents(), window_bytes)), channel_(store.open_channel()) {
  for (Window& w : windows_) w.copied = io_.make_event();
}

StoreLoader::~StoreLoader() {
  for (Load& load : loads_) stop(load);
  std::vector<EndedLoad> ended;
  for (poll(&ended); !idle(); poll(&ended)) wait(0.01);
  for (Window& w : windows_) (void)w.copied->wait().ok();  // the buffer goes
}

void StoreLoader::begin(PlannedLoad plan) { loads_.emplace_back(Load{std::move(plan)}).begun_s = clock_.now_s(); }

void StoreLoader::cancel(uint64_t id) {
  for (Load& load : loads_) {
    if (load.plan.id == id) stop(load);
  }
}

std::vector<uint64_t> StoreLoader::loads() const {
  std::vector<uint64_t> ids;
  for (const Load& load : loads_) ids.push_back(load.plan.id);
  return ids;
}

void StoreLoader::stop(Load& load) {
  if (std::exchange(load.stopped, true)) return;
  for (Window& w : windows_) {
    if (w.load != &load) continue;
    if (w.state == Window::State::reading) {
      channel_->cancel(w.batch);
    } else {
      w.state = Window::State::free;
      w.load = nullptr;
    }
  }
}

void StoreLoader::poll(std::vector<EndedLoad>* ended) {
  if (loads_.empty() && std::none_of(windows_.begin(), windows_.end(), [](const Window& w) { return w.memory != nullptr; })) return;
  channel_->poll();
  for (bool more = true; more;) {
    more = false;
    for (Window& w : windows_) more |= advance(w);
    while (end_one(ended)) more = true;
  }
  if (!loads_.empty()) return;
  for (Window& w : windows_) {
    if (w.state == Window::State::free) w.drop_memory();  // loads are rare, and this is not the pool's memory
  }
}

// True: it is in another state than before.
bool StoreLoader::advance(Window& w) {
  switch (w.state) {
    case Window::State::free:
      return fill(w);
    case Window::State::filled:
      if (channel_->submit(w.batch).code() == StatusCode::busy) return false;
      w.state = Window::State::reading;
      return true;
    case Window::State::reading:
      // acquire: with it come the results and bytes.
      if (w.batch.left.load(std::memory_order_acquire) > 0) return false;
      if (!w.load->stopped && w.first != w.load->good) return false;  // the window before it decides
      take(w);
      return true;
    case Window::State::copying:
      if (!w.copied->done()) return false;
      w.state = Window::State::free;
      return true;
  }
  return false;
}

// With the next blocks of the oldest load that has some.
bool StoreLoader::fill(Window& w) {
  const auto at =
      std::find_if(loads_.begin(), loads_.end(), [](const Load& l) { return !l.stopped && l.next < l.plan.blocks.size(); });
  if (at == loads_.end()) return false;
  Load& load = *at;
  if (!has_memory(w)) {
    stop(load);  // it is computed
    return true;
  }
  w.load = &load;
  w.first = load.next;
  w.count = static_cast<int32_t>(std::min<size_t>(load.plan.blocks.size() - load.next, static_cast<size_t>(where_.blocks())));
  load.next += static_cast<size_t>(w.count);
  w.reads.clear();
  w.block_of.clear();
  const StoredChain& chain = load.plan.chain;
  const uint32_t all = (1u << io_.layout().parts.size()) - 1;
  for (size_t p = 0; p < io_.layout().parts.size(); ++p) {
    for (uint32_t u = 0; u < io_.layout().parts[p].units; ++u) {
      for (int32_t i = 0; i < w.count; ++i) {
        const size_t b = w.first + static_cast<size_t>(i);
        // Of blocks that get no column, K and V are read only to make other parts from them.
        const bool whole = (all & ~uint32_t{chain.located[b].parts}) == 0;
        if (!chain.located[b].has_part(p) || (p == 0 && b < load.plan.mobile && whole)) continue;
        w.reads.push_back(
            {chain.located[b], chain.keys[b], static_cast<uint16_t>(p), u, w.memory->data() + where_.offset(p, u, i)});
        w.block_of.push_back(static_cast<uint16_t>(i));
      }
    }
  }
  w.batch.reads = w.reads;
  if (io_.lends_memory()) w.batch.lent = w.memory;
  w.state = Window::State::filled;
  return true;
}

// Where a disk still may write, for it hangs, no window is any more: that memory is the store's until the disk gives it back.
bool StoreLoader::has_memory(Window& w) {
  if (w.memory && !w.memory->hangs()) return true;
  w.drop_memory();
  Result<std::shared_ptr<LentMemory>> memory = io_.load_memory(where_.bytes());
  if (!memory.ok()) return false;
  w.memory = std::move(memory).value();
  return true;
}

// What was read goes into the pool, up to the first block that is not whole.
void StoreLoader::take(Window& w) {
  Load& load = *std::exchange(w.load, nullptr);
  w.state = Window::State::free;
  if (load.stopped) return;
  parts_.assign(static_cast<size_t>(w.count), 0);
  failed_.assign(static_cast<size_t>(w.count), 0);
  has_kv_.assign(static_cast<size_t>(w.count), 0);
  int64_t bytes = 0;
  for (size_t r = 0; r < w.reads.size(); ++r) {
    const ExtentRead& read = w.reads[r];
    const bool ok = read.result == IoResult::ok;
    if (ok && read.part > 0) parts_[w.block_of[r]] |= 1u << read.part;
    if (read.part == 0) has_kv_[w.block_of[r]] = 1;
    if (!ok && read.part == 0) failed_[w.block_of[r]] = 1;
    bytes += ok ? io_.layout().parts[read.part].unit_bytes : 0;
  }
  const uint32_t all = (1u << io_.layout().parts.size()) - 1;
  size_t good = 0;
  for (; good < parts_.size(); ++good) {
    parts_[good] |= 1;
    const uint32_t rebuildable = has_kv_[good] ? io_.rebuildable() : 0;
    if (failed_[good] || (all & ~parts_[good] & ~rebuildable) != 0) break;
  }
  for (size_t i = 0; i < good && w.first + i < load.plan.mobile; ++i) parts_[i] &= ~1u;
  const bool whole = good == parts_.size();
  if (good > 0) {
    const auto last_tokens = static_cast<int32_t>(load.plan.chain.located[w.first + good - 1].tokens);
    const auto blocks = std::span<const BlockId>(load.plan.blocks).subspan(w.first, good);
    const Status copied =
        io_.load(blocks, std::span<const uint32_t>(parts_).first(good), last_tokens, w.memory->data(), where_, *w.copied);
    w.state = Window::State::copying;
    if (!copied.ok()) return stop(load);
  }
  load.good += good;
  load.bytes += bytes;
  if (!whole) stop(load);
}

// The first load that no window works for and that has nothing left to begin.
bool StoreLoader::end_one(std::vector<EndedLoad>* ended) {
  for (auto load = loads_.begin(); load != loads_.end(); ++load) {
    const bool begun = load->stopped || load->next == load->plan.blocks.size();
    if (!begun || std::any_of(windows_.begin(), windows_.end(), [&](const Window& w) { return w.load == &*load; })) continue;
    const StoredChain& chain = load->plan.chain;
    const size_t all = chain.keys.size();
    const int64_t bs = io_.layout().block_tokens;
    store_.unpin(std::span<const Located>(chain.located).subspan(load->plan.mobile));
    ended->push_back({load->plan.id, load->plan.seq, load->good == all ? chain.tokens : static_cast<int64_t>(load->good) * bs,
                      load->bytes, clock_.now_s() - load->begun_s});
    loads_.erase(load);
    return true;
  }
  return false;
}

void StoreLoader::wait(double seconds) {
  const auto reading =
      std::find_if(windows_.begin(), windows_.end(), [](const Window& w) { return w.state == Window::State::reading; });
  if (reading != windows_.end()) (void)channel_->wait(reading->batch, clock_.now_s() + seconds).ok();  // busy: not yet
}

}  // namespace fovea
