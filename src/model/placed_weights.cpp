#include "model/placed_weights.h"

#include "base/check.h"
#include "kernels/cpu/quant/interleave.h"
#include "kernels/cpu/quant/unpack.h"
#include "model/rope.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

namespace fovea {
namespace {

constexpr size_t kAlign = 256;
constexpr size_t kChunk = size_t{64} << 20;
constexpr size_t kPiece = size_t{2} << 20;  // that a worker copies at a time
constexpr int64_t kPieceRows = 64 * cpu::kInterleavedRows;

struct Copy {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
  WeightView to_interleave;  // or these rows
};

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Fills memory of the device piece by piece through pinned memory, two pieces in turn: reading the file and the bus work at
// the same time.
class Sender {
 public:
  static Result<std::unique_ptr<Sender>> make(std::byte* to, Device& device, Stream& stream) {
    auto out = std::make_unique<Sender>(to, device, stream);
    for (Piece& p : out->pieces_) {
      FOVEA_ASSIGN(p.pinned, device.allocate_pinned(kChunk, "model weights in transit"));
      p.done = device.make_event();
    }
    return out;
  }
  Sender(std::byte* to, Device& device, Stream& stream) : to_(to), device_(device), stream_(stream) {}

  // Where the bytes will lie once the stream has come here.
  Result<const std::byte*> send(const void* from, size_t bytes) {
    const std::byte* at = to_;
    for (size_t done = 0; done < bytes; done += kChunk) {
      const size_t size = std::min(kChunk, bytes - done);
      FOVEA_TRY(send_piece(to_ + done, size,
                           [&](std::byte* pinned) { std::memcpy(pinned, static_cast<const std::byte*>(from) + done, size); }));
    }
    to_ += aligned(bytes);
    return at;
  }
  // The same of a matrix as bf16 or f32.
  Result<const std::byte*> send_as(DType type, const WeightView& w) {
    const std::byte* at = to_;
    const size_t row_bytes = static_cast<size_t>(w.cols) * dtype_bytes(type);
    const auto piece = static_cast<int64_t>(kChunk / row_bytes);
    for (int64_t row = 0; row < w.rows; row += piece) {
      const int64_t rows = std::min(piece, w.rows - row);
      FOVEA_TRY(send_piece(to_ + static_cast<size_t>(row) * row_bytes, static_cast<size_t>(rows) * row_bytes,
                           [&](std::byte* pinned) { unpack(w, row, rows, type, pinned); }));
    }
    to_ += aligned(static_cast<size_t>(w.rows) * row_bytes);
    return at;
  }

 private:
  struct Piece {
    Buffer pinned;
    std::unique_ptr<Event> done;
    bool pending = false;
  };

  static void unpack(const WeightView& w, int64_t first, int64_t rows, DType type, std::byte* out) {
    if (type == DType::bf16) return cpu::unpack_bf16(w, first, rows, reinterpret_cast<uint16_t*>(out));
    for (int64_t r = 0; r < rows; ++r) cpu::unpack_f32(w, first + r, 0, w.cols, reinterpret_cast<float*>(out) + r * w.cols);
  }

  template <typename Fill>
  Status send_piece(std::byte* to, size_t bytes, const Fill& fill) {
    Piece& p = pieces_[next_];
    next_ = (next_ + 1) % pieces_.size();
    if (p.pending) FOVEA_TRY(p.done->wait());
    fill(p.pinned.as<std::byte>());
    device_.copy(to, p.pinned.data(), bytes, CopyKind::to_device, stream_);
    p.done->record(stream_);
    p.pending = true;
    return Status();
  }

  std::byte* to_;
  Device& device_;
  Stream& stream_;
  std::array<Piece, 2> pieces_;
  size_t next_ = 0;
};

// What a GPU holds a matrix as where that is not what the host has. Its experts read elements that stand for themselves, and its
// tensor cores W_UK and W_UV as bf16, which is what quantised ones become; in f32 numerics, which round no weight, f32.
std::optional<DType> becomes(const ModelConfig& config, const ModelWeights& weights, const ListedWeight& w, Numerics numerics) {
  if (!config.deepseek || !w.matrix) return std::nullopt;
  if (numerics == Numerics::f32) return is_plain(w.matrix->type) ? std::nullopt : std::optional(DType::f32);
  const bool was_widened = weights.widened > 0 && w.role == WeightRole::absorbed && w.matrix->type == WeightType::f32;
  return !is_plain(w.matrix->type) || was_widened ? std::optional(DType::bf16) : std::nullopt;
}

// Views of the host's memory become views of the copy.
Status send_weights(const ModelConfig& config, Numerics numerics, Sender& sender, PlacedWeights* out) {
  FOVEA_TRY(for_each_weight(config, out, [&](const ListedWeight& w) -> Status {
    if (!w.matrix) {
      FOVEA_ASSIGN(const std::byte* at, sender.send(w.vector->data(), w.bytes()));
      *w.vector = {reinterpret_cast<const float*>(at), w.vector->size()};
      return Status();
    }
    if (const auto type = becomes(config, *out, w, numerics)) {
      FOVEA_ASSIGN(const std::byte* at, sender.send_as(*type, *w.matrix));
      *w.matrix = weight_view(at, *type, w.rows, w.cols);
      return Status();
    }
    FOVEA_ASSIGN(w.matrix->data, sender.send(w.matrix->data, w.matrix->data_bytes()));
    if (w.matrix->scales) {
      FOVEA_ASSIGN(w.matrix->scales, sender.send(w.matrix->scales, w.bytes() - w.matrix->data_bytes()));
    }
    return Status();
  }));
  FOVEA_ASSIGN(const std::byte* at, sender.send(out->host_inv_freq.data(), out->host_inv_freq.size() * sizeof(float)));
  out->inv_freq = reinterpret_cast<const float*>(at);
  return Status();
}

// Bytes of a copy of every weight, of one on a GPU in the numerics it is for; data and scales begin at multiples of kAlign.
size_t copy_bytes(const ModelConfig& config, const ModelWeights& weights, std::optional<Numerics> on_gpu) {
  size_t bytes = 0;
  const Status all = for_each_weight(config, weights, [&](const ListedWeight& w) {
    const auto type = on_gpu ? becomes(config, weights, w, *on_gpu) : std::nullopt;
    if (type) {
      bytes += aligned(static_cast<size_t>(w.rows * w.cols) * dtype_bytes(*type));
      return Status();
    }
    const size_t elements = w.matrix ? w.matrix->data_bytes() : w.bytes();
    bytes += aligned(elements) + aligned(w.bytes() - elements);  // scales that lie apart
    return Status();
  });
  FOVEA_CHECK(all.ok());
  return bytes;
}

Status copy_to(Device& device, Stream& stream, const ModelConfig& config, Numerics numerics, PlacedWeights* out) {
  const size_t bytes = copy_bytes(config, *out, numerics) + aligned(out->host_inv_freq.size() * sizeof(float));
  FOVEA_ASSIGN(out->memory, device.allocate(bytes, "model weights"));
  FOVEA_ASSIGN(const auto sender, Sender::make(out->memory.as<std::byte>(), device, stream));
  const Status sent = send_weights(config, numerics, *sender, out);
  FOVEA_TRY(stream.synchronize());  // the transit memory goes
  return sent;
}

}  // namespace

std::unique_ptr<PlacedWeights> place_weights(const ModelWeights& weights, const ModelConfig& config) {
  auto out = std::make_unique<PlacedWeights>();
  static_cast<ModelWeights&>(*out) = weights;
  out->host_inv_freq = rope_inv_freq(config.rope, config.rope_dim());
  out->inv_freq = out->host_inv_freq.data();
  return out;
}

std::unique_ptr<PlacedWeights> gather_weights(const ModelWeights& weights, const ModelConfig& config, ThreadPool& pool) {
  std::unique_ptr<PlacedWeights> out = place_weights(weights, config);
  try {
    out->huge_pages.emplace(copy_bytes(config, weights, /*on_gpu=*/std::nullopt));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  std::vector<Copy> copies;
  std::byte* to = out->huge_pages->data();
  const auto copied_to = [&](const void* from, size_t bytes) {
    std::byte* at = to;
    for (size_t done = 0; done < bytes; done += kPiece)
      copies.push_back({at + done, static_cast<const std::byte*>(from) + done, std::min(kPiece, bytes - done), {}});
    to += aligned(bytes);
    return at;
  };
  const auto interleaved_to = [&](WeightView& m) {
    std::byte* at = to;
    for (int64_t row = 0; row < m.rows; row += kPieceRows)
      copies.push_back({at + row * m.row_bytes(), nullptr, 0, m.some_rows(row, std::min(kPieceRows, m.rows - row))});
    to += aligned(m.data_bytes());
    m.interleaved = true;
    return at;
  };
  const Status all = for_each_weight(config, out.get(), [&](const ListedWeight& w) {
    if (!w.matrix) {
      *w.vector = {reinterpret_cast<const float*>(copied_to(w.vector->data(), w.bytes())), w.vector->size()};
      return Status();
    }
    WeightView& m = *w.matrix;
    m.data = cpu::gains_interleaved(m, cpu::cpu_features()) ? interleaved_to(m) : copied_to(m.data, m.data_bytes());
    if (m.scales) m.scales = copied_to(m.scales, w.bytes() - m.data_bytes());
    return Status();
  });
  FOVEA_CHECK(all.ok());
  pool.parallel_for(static_cast<int64_t>(copies.size()), [&](int64_t i, int) {
    const Copy& c = copies[static_cast<size_t>(i)];
    if (c.from) {
      std::memcpy(c.to, c.from, c.bytes);
    } else {
      cpu::interleave(c.to_interleave, reinterpret_cast<uint8_t*>(c.to));
    }
  });
  out->owner.reset();
  return out;
}

Result<std::unique_ptr<PlacedWeights>> copy_weights(const ModelWeights& weights, const ModelConfig& config, Numerics numerics,
                                                    Device& device, Stream& stream) {
  std::unique_ptr<PlacedWeights> out = place_weights(weights, config);
  out->owner.reset();
  FOVEA_TRY(copy_to(device, stream, config, numerics, out.get()));
  return out;
}

}  // namespace fovea
