// FileChannel: one thread's reads of slabs. Batches are sorted by place and cut into I/Os; what arrives is digested while the rest
// is under way.
#pragma once

#include "store/slab_file.h"
#include "store/slab_store.h"

#include <functional>
#include <memory>
#include <vector>

namespace fovea {

// What a channel needs of its store; all of it thread-safe.
struct ChannelHost {
  const SlabIndex* index = nullptr;
  SlabFiles* files = nullptr;
  StoreCounters* counters = nullptr;
  std::function<void(const Located&)> lost;          // its bytes are bad
  std::function<void(const Located&)> slab_is_gone;  // its file is
  bool direct = false;
  bool verify = true;  // false: a switch for measurements alone
};

class FileChannel final : public StoreChannel {
 public:
  static constexpr int kDepth = 64;                     // I/Os under way
  static constexpr size_t kMaxBatches = 64;             // that wait or run
  static constexpr size_t kMaxIoBytes = 1u << 20;       // straight into the caller's memory
  static constexpr size_t kMaxBounceBytes = 64u << 10;  // through ours, which is kDepth times that: 4 MiB
  static constexpr size_t kMaxPieces = 256;             // extents of an I/O

  FileChannel(ChannelHost host, std::unique_ptr<IoEngine> engine);
  ~FileChannel() override;

  Status submit(ReadBatch& batch) override;
  int poll() override;
  Status wait(ReadBatch& batch, double until_s) override;
  void cancel(ReadBatch& batch) override;

 private:
  // A read and where it lies.
  struct Planned {
    uint32_t read;  // index in the batch
    int32_t part;   // of the slab
    uint64_t slab_number, offset;
    SlabIndex::Front front;
  };
  struct Active {
    ReadBatch* batch = nullptr;
    uint64_t order = 0;
    std::vector<Planned> plan;  // by place
    size_t next = 0;            // of the plan: has not begun
    int32_t left = 0;           // reads without a result
  };
  // An I/O: `count` neighbours of a batch's plan.
  struct Io {
    Active* active = nullptr;
    size_t first = 0, count = 0;
    std::shared_ptr<SlabFile> file;
    const Digest128* table = nullptr;
    bool bounced = false;
    uint64_t offset = 0;  // of what is read
    std::vector<iovec> pieces;
    AlignedBuffer bounce;
  };

  int reap(double timeout_s);
  void pump();
  Active* next_active();
  void start(Io& io, Active& active);
  bool can_scatter(const Active& active, const Planned& p) const;
  size_t run_length(const Active& active, size_t first, bool* bounced) const;
  void set_pieces(Io& io);
  void complete(Io& io, int64_t result);
  void fail(Active& active, size_t first, size_t count, const Status& status);
  bool verified(const Io& io, const Planned& p, const std::byte* bytes) const;
  IoResult read_again(const Io& io, const Planned& p);
  // is_lost: its bytes are bad, so that nothing should find it again.
  void end(Active& active, const Planned& p, IoResult result, bool is_lost);
  void release(Active& active);

  ChannelHost host_;
  std::unique_ptr<IoEngine> engine_;
  std::vector<Io> ios_;
  std::vector<uint32_t> free_ios_;
  std::vector<std::unique_ptr<Active>> active_, spare_;
  uint64_t next_order_ = 0;
  int ended_ = 0;  // since the last poll()
};

}  // namespace fovea
