// What a decode kernel is launched with.
#pragma once

#include <fovea/kernels/attention.h>

#include <cstdint>

#include "kernels/cuda/decode/config.h"

namespace fovea::cuda::decode {

struct Args {
  AttentionParams p;        // p.selection is not followed: its copy is below
  Selection selection;      // Kind::all where there is none
  int32_t unit_shift = -1;  // log2 of selection.tokens_per_unit where that is a whole number
  int32_t first_row = 0;    // of this launch
  int32_t rows = 0;
  int32_t lists = 1;  // of a row, see Shape
  int32_t heads_per_list = 1;
  int32_t tile_heads = 8;
  int32_t head_tiles = 1;
  SplitRule rule;
  // Partial results of a (row of this launch, head) that has several splits: unnormalised sums, and (largest
  // score, sum) in log2 units.
  float* partial_out = nullptr;       // [rows, H, rule.max_splits, d]
  float2* partial_softmax = nullptr;  // [rows, H, rule.max_splits]
  int32_t* done = nullptr;            // [rows, lists, head_tiles] splits finished; 0 between launches
  // Path::split: the same for few rows, every byte kEmptyByte between launches.
  float* split_out = nullptr;       // [rows, H, rule.max_splits, d]
  float2* split_softmax = nullptr;  // [rows, H, rule.max_splits]
  int shares = 1;                   // splits of a head are added in so many sums of every so many, see merge_splits()
  // Where splits are results of their own (PartitionedAttentionParams): [T, H, rule.max_splits] each, tmp_out with d behind.
  float *exp_sums = nullptr, *max_logits = nullptr, *tmp_out = nullptr;
};

}  // namespace fovea::cuda::decode
