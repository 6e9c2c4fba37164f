#include "kernels/cuda/hash_select/config.h"

#include <algorithm>

namespace fovea::cuda::hash {

namespace {

int64_t padded_blocks(int64_t len, int32_t block_size) {
  const int64_t blocks = (len + block_size - 1) / block_size;
  return (blocks + kChunk - 1) / kChunk * kChunk;
}

}  // namespace

Scratch choose_scratch(const OpsLimits& limits, int64_t budget) {
  Scratch s;
  s.blocks = padded_blocks(limits.max_len, limits.block_size);
  s.rows = 1;
  const int64_t fitting = budget / std::max<int64_t>(1, s.bytes(limits.kv_heads));
  s.rows = static_cast<int32_t>(std::clamp<int64_t>(fitting, 1, std::max(1, limits.max_decode_rows)));
  return s;
}

ScanShape choose_scan(const HashSelectParams& p) {
  ScanShape s;
  s.words = p.codes.codec.bits / 64;
  s.regs = p.codes.codec.n / 32;
  s.lanes = std::min(32, p.block_size / 2);
  s.steps = p.block_size / (2 * s.lanes);
  s.blocks = kScanThreads / s.lanes * scan_blocks_of_lane(s.words);
  const int32_t longest = (p.max_len + p.block_size - 1) / p.block_size;
  s.grid_blocks = std::max(1, (longest + s.blocks - 1) / s.blocks);
  return s;
}

int64_t list_bytes(const HashSelectParams& p) {
  const size_t size = p.codes.codec.asymmetric ? sizeof(uint32_t) : sizeof(uint16_t);
  return padded_blocks(p.max_len, p.block_size) * static_cast<int64_t>(size);
}

std::string ScanShape::describe() const {
  return std::to_string(64 * words) + " bits, " + std::to_string(lanes) + " lanes a block in " + std::to_string(steps) +
         " steps, " + std::to_string(blocks) + " blocks a CTA, " + std::to_string(grid_blocks) + " CTAs a list";
}

}  // namespace fovea::cuda::hash
