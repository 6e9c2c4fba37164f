#include "model/placed_weights.h"

#include "base/check.h"
#include "model/rope.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace fovea {
namespace {

constexpr size_t kAlign = 256;
constexpr size_t kChunk = size_t{64} << 20;

// Hands out room in the copy, or the original where there is none to make. Walked twice: first to learn the size.
class Placer {
 public:
  Placer(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  Status allocate(PlacedWeights* out) {
    FOVEA_ASSIGN(out->memory, device_.allocate(used_, "model weights"));
    base_ = out->memory.as<std::byte>();
    used_ = 0;
    for (Piece& p : pieces_) {
      FOVEA_ASSIGN(p.pinned, device_.allocate_pinned(kChunk, "model weights in transit"));
      p.done = device_.make_event();
    }
    return {};
  }

  const float* vector(const std::vector<float>& v) {
    return v.empty() ? nullptr : static_cast<const float*>(place(v.data(), v.size() * sizeof(float)));
  }
  WeightMatrix matrix(const WeightMatrix& w) {
    WeightMatrix out = w;
    out.data = place(w.data, w.bytes());
    return out;
  }
  Status status() { return std::move(status_); }

 private:
  struct Piece {
    Buffer pinned;
    std::unique_ptr<Event> done;
    bool pending = false;
  };

  const void* place(const void* from, size_t bytes) {
    if (device_.is_host()) return from;
    const size_t at = used_;
    used_ += (bytes + kAlign - 1) / kAlign * kAlign;
    if (!base_) return nullptr;
    for (size_t done = 0; done < bytes; done += kChunk) send(base_ + at + done, static_cast<const std::byte*>(from) + done, std::min(kChunk, bytes - done));
    return base_ + at;
  }

  // Through pinned memory, two pieces in turn: reading the file and the bus work at the same time.
  void send(std::byte* to, const std::byte* from, size_t bytes) {
    Piece& p = pieces_[next_];
    next_ = (next_ + 1) % pieces_.size();
    if (p.pending) {
      if (Status s = p.done->wait(); !s.ok()) status_ = std::move(s);
    }
    std::memcpy(p.pinned.data(), from, bytes);
    device_.copy(to, p.pinned.data(), bytes, CopyKind::to_device, stream_);
    p.done->record(stream_);
    p.pending = true;
  }

  Device& device_;
  Stream& stream_;
  std::byte* base_ = nullptr;
  size_t used_ = 0;
  std::array<Piece, 2> pieces_;
  size_t next_ = 0;
  Status status_;
};

PlacedLayer place_layer(const LayerWeights& w, Placer& p) {
  PlacedLayer out;
  out.input_norm = p.vector(w.input_norm);
  out.q = p.matrix(w.q);
  out.k = p.matrix(w.k);
  out.v = p.matrix(w.v);
  out.o = p.matrix(w.o);
  out.q_bias = p.vector(w.q_bias);
  out.k_bias = p.vector(w.k_bias);
  out.v_bias = p.vector(w.v_bias);
  out.o_bias = p.vector(w.o_bias);
  out.q_norm = p.vector(w.q_norm);
  out.k_norm = p.vector(w.k_norm);
  out.post_attention_norm = p.vector(w.post_attention_norm);
  out.gate = p.matrix(w.gate);
  out.up = p.matrix(w.up);
  out.down = p.matrix(w.down);
  out.gate_bias = p.vector(w.gate_bias);
  out.up_bias = p.vector(w.up_bias);
  out.down_bias = p.vector(w.down_bias);
  return out;
}

void place_all(const ModelWeights& w, Placer& p, PlacedWeights* out) {
  out->embed = p.matrix(w.embed);
  out->layers.clear();
  for (const LayerWeights& layer : w.layers) out->layers.push_back(place_layer(layer, p));
  out->final_norm = p.vector(w.final_norm);
  out->lm_head = w.lm_head.data == w.embed.data ? out->embed : p.matrix(w.lm_head);  // tied: once
  out->inv_freq = p.vector(out->host_inv_freq);
}

}  // namespace

Result<std::unique_ptr<PlacedWeights>> place_weights(const ModelWeights& weights, const ModelConfig& config, Device& device, Stream& stream) {
  auto out = std::make_unique<PlacedWeights>();
  out->host_inv_freq = rope_inv_freq(config.rope, config.rope_dim());
  Placer placer(device, stream);
  place_all(weights, placer, out.get());
  if (device.is_host()) return out;
  FOVEA_TRY(placer.allocate(out.get()));
  place_all(weights, placer, out.get());
  FOVEA_TRY(stream.synchronize());  // the transit memory goes
  FOVEA_TRY(placer.status());
  return out;
}

}  // namespace fovea
