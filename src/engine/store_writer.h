// StoreWriter: gives a store what prefill published, run by run. The blocks stay pinned until their bytes need them no more. Where
// the store is slower than prefill, runs wait, pinned; if the pool runs short they are given up.
#pragma once

#include "kv/block_manager.h"
#include "runner/column_io.h"
#include "store/block_store.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace fovea {

// For one thread.
class StoreWriter {
 public:
  // All outlive it.
  StoreWriter(BlockStore& store, ColumnIo& io, BlockManager& blocks) : store_(store), io_(io), blocks_(blocks) {}
  ~StoreWriter();  // everything that it was given is stored, or refused

  // Published just now.
  void put(std::span<const PublishedRun> runs);
  // Takes over what has ended and gives on what the store has room for; does not wait.
  void poll();
  bool idle() const { return waiting_.empty() && puts_.empty(); }
  // Until a put has ended, or for so long.
  void wait(double seconds);
  // Unpins what the store was not given yet, for it is needed elsewhere. False: there is nothing such.
  bool give_up_waiting();

  int64_t stored_blocks() const { return stored_blocks_; }
  int64_t given_up_blocks() const { return given_up_blocks_; }

 private:
  struct Put {
    PutRun run;
    std::unique_ptr<SavedColumns> bytes;
    std::vector<BlockId> blocks;  // [run.keys]
    std::vector<BlockId> pinned;  // of them
    bool given = false;           // to the store
  };

  bool save_next();
  bool give(Put& put);
  void keep_stored(const Put& put, std::vector<Located>* located);
  void unpin(std::vector<BlockId>* blocks);
  void take_ended();

  BlockStore& store_;
  ColumnIo& io_;
  BlockManager& blocks_;
  std::deque<PublishedRun> waiting_;  // pinned
  std::list<Put> puts_;               // in order
  int64_t stored_blocks_ = 0, given_up_blocks_ = 0;

  std::mutex mutex_;  // guards what follows: the store's writer thread ends puts
  std::condition_variable ended_one_;
  std::vector<std::pair<Put*, std::vector<Located>>> ended_;
};

}  // namespace fovea
