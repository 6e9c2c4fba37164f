// Which entries a row reads.
#pragma once

#include "kernels/cuda/kv_write/cache_key.cuh"
#include "kernels/cuda/mla/args.h"
#include "kernels/cuda/segments.cuh"

namespace fovea::cuda::mla {

// The keys of one row in the order in which they are walked: key i is token start + i of the sequence, or token
// i % tokens_per_unit of unit units[i / tokens_per_unit]; those at `end` and beyond are not seen.
struct RowKeys {
  int32_t seq, end;
  const int32_t* units;  // null: consecutive tokens
  int32_t start, keys, tokens_per_unit;

  __device__ RowKeys(const AttendArgs& a, int32_t row) {
    const Selection& s = a.selection;
    seq = segment_of(a.p.q_indptr, a.p.num_seqs, row);
    end = max(0, a.p.seq_len[seq] - (a.p.q_indptr[seq + 1] - row) + 1);
    units = nullptr;
    start = 0;
    keys = end;
    tokens_per_unit = s.tokens_per_unit;
    if (s.kind == Selection::Kind::all || end == 0) return;
    const int64_t list = static_cast<int64_t>(s.row_indptr == nullptr ? row : segment_of(s.row_indptr, s.rows, row)) * s.groups;
    if (s.kind == Selection::Kind::list) {
      units = s.units + list * s.capacity;
      keys = s.counts[list] * tokens_per_unit;
      return;
    }
    const int64_t first = static_cast<int64_t>(s.begins[list]) * tokens_per_unit;
    const int64_t last = static_cast<int64_t>(s.ends[list]) * tokens_per_unit;
    end = static_cast<int32_t>(min(static_cast<int64_t>(end), last));
    start = static_cast<int32_t>(min(first, static_cast<int64_t>(end)));
    keys = end - start;
  }

  // Element where the entry of key i begins; -1: the row does not see it.
  __device__ int64_t place(const KvView& kv, int32_t i) const {
    if (i >= keys) return -1;
    const int32_t unit = i / tokens_per_unit;
    const int32_t token = units == nullptr ? start + i : units[unit] * tokens_per_unit + (i - unit * tokens_per_unit);
    if (token >= end) return -1;
    const int64_t slot = kv.table.slots[seq * kv.table.seq_stride + kv_writing::block_of(token, kv.block_size)];
    return slot * kv.block_stride + static_cast<int64_t>(kv_writing::offset_in_block(token, kv.block_size)) * kv.head_dim;
  }
};

}  // namespace fovea::cuda::mla
