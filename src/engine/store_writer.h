// StoreWriter: gives a store what prefill published, run by run. The blocks stay pinned until their bytes need them no more, or,
// where they give up their columns then, until they lie there. Where the store is slower than prefill, runs wait, pinned; if the
// pool runs short they are given up. What the store has not taken when a disk hangs is taken back.
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
  StoreWriter(BlockStore& store, ColumnIo& io, BlockManager& blocks)
      : store_(store), io_(io), blocks_(blocks), columns_(blocks.host_below() ? nullptr : blocks.columns()) {}
  ~StoreWriter() { finish(1e30); }

  // Everything that it was given is stored, or refused; or, where the store has stalled for so long, taken back.
  void finish(double patience_s);

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
  const Status& last_error() const { return error_; }  // why some were

 private:
  // Bytes that the store's writer thread copies until they are taken back.
  class Lent;
  // What its writer thread tells; outlives whoever is told.
  struct Ended {
    std::mutex mutex;
    std::condition_variable one_more;
    struct One {
      const void* put;
      Status status;
      std::vector<Located> located;
    };
    std::vector<One> puts;
  };
  struct Put {
    PutRun run;
    std::shared_ptr<Lent> bytes;
    std::vector<BlockId> blocks;  // [run.keys]
    std::vector<BlockId> pinned;  // of them
    bool given = false;           // to the store
  };

  bool save_next();
  bool give(Put& put);
  void forget_unneeded();
  void keep_stored(const Put& put, std::vector<Located>* located);
  void unpin(std::vector<BlockId>* blocks);
  void take_ended();
  void give_up(std::vector<BlockId>* pinned, size_t blocks, const Status& why);

  BlockStore& store_;
  ColumnIo& io_;
  BlockManager& blocks_;
  ColumnPool* const columns_;         // whose blocks lie in the store once they give up their columns; null: none do
  std::deque<PublishedRun> waiting_;  // pinned
  std::list<Put> puts_;               // in order
  int64_t stored_blocks_ = 0, given_up_blocks_ = 0;
  Status error_;
  const std::shared_ptr<Ended> ended_ = std::make_shared<Ended>();
};

}  // namespace fovea
