#include "model/placed_weights.h"

#include "model/rope.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace fovea {
namespace {

constexpr size_t kAlign = 256;
constexpr size_t kChunk = size_t{64} << 20;

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
      FOVEA_TRY(send_piece(to_ + done, static_cast<const std::byte*>(from) + done, std::min(kChunk, bytes - done)));
    }
    to_ += aligned(bytes);
    return at;
  }

 private:
  struct Piece {
    Buffer pinned;
    std::unique_ptr<Event> done;
    bool pending = false;
  };

  Status send_piece(std::byte* to, const std::byte* from, size_t bytes) {
    Piece& p = pieces_[next_];
    next_ = (next_ + 1) % pieces_.size();
    if (p.pending) FOVEA_TRY(p.done->wait());
    std::memcpy(p.pinned.data(), from, bytes);
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

// Views of the host's memory become views of the copy.
Status send_weights(const ModelConfig& config, Sender& sender, PlacedWeights* out) {
  FOVEA_TRY(for_each_weight(config, out, [&](const ListedWeight& w) -> Status {
    if (!w.matrix) {
      FOVEA_ASSIGN(const std::byte* at, sender.send(w.vector->data(), w.bytes()));
      *w.vector = {reinterpret_cast<const float*>(at), w.vector->size()};
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

Status copy_to(Device& device, Stream& stream, const ModelConfig& config, PlacedWeights* out) {
  size_t bytes = aligned(out->host_inv_freq.size() * sizeof(float));
  FOVEA_TRY(for_each_weight(config, out, [&](const ListedWeight& w) {
    const size_t elements = w.matrix ? w.matrix->data_bytes() : w.bytes();
    bytes += aligned(elements) + aligned(w.bytes() - elements);  // scales that lie apart
    return Status();
  }));
  FOVEA_ASSIGN(out->memory, device.allocate(bytes, "model weights"));
  FOVEA_ASSIGN(const auto sender, Sender::make(out->memory.as<std::byte>(), device, stream));
  const Status sent = send_weights(config, *sender, out);
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

Result<std::unique_ptr<PlacedWeights>> copy_weights(const ModelWeights& weights, const ModelConfig& config, Device& device,
                                                    Stream& stream) {
  std::unique_ptr<PlacedWeights> out = place_weights(weights, config);
  out->owner.reset();
  FOVEA_TRY(copy_to(device, stream, config, out.get()));
  return out;
}

}  // namespace fovea
