#include "kv/column_extents.h"

#include "base/check.h"
#include "kv/device_extent_cache.h"
#include "kv/extent_cache.h"

#include <cstring>

namespace fovea {

ExtentBuffer::ExtentBuffer(const ObjectLayout& layout, int32_t blocks, size_t first_part) : blocks_(blocks) {
  for (const PartSpec& part : layout.parts) {
    starts_.push_back(bytes_);
    strides_.push_back(unit_stride(part));
    if (starts_.size() > first_part) bytes_ += (int64_t{part.units} * blocks * strides_.back() + 4095) / 4096 * 4096;
  }
}

ColumnExtents::ColumnExtents(const KvCache& cache) : cache_(cache) {
  const KvCacheConfig& c = cache.config();
  FOVEA_CHECK(c.layout == KvLayout::hnd);
  layout_.block_tokens = static_cast<uint32_t>(c.block_size);
  pieces_ = c.latent || c.joined ? std::vector{PlaneIdx{0}} : std::vector{KvCache::kK, KvCache::kV};
  int64_t bytes = 0;
  for (PlaneIdx p : pieces_) bytes += cache.plane(p).head_bytes();
  layout_.parts.push_back({"kv", static_cast<uint32_t>(c.num_layers * c.kv_heads), static_cast<uint32_t>(bytes), false});
  planes_.push_back(pieces_[0]);
  for (auto p = static_cast<int32_t>(pieces_.size()); p < cache.num_planes(); ++p) {
    const Plane& plane = cache.plane(PlaneIdx{p});
    layout_.parts.push_back({plane.spec().name, 1, static_cast<uint32_t>(plane.block_bytes() * plane.num_layers()), true});
    planes_.push_back(PlaneIdx{p});
  }
  for (const PartSpec& part : layout_.parts) block_bytes_ += int64_t{part.units} * part.unit_bytes;
}

SlotId ColumnExtents::column_of(BlockId block) const {
  if (!cache_.has_columns()) return SlotId{block.value};
  if (cache_.device_extents()) return cache_.device_extents()->column_of(block);
  const int32_t column = cache_.extents()->tables().slot_of(LayerIdx{0}, 0, block);
  FOVEA_CHECK(column >= 0);
  return SlotId{column};
}

void ColumnExtents::copy(BlockId block, SlotId column, size_t part, uint32_t unit, std::byte* to) const {
  if (part == 0) {
    const auto heads = static_cast<uint32_t>(cache_.config().kv_heads);
    const LayerIdx layer{static_cast<int32_t>(unit / heads)};
    for (PlaneIdx p : pieces_) {
      const Plane& plane = cache_.plane(p);
      std::memcpy(to, plane.block(layer, BlockId{column.value}) + unit % heads * plane.head_bytes(),
                  static_cast<size_t>(plane.head_bytes()));
      to += plane.head_bytes();
    }
    return;
  }
  const Plane& plane = cache_.plane(planes_[part]);
  for (int32_t l = 0; l < plane.num_layers(); ++l, to += plane.block_bytes()) {
    std::memcpy(to, plane.block(LayerIdx{l}, block), static_cast<size_t>(plane.block_bytes()));
  }
}

void ColumnExtents::add_copies(size_t part, std::span<const BlockId> blocks, std::byte* buffer, const ExtentBuffer& where,
                               int32_t first, bool load, std::vector<CopyExtent>* out) const {
  const auto add = [&](std::byte* in_plane, size_t plane_stride, std::byte* in_buffer, size_t buffer_stride, int64_t bytes,
                       size_t rows) {
    CopyExtent e{.to = in_buffer,
                 .from = in_plane,
                 .bytes = static_cast<size_t>(bytes),
                 .rows = rows,
                 .to_stride = buffer_stride,
                 .from_stride = plane_stride};
    if (load)
      e = {.to = in_plane,
           .from = in_buffer,
           .bytes = e.bytes,
           .rows = rows,
           .to_stride = plane_stride,
           .from_stride = buffer_stride};
    out->push_back(e);
  };
  const auto at = [&](uint32_t unit, size_t i) { return buffer + where.offset(part, unit, first + static_cast<int32_t>(i)); };
  if (part > 0) {
    const Plane& plane = cache_.plane(planes_[part]);
    for (size_t i = 0; i < blocks.size(); ++i) {
      add(plane.block(LayerIdx{0}, blocks[i]), static_cast<size_t>(plane.layer_stride()), at(0, i),
          static_cast<size_t>(plane.block_bytes()), plane.block_bytes(), static_cast<size_t>(plane.num_layers()));
    }
    return;
  }
  const PartSpec& kv = layout_.parts[0];
  const auto heads = static_cast<uint32_t>(cache_.config().kv_heads);
  for (size_t i = 0, run = 0; i < blocks.size(); i += run) {
    const BlockId column{column_of(blocks[i]).value};
    for (run = 1; i + run < blocks.size() && column_of(blocks[i + run]).value == column.value + static_cast<int32_t>(run);) ++run;
    for (uint32_t u = 0; u < kv.units; ++u) {
      int64_t piece = 0;
      for (PlaneIdx p : pieces_) {
        const Plane& plane = cache_.plane(p);
        std::byte* head = plane.block(LayerIdx{static_cast<int32_t>(u / heads)}, column) + u % heads * plane.head_bytes();
        add(head, static_cast<size_t>(plane.block_bytes()), at(u, i) + piece, unit_stride(kv), plane.head_bytes(), run);
        piece += plane.head_bytes();
      }
    }
  }
}

}  // namespace fovea
