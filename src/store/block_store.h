// BlockStore: where blocks of KV lie outside the pool, by content key. One asynchronous contract for memory and files.
//
// Verification is the store's: a read is `ok` only if the extent's XXH3-128, seeded with its identity (key, part, unit), is the
// one that was written. A wrong, swapped, torn or stale extent is a result of that extent (`corrupt`), never bytes.
// Who owns what: the caller a batch and every `to` in it; the store its bounce buffers and slab buffers.
// Units: bytes, seconds of Clock (monotonic), tokens where the name says so.
#pragma once

#include "store/lent_memory.h"
#include "store/object_layout.h"
#include "store/store_key.h"

#include <fovea/status.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fovea {

// A block in a store. Stays readable while it is pinned: by locate() or by done() of a put, until unpin().
struct Located {
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  uint32_t slab = kNone;  // the store's own number, kNone: not there
  uint16_t at = 0;        // block in the slab
  uint16_t parts = 0;   // bit p: the slab holds parts[p] of the layout that is open, of the same shape; bit 0 ("kv") is always set
  uint32_t tokens = 0;  // 1 to block_tokens; fewer only in the last block of a sequence
  bool found() const { return slab != kNone; }
  bool has_part(size_t part) const { return part < 16 && (parts >> part & 1) != 0; }
};

enum class IoResult : uint8_t {
  pending,
  ok,         // all unit_bytes lie at `to` and were verified
  absent,     // the block is gone, or its slab has not this part (or has it in another shape)
  corrupt,    // the bytes are not those that were written: the block leaves the store's index
  io_error,   // they could not be read, or not within the store's patience: likewise, unless for lack of open files
  cancelled,  // by cancel(), before its I/O began
};

// Where the extents of a block lie in memory: unit u of a part at first + u * stride bytes.
struct InMemory {
  const std::byte* first = nullptr;  // null: nowhere
  int64_t stride = 0;                // a multiple of 4096, as the address is
};

// One extent to be read.
struct ExtentRead {
  Located block;                        // pinned by the caller until the batch has ended
  StoreKey key;                         // of the block: a part of what the digest is seeded with
  uint16_t part = 0;                    // index into the open layout's parts
  uint32_t unit = 0;                    // < parts[part].units
  std::byte* to = nullptr;              // [unit_bytes], at any address; holds anything unless the result is ok
  IoResult result = IoResult::pending;  // the store writes it, once
};

// A ticket: the caller's object. It, its reads and every `to` live, unmoved and untouched, until left == 0, on failure and after
// cancel() too; a disk that hangs holds them no longer than the store's patience, and nothing is written there afterwards, unless
// the memory was lent. When `left` is seen as 0 (acquire), all results and bytes are visible.
struct ReadBatch {
  std::span<ExtentRead> reads;
  int32_t priority = 3;      // batches of a lower number begin first; the same number: in the order of submit()
  double deadline_s = 1e30;  // for whoever orders batches above a store (prefetch); a store does not look at it
  bool passing = false;      // of whole contexts, read again and again: drives nothing out of memory above a store
  // Where every `to` lies: a disk may read straight into it, which saves a copy. Digests are checked there, before a read is ok.
  // Of one channel at a time, and not while it hangs(). Null: a disk never writes to what is the caller's.
  std::shared_ptr<LentMemory> lent;
  std::atomic<int32_t> left{0};  // reads without a result; set by submit()
};

// One thread's way to a store: its own I/O queue and bounce buffers. Batches overlap. Only the thread that uses it may call it.
// Ended by its destructor, which cancels what has not begun and waits for the rest. Ends before its store.
class StoreChannel {
 public:
  virtual ~StoreChannel() = default;
  // Begins to read. Neighbours in the file become one I/O of at most 256 KiB. busy: too much is under way, nothing was begun
  // (left is 0): poll() and try again. Any other outcome is ok: what fails is a result of its read.
  virtual Status submit(ReadBatch& batch) = 0;
  // Ends what has arrived and begins what waits for its turn, without waiting itself; the reads that got their result.
  virtual int poll() = 0;
  // Polls until the batch has ended (ok) or until_s of Clock is reached (busy: it still runs).
  virtual Status wait(ReadBatch& batch, double until_s) = 0;
  // Asks: reads whose I/O has not begun end as cancelled, at once; the others end as they come. left == 0 still tells the end.
  virtual void cancel(ReadBatch& batch) = 0;
};

// Hands out the bytes of a run that is being put. Called on the store's writer thread, or inside put().
class BlockBytes {
 public:
  virtual ~BlockBytes() = default;
  // Copies part `part`, unit `unit` of the run's block `block` (index into PutRun::keys) to `to`: all its unit_bytes.
  virtual void copy(uint32_t block, uint16_t part, uint32_t unit, std::byte* to) const = 0;
  // Asked behind the last copy of a slab. False: they were taken back meanwhile, and what was copied is worth nothing.
  virtual bool still_there() const { return true; }
};

// Consecutive blocks of one sequence, to be written.
struct PutRun {
  StoreKey parent;                    // key of the block before the first; all zero: the first block of a sequence
  uint64_t first_block = 0;           // index of the first block in its sequence
  std::vector<StoreKey> keys;         // in order, each the parent of the next
  uint32_t last_tokens = 0;           // of the last block, 1 to block_tokens; all others are full
  const BlockBytes* bytes = nullptr;  // lives, and gives the same bytes, until done()
  // Called once, on the store's writer thread or inside put(); it must not call the store nor wait. [keys]: where each block lies
  // now (also those that were there before), pinned; kNone where it was not written. The status is the first error. May be null:
  // then nothing is pinned.
  std::function<void(Status, std::span<const Located>)> done;
};

struct StoreStats {
  int64_t blocks = 0, slabs = 0;                      // that can be found now
  int64_t bytes = 0;                                  // that slabs take, fronts and padding included
  int64_t limit_bytes = 0;                            // quota
  int64_t memory_bytes = 0;                           // of this process, that blocks lie in
  int64_t puts = 0, failed_puts = 0;                  // runs
  int64_t written_bytes = 0, collected_slabs = 0;     // since it was opened
  int64_t read_extents = 0, read_bytes = 0, ios = 0;  // that ended ok; I/Os of all
  int64_t absent = 0, corrupt = 0, io_errors = 0;     // extents
  std::string last_error;                             // of a put, a sync or a collection; empty: none
};

// What verify() found in one slab.
struct SlabVerdict {
  std::string name;  // of the file; a memory store has none
  uint64_t bytes = 0;
  uint32_t blocks = 0;
  uint64_t extents = 0;  // that were read
  uint64_t bad_extents = 0;
  std::string fault;  // empty: clean
};

class VerifySink {
 public:
  virtual ~VerifySink() = default;
  virtual void checked(const SlabVerdict& slab) = 0;
};

// All calls from any thread, unless said otherwise. The destructor ends puts that were accepted (done() is called for each) and
// must find no channel left.
class BlockStore {
 public:
  virtual ~BlockStore() = default;
  // What this process writes and reads; once, before locate(), put() and open_channel(). A slab names its own parts: slabs of
  // other layouts may lie beside. A block whose "kv" or block_tokens differ from this layout's is not found.
  virtual Status open_layout(const ObjectLayout& layout) = 0;
  // Each key on its own: out[i] tells where keys[i] lies, or not. Pins what it finds and marks it as used.
  virtual void locate(std::span<const StoreKey> keys, std::span<Located> out) = 0;
  // Takes back one pin of each that is found; kNone is skipped.
  virtual void unpin(std::span<const Located> blocks) = 0;
  virtual std::unique_ptr<StoreChannel> open_channel() = 0;
  // Whether in_memory() finds all that the store has.
  virtual bool is_memory() const { return false; }
  // Where a unit-major part of a block can be read in place for as long as the block is pinned.
  virtual InMemory in_memory(const Located& block, const StoreKey& key, uint16_t part) { return {}; }
  // Writes a run, later: keys that are there already are left as they are, the others become visible when they are complete.
  // An error means that nothing was taken and done() is not called: busy (too many runs are waiting), unsupported (read-only).
  // No room, or an error of the disk, comes through done(): no key of what failed is visible.
  virtual Status put(PutRun run) = 0;
  // Waits until every put that was accepted has ended. Not from done().
  virtual void flush() = 0;
  // How long the writer has been in one call of the operating system: a disk that hangs never returns. 0: in none.
  virtual double stalled_s() const { return 0; }
  // Waits as flush() does, and for what follows of it (syncs, removals), and ends the writer: the last call. False: it has stalled
  // for `patience_s`; then the store must not be destroyed, for its writer may still return.
  virtual bool close(double patience_s) { return true; }
  // Blocks leave the index; a slab that has no other goes as well, once it is not pinned. A slab of which a part is left comes
  // back whole at the next opening: slabs are immutable.
  virtual Status erase(std::span<const StoreKey> keys) = 0;
  virtual StoreStats stats() const = 0;
  // Reads and checks everything there is. ok: clean; corrupt: damage, which the sink (may be null) was told slab by slab.
  virtual Status verify(VerifySink* sink) = 0;
  // Removes least recently used slabs that are not pinned until at most `bytes` are left; the bytes that went.
  virtual int64_t collect(int64_t bytes) = 0;
};

// What attention reads through: a store's channel here, the prefetch engine where there is one. Used by the stepping thread alone.
// Errors of extents are their results; a Status is a fault of the source itself.
class ExtentSource {
 public:
  virtual ~ExtentSource() = default;
  virtual Status read_now(ReadBatch& batch) = 0;  // reads and waits, before everything else
};

// An ExtentSource straight over a store, with a channel of its own.
class ChannelSource final : public ExtentSource {
 public:
  explicit ChannelSource(BlockStore& store) : channel_(store.open_channel()) {}
  Status read_now(ReadBatch& batch) override;

 private:
  std::unique_ptr<StoreChannel> channel_;
};

}  // namespace fovea
