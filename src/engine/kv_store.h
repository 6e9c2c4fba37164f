// KvStore: the engine's side of a store below the pool. Prompts that go on there are found, loaded where that is quicker than
// computing them, and what prefill published is stored. No fault of the store is a request's: what it does not give is computed,
// what it does not take is not found later.
#pragma once

#include "engine/chain_source.h"
#include "engine/store_loader.h"
#include "engine/store_writer.h"
#include "kv/host_fill.h"

#include <fovea/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace fovea {

// For the stepping thread.
class KvStore final : public ChainSource {
 public:
  // A shorter chain is not worth a load.
  static constexpr int64_t kLeastTokens = 256;

  // Of one call of the store's disk; what goes on longer hangs, and is not waited for.
  static constexpr double kPatienceS = 30;

  // `puts_published`: what prefill publishes goes to the store by itself. `host`, with so many threads: where K and V of blocks
  // without columns are brought. Errors: the store's, of opening the layout.
  static Result<std::unique_ptr<KvStore>> create(std::shared_ptr<BlockStore> store, std::unique_ptr<ColumnIo> io,
                                                 BlockManager& blocks, bool puts_published, double patience_s = kPatienceS,
                                                 std::optional<HostBlocks> host = std::nullopt, int threads = 1);
  ~KvStore() override;  // loads end; what was published is stored, unless the disk hangs

  StoredChain find(BlockHasher& hasher, const BlockKey* parent, std::span<const int32_t> tokens, int64_t alignment) override;
  // What prefill computes, for find() to compare with: tokens, and the seconds they took.
  void note_prefill(int64_t tokens, double seconds);

  void begin(PlannedLoad load);
  std::vector<uint64_t> loads() const;
  void cancel(uint64_t load);
  // Without waiting. The loads that are over, until the next call: of a device with host memory below it, also those of which K and V
  // are still on their way there (HostFill::need). Their bytes count as if they had come.
  std::span<const EndedLoad> poll();
  // Gives to the store what was published since the last call, and what BlockManager::spill() noted.
  void put_published();
  // Gives it blocks that lie below a device now, or that it lost, computed again.
  void put(const PublishedRun& run) { writer_.put({&run, 1}); }
  // Until some I/O has ended, or for 10 ms.
  void wait();
  // Where the pool is short: gives up what only waits to be stored. False: there was nothing.
  bool give_up_waiting() { return writer_.give_up_waiting(); }

  BlockStore& store() { return *store_; }
  int64_t stored_blocks() const { return writer_.stored_blocks(); }
  int64_t unstored_blocks() const { return writer_.given_up_blocks(); }
  const Status& last_error() const { return writer_.last_error(); }
  bool hangs() const { return store_->stalled_s() > patience_s_; }
  // Null: blocks without columns stay in the store.
  HostFill* fill() { return fill_.get(); }
  bool is_storing() const { return !writer_.idle() && !hangs(); }

 private:
  // Ends the store if nobody else has it. Where its disk hangs it stays as long as the process, and keeps the directory's lock.
  class Closer {
   public:
    Closer(std::shared_ptr<BlockStore>& store, double patience_s) : store_(store), patience_s_(patience_s) {}
    ~Closer();

   private:
    std::shared_ptr<BlockStore>& store_;
    const double patience_s_;
  };

  // K and V of a load on their way to host memory, beside the loader's part of it.
  struct Filling {
    PlannedLoad plan;  // its first blocks, which are pinned in the store
    double begun_s = 0;
    std::optional<EndedLoad> load;        // what the loader says at its end
    std::optional<HostFill::Ended> fill;  // likewise
    bool told = false;                    // it is over for the scheduler
    bool pinned = false;                  // its blocks, in the pool: they are still on their way
  };

  KvStore(std::shared_ptr<BlockStore> store, std::unique_ptr<ColumnIo> io, BlockManager& blocks, double patience_s)
      : patience_s_(patience_s),
        store_(std::move(store)),
        io_(std::move(io)),
        blocks_(blocks),
        loader_(*store_, *io_),
        writer_(*store_, *io_, blocks) {}
  size_t find_blocks(BlockHasher& hasher, const BlockKey* parent, std::span<const int32_t> tokens, StoredChain* chain);
  void find_tail(BlockHasher& hasher, const BlockKey* parent, std::span<const int32_t> tokens, StoredChain* chain);
  bool usable(const Located& block, size_t tokens) const;
  bool worth_loading(const StoredChain& chain) const;
  void cut(StoredChain* chain, size_t blocks);
  void end_fills();
  bool end_fill(Filling& filling);

  const double patience_s_;
  std::shared_ptr<BlockStore> store_;
  const Closer closer_{store_, patience_s_};  // behind whoever uses it
  std::unique_ptr<ColumnIo> io_;
  BlockManager& blocks_;
  StoreLoader loader_;
  StoreWriter writer_;
  std::map<uint64_t, Filling> filling_;
  std::unique_ptr<HostFill> fill_;
  Clock clock_;
  std::vector<PublishedRun> published_;
  std::vector<EndedLoad> ended_;
  // Measured, with a weight of 1/4 for the last one; 0: not yet.
  double load_tokens_per_s_ = 0, prefill_tokens_per_s_ = 0;
};

}  // namespace fovea
