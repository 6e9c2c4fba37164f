#include "kernels/cuda/hash_select/config.h"

#include <algorithm>
#include <bit>

namespace fovea::cuda::hash {

Scratch choose_scratch(const OpsLimits& limits, int64_t budget) {
  Scratch s;
  s.blocks = ((limits.max_len + limits.block_size - 1) / limits.block_size + 3) / 4 * 4;
  s.rows = 1;
  const int64_t fitting = budget / std::max<int64_t>(1, s.bytes(limits.kv_heads));
  s.rows = static_cast<int32_t>(std::clamp<int64_t>(fitting, 1, std::max(1, limits.max_decode_rows)));
  return s;
}

Fetch choose_fetch(const ReadSoon& soon, int64_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(soon.data);
  const int64_t skipped = static_cast<int64_t>(-at % 16), there = soon.bytes - skipped;
  const int64_t pieces = std::min(there, bytes) / kFetchPiece;
  if (soon.data == nullptr || pieces <= 0 || !is_plain(soon.type)) return {};
  return {static_cast<const char*>(soon.data) + skipped, there / pieces / 16 * 16, static_cast<uint32_t>(pieces)};
}

int32_t most_lists_apart(const SelectDevice& device, int32_t lists) {
  return std::min(lists, device.multiprocessors / 3);  // two parts and a chooser each
}

SelectShape choose_select(const HashSelectParams& p, const SelectDevice& device) {
  const HashCodec& codec = p.codes.codec;
  SelectShape s;
  s.words = codec.bits / 64;
  s.factors = codec.length_factor && codec.asymmetric;
  s.list_heads = p.share_heads ? p.kv_heads : 1;
  const int32_t tokens = std::min(p.block_size, kTileTokens);
  s.chunk_shift = tokens == 16 ? 3 : 2;
  s.pieces = p.block_size / tokens;
  s.block_shift = std::countr_zero(static_cast<uint32_t>(p.block_size));
  s.queries = p.average_group ? 1 : p.num_heads / p.kv_heads;
  s.products = (s.queries + 3) / 4;
  const int32_t lists = p.rows * (p.share_heads ? 1 : p.kv_heads);
  const int32_t tiles = ((p.max_len + p.block_size - 1) / p.block_size + kTileBlocks - 1) / kTileBlocks;
  // The next kernel's thread blocks begin while lists' last ones choose: where these are few, beside them.
  const int32_t each = device.multiprocessors / lists, beside = (device.multiprocessors - lists) / lists;
  s.parts = std::clamp(each >= kPartsBeside ? beside : each, 1, std::clamp(tiles, 1, kPartsMost));
  s.first_in_halves = s.parts > kPartsInCluster;  // of fewer, many take the place of one that has just chosen, and are late
  s.heads_at = s.list_heads * s.products * ((s.words + 1) / 2) * 256;
  s.ring_at = (s.heads_at + s.list_heads * s.products * 4 * 8 + 127) / 128 * 128;
  s.tile_bytes = kTileBlocks * kTileTokens * (8 * s.words + (s.factors ? 2 : 0));
  // As few as do not take longer: all have as much to do.
  const int32_t of_part = (tiles + s.parts - 1) / s.parts, most = most_scorers(s.words), rounds = (of_part + most - 1) / most;
  s.scorers = ((of_part + rounds - 1) / rounds + 3) / 4 * 4;
  const auto ring_end = [&] { return s.ring_at + s.scorers * kTilesAhead * s.tile_bytes; };
  while (s.scorers > 1 && ring_end() > device.shared_bytes) s.scorers -= s.scorers > 4 ? 4 : 1;
  s.shared_bytes = std::max<int32_t>(ring_end(), kChooserBytes);
  const int64_t ranks = (p.max_len + p.block_size - 1) / p.block_size * int64_t{sizeof(uint32_t)};
  if (s.parts <= (device.clusters ? kPartsInCluster : 1) && s.shared_bytes + ranks <= device.shared_bytes) {
    s.ranks_at = s.shared_bytes;
    s.shared_bytes += static_cast<int32_t>(ranks);
  }
  s.choosers_apart = s.ranks_at == 0 && s.parts > 1 && lists * (s.parts + 1) <= device.multiprocessors;
  return s;
}

std::string SelectShape::describe() const {
  return std::to_string(64 * words) + " bits, " + std::to_string(2 << chunk_shift) + " tokens of 16 blocks a warp, " +
         std::to_string(parts) + " CTAs of " + std::to_string(scorers) + " + " + std::to_string(kEncoders) + " warps a list, " +
         std::to_string(shared_bytes) + " bytes, ranks in " + (ranks_at > 0 ? "shared memory" : "scratch") +
         (choosers_apart ? ", choosers apart" : "");
}

}  // namespace fovea::cuda::hash
