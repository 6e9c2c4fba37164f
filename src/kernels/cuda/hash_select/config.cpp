#include "kernels/cuda/hash_select/config.h"

#include <algorithm>

namespace fovea::cuda::hash {

Scratch choose_scratch(const OpsLimits& limits, int64_t budget) {
  Scratch s;
  s.blocks = (limits.max_len + limits.block_size - 1) / limits.block_size;
  s.rows = 1;
  const int64_t fitting = budget / std::max<int64_t>(1, s.bytes(limits.kv_heads));
  s.rows = static_cast<int32_t>(std::clamp<int64_t>(fitting, 1, std::max(1, limits.max_decode_rows)));
  return s;
}

int64_t list_bytes(int64_t max_len, int32_t block_size) {
  return (max_len + block_size - 1) / block_size * static_cast<int64_t>(sizeof(uint32_t));
}

bool fits_cluster(int64_t list_bytes, const SelectDevice& device) { return list_bytes <= device.shared_bytes / 2; }

SelectShape shape_select(const HashSelectParams& p, const SelectDevice& device, int32_t parts, int32_t threads, bool cluster) {
  const HashCodec& codec = p.codes.codec;
  SelectShape s;
  s.words = codec.bits / 64;
  s.factors = codec.length_factor && codec.asymmetric;
  s.list_heads = p.share_heads ? p.kv_heads : 1;
  const int32_t tokens = std::min(p.block_size, kTileTokens);
  s.chunk_shift = tokens == 16 ? 3 : 2;
  s.pieces = p.block_size / tokens;
  s.parts = parts;
  s.threads = threads;
  s.queries = p.average_group ? 1 : p.num_heads / p.kv_heads;
  s.products = (s.queries + 3) / 4;
  s.heads_at = s.list_heads * s.products * s.words * 256;
  s.ring_at = (s.heads_at + s.list_heads * s.products * 4 * 8 + 127) / 128 * 128;
  s.tile_bytes = kTileBlocks * kTileTokens * (8 * s.words + (s.factors ? 2 : 0));
  const int64_t ranks = (list_bytes(p.max_len, p.block_size) + 15) / 16 * 16;
  s.cluster = cluster && fits_cluster(ranks, device);
  const auto ring_end = [&] { return s.ring_at + s.threads / 32 * kTilesAhead * s.tile_bytes; };
  while (s.threads > 32 && ring_end() + (s.cluster ? ranks : 0) > device.shared_bytes) s.threads /= 2;
  s.shared_bytes = std::max<int32_t>(ring_end(), kChooserBytes);
  if (s.cluster) {
    s.ranks_at = s.shared_bytes;
    s.shared_bytes += static_cast<int32_t>(ranks);
  } else if (kChooserBytes + ranks <= device.shared_bytes) {
    s.ranks_at = kChooserBytes;
    s.shared_bytes = std::max<int32_t>(s.shared_bytes, kChooserBytes + static_cast<int32_t>(ranks));
  }
  return s;
}

SelectShape choose_select(const HashSelectParams& p, const SelectDevice& device) {
  const int32_t lists = p.rows * (p.share_heads ? 1 : p.kv_heads);
  int32_t parts = device.clusters && lists <= device.wide_clusters ? kClusterWide : kClusterMost;
  while (parts > 1 && parts * lists > device.multiprocessors) parts /= 2;
  return shape_select(p, device, parts, kSelectThreads, device.clusters);
}

std::string SelectShape::describe() const {
  return std::to_string(64 * words) + " bits, " + std::to_string(2 << chunk_shift) + " tokens of 16 blocks a warp, " +
         std::to_string(parts) + (cluster ? " CTAs in a cluster" : " CTAs") + " of " + std::to_string(threads) + " a list, " +
         std::to_string(shared_bytes) + " bytes";
}

}  // namespace fovea::cuda::hash
