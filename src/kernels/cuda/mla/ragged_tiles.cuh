// What the kernels of ragged attention share.
#pragma once

#include <fovea/kernels/attention.h>

#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda::mla {

// Keys, values and queries rounded to bf16: sizes that are multiples of 8, up to 256.
bool suits_tensor_cores(int k_dim, int shared_dim, int v_dim);
cudaError_t prepare_ragged_bf16();  // once, on every device
void ragged_bf16(const RaggedAttentionParams& p, cudaStream_t stream);

// The rows of a thread block: some of sequence seq. Sequences are cut into tiles of so many rows, counted through all of them; behind
// the last one seq is num_seqs.
struct RowTile {
  int seq = 0, first = 0, end = 0;

  __device__ RowTile(const RaggedAttentionParams& p, int tile, int tile_rows) {
    for (; seq < p.num_seqs; ++seq) {
      const int begin = p.q_indptr[seq], rows = p.q_indptr[seq + 1] - begin, tiles = ceil_div(rows, tile_rows);
      if (tile < tiles) {
        first = begin + tile * tile_rows;
        end = min(first + tile_rows, begin + rows);
        return;
      }
      tile -= tiles;
    }
  }
};

}  // namespace fovea::cuda::mla
