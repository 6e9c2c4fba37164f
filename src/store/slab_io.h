// Writing and checking a whole slab, wherever its bytes lie: in a file or in memory.
#pragma once

#include "store/aligned_buffer.h"
#include "store/block_store.h"
#include "store/slab.h"

#include <functional>

namespace fovea {

using WriteAt = std::function<Status(uint64_t offset, std::span<const std::byte> bytes)>;
using ReadAt = std::function<Status(uint64_t offset, std::span<std::byte> to)>;

constexpr size_t kSlabBufferBytes = 8u << 20;  // of writes; an extent that is larger makes its own

// Lays out blocks [first, first + front->blocks()) of a run: bodies, digest tables, the front last, so that a file without its end
// has no valid front. Sequential writes of up to 8 MiB. Sets the digests in `front`, which has been placed.
Status write_slab(const PutRun& run, uint32_t first, const WriteAt& write, AlignedBuffer& buffer, SlabFront* front);
// The same straight to [front->file_bytes] of memory, which is zero.
Status write_slab(const PutRun& run, uint32_t first, std::byte* image, SlabFront* front);

// Reads tables, bodies and all padding. A fault is named in the verdict (its name is left to the caller).
SlabVerdict verify_slab(const SlabFront& front, const ReadAt& read);

// A digest table, checked: [units][blocks] of part `part`.
Result<std::vector<Digest128>> read_table(const SlabFront& front, size_t part, const ReadAt& read);

}  // namespace fovea
