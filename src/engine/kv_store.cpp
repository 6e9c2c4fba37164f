#include "engine/kv_store.h"

#include "base/check.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace fovea {
namespace {

constexpr size_t kKeysAtOnce = 64;  // hashed before the store is asked: a prompt that it has not costs little
constexpr double kWaitS = 0.01;

void average(double* mean, double value) { *mean = *mean == 0 ? value : 0.75 * *mean + 0.25 * value; }

}  // namespace

Result<std::unique_ptr<KvStore>> KvStore::create(std::shared_ptr<BlockStore> store, std::unique_ptr<ColumnIo> io,
                                                 BlockManager& blocks, bool puts_published, double patience_s,
                                                 std::optional<HostBlocks> host, int threads) {
  FOVEA_TRY(store->open_layout(io->layout()));
  std::unique_ptr<KvStore> kv(new KvStore(std::move(store), std::move(io), blocks, patience_s));
  if (puts_published) blocks.note_published(&kv->published_);
  if (host) kv->fill_ = std::make_unique<HostFill>(*kv->store_, *host, threads);
  return kv;
}

KvStore::~KvStore() {
  writer_.finish(patience_s_);
  for (const uint64_t load : loader_.loads()) loader_.cancel(load);
  for (const auto& [id, filling] : filling_) fill_->cancel(id);
  for (poll(); !loader_.idle() || !filling_.empty(); poll()) wait();
}

KvStore::Closer::~Closer() {
  if (store_.use_count() > 1 || store_->close(patience_s_)) return;
  static auto& hanging = *new std::vector<std::shared_ptr<BlockStore>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  hanging.push_back(store_);
}

// ---- what lies in the store ----

bool KvStore::usable(const Located& block, size_t tokens) const {
  const uint32_t all = (1u << io_->layout().parts.size()) - 1;
  return block.found() && block.tokens == tokens && (all & ~uint32_t{block.parts} & ~io_->rebuildable()) == 0;
}

// Appends the longest chain of full blocks; their number.
size_t KvStore::find_blocks(BlockHasher& hasher, const BlockKey* parent, std::span<const int32_t> tokens, StoredChain* chain) {
  const size_t bs = io_->layout().block_tokens, all = tokens.size() / bs;
  while (chain->keys.size() < all) {
    const size_t first = chain->keys.size(), n = std::min(kKeysAtOnce, all - first);
    for (size_t i = first; i < first + n; ++i)
      chain->keys.push_back(hasher.key(i > 0 ? &chain->keys[i - 1] : parent, tokens.subspan(i * bs, bs)));
    chain->located.resize(first + n);
    store_->locate(std::span<const BlockKey>(chain->keys).subspan(first), std::span<Located>(chain->located).subspan(first));
    const auto end = std::find_if(chain->located.begin() + static_cast<int64_t>(first), chain->located.end(),
                                  [&](const Located& l) { return !usable(l, bs); });
    const auto good = static_cast<size_t>(end - chain->located.begin());
    cut(chain, good);
    if (good < first + n) break;
  }
  return chain->keys.size();
}

// Appends a partial block behind them: the longest that begins `tokens`.
void KvStore::find_tail(BlockHasher& hasher, const BlockKey* parent, std::span<const int32_t> tokens, StoredChain* chain) {
  for (size_t n = std::min<size_t>(tokens.size(), io_->layout().block_tokens - 1); n > 0; --n) {
    const BlockKey key = hasher.key(parent, tokens.first(n));
    Located block;
    store_->locate({&key, 1}, {&block, 1});
    if (usable(block, n)) {
      chain->keys.push_back(key);
      chain->located.push_back(block);
      chain->tokens += static_cast<int64_t>(n);
      return;
    }
    store_->unpin({&block, 1});
  }
}

// Unpins all but the first blocks.
void KvStore::cut(StoredChain* chain, size_t blocks) {
  store_->unpin(std::span<const Located>(chain->located).subspan(blocks));
  chain->located.resize(blocks);
  chain->keys.resize(blocks);
}

StoredChain KvStore::find(BlockHasher& hasher, const BlockKey* parent, std::span<const int32_t> tokens, int64_t alignment) {
  StoredChain chain;
  if (static_cast<int64_t>(tokens.size()) < kLeastTokens) return chain;
  const size_t bs = io_->layout().block_tokens;
  const size_t full = find_blocks(hasher, parent, tokens, &chain);
  if (alignment > 1) cut(&chain, full - full % (static_cast<size_t>(alignment) / bs));
  chain.tokens = static_cast<int64_t>(chain.keys.size() * bs);
  if (alignment == 1) find_tail(hasher, full > 0 ? &chain.keys.back() : parent, tokens.subspan(full * bs), &chain);
  if (worth_loading(chain)) return chain;
  if (chain.tokens >= kLeastTokens) load_tokens_per_s_ *= 1.1;  // what was slow once is tried again
  cut(&chain, 0);
  return {};
}

// Where nothing was measured yet: loaded.
bool KvStore::worth_loading(const StoredChain& chain) const {
  if (chain.tokens < kLeastTokens) return false;
  return load_tokens_per_s_ == 0 || prefill_tokens_per_s_ == 0 || load_tokens_per_s_ > prefill_tokens_per_s_;
}

void KvStore::note_prefill(int64_t tokens, double seconds) {
  if (tokens >= kLeastTokens && seconds > 0) average(&prefill_tokens_per_s_, static_cast<double>(tokens) / seconds);
}

// ---- I/O ----

void KvStore::begin(PlannedLoad load) {
  if (fill_ && load.mobile > 0) {
    const auto first = [&](const auto& all) { return std::vector(all.begin(), all.begin() + static_cast<int64_t>(load.mobile)); };
    Filling& f = filling_[load.id];
    f.plan = load;
    f.plan.chain.located = first(load.chain.located);
    f.plan.blocks = first(load.blocks);
    f.begun_s = clock_.now_s();
    fill_->begin({load.id, first(load.chain.keys), f.plan.chain.located, f.plan.blocks});
  }
  loader_.begin(std::move(load));
}

std::vector<uint64_t> KvStore::loads() const {
  std::vector<uint64_t> all = loader_.loads();
  for (const auto& [id, filling] : filling_) {
    if (filling.load && !filling.told) all.push_back(id);  // else the loader has named it
  }
  return all;
}

void KvStore::cancel(uint64_t load) {
  loader_.cancel(load);
  if (filling_.contains(load)) fill_->cancel(load);
}

void KvStore::end_fills() {
  if (filling_.empty()) return;
  std::erase_if(ended_, [&](const EndedLoad& load) {
    const auto filling = filling_.find(load.id);
    if (filling != filling_.end()) filling->second.load = load;
    return filling != filling_.end();
  });
  for (const HostFill::Ended& fill : fill_->poll()) filling_.at(fill.id).fill = fill;
  for (auto f = filling_.begin(); f != filling_.end();) f = end_fill(f->second) ? filling_.erase(f) : std::next(f);
}

// The scheduler goes on as soon as codes and tail are there, if nothing has failed so far: what attention misses in host memory then
// it asks for. Else it goes on with what both parts of the load have. True: all is over.
bool KvStore::end_fill(Filling& f) {
  if (!f.load) return false;
  const size_t blocks = f.plan.blocks.size(), good = f.fill ? f.fill->good : fill_->good(f.plan.id);
  if (!f.told && (f.fill || (good == blocks && f.load->tokens == f.plan.chain.tokens))) {
    const PartSpec& kv = io_->layout().parts[0];
    EndedLoad& load = ended_.emplace_back(*f.load);
    if (good < blocks) load.tokens = std::min(load.tokens, static_cast<int64_t>(good) * io_->layout().block_tokens);
    load.bytes += f.fill ? f.fill->bytes : static_cast<int64_t>(blocks) * kv.units * kv.unit_bytes;
    load.seconds = clock_.now_s() - f.begun_s;
    f.told = true;
    f.pinned = !f.fill;
    for (size_t i = 0; i < blocks && f.pinned; ++i) blocks_.pin(f.plan.blocks[i]);
  }
  if (!f.fill) return false;
  for (size_t i = 0; i < blocks && f.pinned; ++i) blocks_.unpin(f.plan.blocks[i]);
  store_->unpin(f.plan.chain.located);
  return true;
}

std::span<const EndedLoad> KvStore::poll() {
  ended_.clear();
  loader_.poll(&ended_);
  end_fills();
  writer_.poll();
  for (const EndedLoad& load : ended_) {
    if (load.tokens >= kLeastTokens && load.seconds > 0)
      average(&load_tokens_per_s_, static_cast<double>(load.tokens) / load.seconds);
  }
  return ended_;
}

void KvStore::put_published() {
  if (published_.empty()) return;
  writer_.put(published_);
  published_.clear();
}

void KvStore::wait() {
  if (!loader_.idle()) return loader_.wait(kWaitS);
  if (!filling_.empty()) return fill_->wait(kWaitS);
  writer_.wait(kWaitS);
}

}  // namespace fovea
