// SlabStore: what stores made of slabs have in common, wherever the slabs lie: finding, pinning, cutting runs into slabs, quota,
// removal. MemoryStore and FileStore say how a slab is written, read and removed.
#pragma once

#include "store/block_store.h"
#include "store/slab.h"
#include "store/slab_index.h"

#include <atomic>
#include <mutex>

namespace fovea {

// Counted by channels of several threads and by the writer.
struct StoreCounters {
  std::atomic<int64_t> read_extents{0}, read_bytes{0}, ios{0}, absent{0}, corrupt{0}, io_errors{0};
};

class SlabStore : public BlockStore {
 public:
  Status open_layout(const ObjectLayout& layout) override;
  void locate(std::span<const StoreKey> keys, std::span<Located> out) override;
  void unpin(std::span<const Located> blocks) override;
  Status erase(std::span<const StoreKey> keys) override;
  StoreStats stats() const override;
  int64_t collect(int64_t bytes) override;

 protected:
  explicit SlabStore(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Writes what is missing of a run and calls done().
  void write_run(PutRun run);
  // Removes slabs that nothing can find any more.
  void remove_dead();
  // A bad extent was met: its block cannot be found any more.
  void lost(const Located& block);
  void note_error(const Status& status);

  // Writes blocks [first, first + front->blocks()) of the run as a slab that is complete on return; sets its digests.
  virtual Status write_one(const PutRun& run, uint32_t first, SlabFront* front) = 0;
  // The slab has left the index and nobody holds it. Called with writing_ held.
  virtual void remove_one(const SlabFront& front) = 0;
  // There is something for remove_dead() to do. Called from any thread.
  virtual void dead_slabs() = 0;
  virtual uint64_t unix_s() const;

  SlabIndex index_;
  StoreCounters counters_;
  std::mutex writing_;        // one thread adds and removes slabs
  uint64_t next_number_ = 1;  // guarded by writing_
  const int64_t limit_bytes_;

 private:
  struct Piece {
    uint32_t first, blocks;
  };
  std::vector<Piece> missing_pieces(const PutRun& run, const ObjectLayout& layout, std::span<const Located> there) const;
  Status write_piece(const PutRun& run, Piece piece, const ObjectLayout& layout);
  Status make_room(int64_t bytes);
  int64_t collect_to(int64_t bytes);

  mutable std::mutex stats_mutex_;  // guards done_
  StoreStats done_;                 // puts and removals
};

}  // namespace fovea
