#include "store/slab_io.h"

#include "base/check.h"

#include <algorithm>
#include <cstring>

namespace fovea {
namespace {

// Collects sequential bytes and writes them in large pieces.
class SequentialWriter {
 public:
  SequentialWriter(const WriteAt& write, AlignedBuffer& buffer, uint64_t offset)
      : write_(write), buffer_(buffer), offset_(offset) {}

  // Room for the next n bytes, of which those from `used` on are zero; valid until the next call.
  Result<std::byte*> next(size_t n, size_t used) {
    if (fill_ + n > buffer_.size()) FOVEA_TRY(flush());
    if (n > buffer_.size()) buffer_ = AlignedBuffer(n);
    std::byte* at = buffer_.data() + fill_;
    std::memset(at + used, 0, n - used);
    fill_ += n;
    return at;
  }
  Status pad_to(uint64_t offset) {
    FOVEA_CHECK(offset >= offset_ + fill_);
    FOVEA_TRY(next(offset - offset_ - fill_, 0));
    return flush();
  }

 private:
  Status flush() {
    if (fill_ > 0) FOVEA_TRY(write_(offset_, buffer_.span().first(fill_)));
    offset_ += fill_;
    fill_ = 0;
    return {};
  }
  const WriteAt& write_;
  AlignedBuffer& buffer_;
  uint64_t offset_;
  size_t fill_ = 0;
};

// fn(unit, at) for every extent of a part, in the order of the body.
template <typename Fn>
Status each_extent(const SlabFront& front, size_t part, Fn&& fn) {
  const PartSpec& spec = front.parts[part].spec;
  if (spec.block_major) {
    for (uint32_t at = 0; at < front.blocks(); ++at) {
      for (uint32_t unit = 0; unit < spec.units; ++unit) FOVEA_TRY(fn(unit, at));
    }
  } else {
    for (uint32_t unit = 0; unit < spec.units; ++unit) {
      for (uint32_t at = 0; at < front.blocks(); ++at) FOVEA_TRY(fn(unit, at));
    }
  }
  return {};
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

uint64_t body_end(const SlabFront& front, size_t part) {
  return part + 1 < front.parts.size() ? front.parts[part + 1].body_offset : front.file_bytes;
}

// Reads a body from front to end in pieces of whole extents.
Status verify_body(const SlabFront& front, size_t part, const std::vector<Digest128>& table, const ReadAt& read, SlabVerdict* out) {
  const PartSpec& spec = front.parts[part].spec;
  const uint64_t begin = front.parts[part].body_offset, end = body_end(front, part);
  const uint32_t stride = unit_stride(spec);
  AlignedBuffer buffer(std::max<size_t>(1u << 20, stride));
  std::span<std::byte> piece;
  uint64_t piece_at = begin;
  const auto advance = [&]() -> Status {
    piece_at += piece.size();
    size_t n = std::min<uint64_t>(buffer.size() / stride * stride, end - piece_at);
    piece = buffer.span().first(n);
    return read(piece_at, piece);
  };
  FOVEA_TRY(each_extent(front, part, [&](uint32_t unit, uint32_t at) -> Status {
    const uint64_t offset = front.extent(part, unit, at);
    if (offset + stride > piece_at + piece.size()) FOVEA_TRY(advance());
    const std::span<const std::byte> extent = piece.subspan(offset - piece_at, stride);
    const Digest128 digest = extent_digest(front.keys[at], part, unit, extent.first(spec.unit_bytes));
    ++out->extents;
    if (digest != table[size_t{unit} * front.blocks() + at] || !all_zero(extent.subspan(spec.unit_bytes))) ++out->bad_extents;
    return {};
  }));
  // What is left of the last piece, or lies behind it, is padding.
  const uint64_t used = begin + front.body_bytes(part);
  if (used > piece_at + piece.size()) return Status::internal("slab: a body was not read to its end");
  if (!all_zero(piece.subspan(used - piece_at))) return Status::corrupt("padding behind part " + spec.name + " is not zero");
  if (piece_at + piece.size() < end) {
    FOVEA_TRY(advance());
    if (!all_zero(piece)) return Status::corrupt("padding behind part " + spec.name + " is not zero");
  }
  return {};
}

}  // namespace

namespace {

// place(unit, at) gives memory for an extent of part p, the last one's until then.
template <typename Place>
Status write_body(const PutRun& run, uint32_t first, const SlabFront& front, size_t p, std::vector<std::byte>* table,
                  Place&& place) {
  const PartSpec& spec = front.parts[p].spec;
  table->resize(round_up(front.table_bytes(p), kSlabPage));
  return each_extent(front, p, [&](uint32_t unit, uint32_t at) -> Status {
    FOVEA_ASSIGN(std::byte* const to, place(unit, at));
    run.bytes->copy(first + at, static_cast<uint16_t>(p), unit, to);
    const Digest128 digest = extent_digest(front.keys[at], p, unit, {to, spec.unit_bytes});
    std::memcpy(table->data() + front.digest_at(p, unit, at), digest.data(), digest.size());
    return {};
  });
}

Status write_front(const PutRun& run, const std::vector<std::vector<std::byte>>& tables, const WriteAt& write, SlabFront* front) {
  if (!run.bytes->still_there()) return Status::busy("store: the blocks were taken back before they were written");
  for (size_t p = 0; p < tables.size(); ++p) {
    front->parts[p].table_digest = plain_digest(std::span(tables[p]).first(front->table_bytes(p)));
    FOVEA_TRY(write(front->parts[p].table_offset, tables[p]));
  }
  return write(0, encode_front(*front));
}

}  // namespace

Status write_slab(const PutRun& run, uint32_t first, const WriteAt& write, AlignedBuffer& buffer, SlabFront* front) {
  if (buffer.size() == 0) buffer = AlignedBuffer(kSlabBufferBytes);
  std::vector<std::vector<std::byte>> tables(front->parts.size());
  for (size_t p = 0; p < front->parts.size(); ++p) {
    const PartSpec& spec = front->parts[p].spec;
    SequentialWriter body(write, buffer, front->parts[p].body_offset);
    FOVEA_TRY(write_body(run, first, *front, p, &tables[p],
                         [&](uint32_t, uint32_t) { return body.next(unit_stride(spec), spec.unit_bytes); }));
    FOVEA_TRY(body.pad_to(body_end(*front, p)));
  }
  return write_front(run, tables, write, front);
}

Status write_slab(const PutRun& run, uint32_t first, std::byte* image, SlabFront* front) {
  std::vector<std::vector<std::byte>> tables(front->parts.size());
  for (size_t p = 0; p < front->parts.size(); ++p) {
    FOVEA_TRY(write_body(run, first, *front, p, &tables[p],
                         [&](uint32_t unit, uint32_t at) -> Result<std::byte*> { return image + front->extent(p, unit, at); }));
  }
  const WriteAt write = [&](uint64_t offset, std::span<const std::byte> bytes) -> Status {
    std::memcpy(image + offset, bytes.data(), bytes.size());
    return {};
  };
  return write_front(run, tables, write, front);
}

Result<std::vector<Digest128>> read_table(const SlabFront& front, size_t part, const ReadAt& read) {
  const size_t bytes = front.table_bytes(part);
  AlignedBuffer buffer(bytes);
  FOVEA_TRY(read(front.parts[part].table_offset, buffer.span()));
  const std::span<const std::byte> table = buffer.span().first(bytes);
  if (plain_digest(table) != front.parts[part].table_digest || !all_zero(buffer.span().subspan(bytes))) {
    return Status::corrupt("digest table of part " + front.parts[part].spec.name);
  }
  std::vector<Digest128> out(bytes / sizeof(Digest128));
  std::memcpy(out.data(), table.data(), bytes);
  return out;
}

SlabVerdict verify_slab(const SlabFront& front, const ReadAt& read) {
  SlabVerdict out{.name = {}, .bytes = front.file_bytes, .blocks = front.blocks(), .fault = {}};
  for (size_t p = 0; p < front.parts.size(); ++p) {
    const auto table = read_table(front, p, read);
    const Status status = table.ok() ? verify_body(front, p, *table, read, &out) : table.status();
    if (!status.ok() && out.fault.empty()) out.fault = status.message();
  }
  if (out.bad_extents > 0 && out.fault.empty()) {
    out.fault = std::to_string(out.bad_extents) + " of " + std::to_string(out.extents) + " extents are not what was written";
  }
  return out;
}

}  // namespace fovea
