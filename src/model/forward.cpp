#include "model/forward.h"

#include "base/check.h"

#include <algorithm>
#include <array>

namespace fovea {

void Summaries::add(Method* method, std::span<const PlaneIdx> planes) {
  FOVEA_CHECK(planes.size() <= kPlanesMax);
  Keeper keeper{method, {planes.begin(), planes.end()}, {}};
  for (PlaneIdx plane : planes) {
    const bool taken = std::any_of(keepers_.begin(), keepers_.end(), [&](const Keeper& k) {
      return std::find(k.planes.begin(), k.planes.end(), plane) != k.planes.end();
    });
    keeper.mine.push_back(!taken);
  }
  CodesView view;
  if (!codes_ && method->codes_view(nullptr, &view)) {
    codes_ = method;
    codes_plane_ = planes[0];
    keeper.mine[0] = 0;
  }
  IndexKeysView keys;
  std::array<std::byte*, kPlanesMax> nowhere{};
  if (method->index_keys(nowhere.data(), &keys)) {
    indexers_.push_back(keepers_.size());
    std::fill(keeper.mine.begin(), keeper.mine.end(), 0);
  }
  keepers_.push_back(std::move(keeper));
}

const Method* Summaries::index_keys(size_t i, const KvCache& kv, LayerIdx layer, IndexKeysView* out) const {
  const Keeper& k = keepers_[indexers_[i]];
  std::array<std::byte*, kPlanesMax> planes;
  for (size_t p = 0; p < k.planes.size(); ++p) planes[p] = kv.plane(k.planes[p], layer);
  FOVEA_CHECK(k.method->index_keys(planes.data(), out));
  return k.method;
}

bool Summaries::fused_codes(const KvCache& kv, LayerIdx layer, CodesView* out) const {
  return codes_ && codes_->codes_view(kv.plane(codes_plane_, layer), out);
}

void Summaries::update(const KvWriteParams& written, const KvCache& kv, LayerIdx layer, Ops& ops, Stream& stream) const {
  const KvWritten w = {.layer = layer, .tokens = written.tokens, .slot_mapping = written.slot_mapping, .kv = written.kv};
  update(w, kv, ops, stream);
}

void Summaries::update(KvWritten written, const KvCache& kv, Ops& ops, Stream& stream) const {
  std::array<std::byte*, kPlanesMax> planes;
  for (const Keeper& k : keepers_) {
    if (std::find(k.mine.begin(), k.mine.end(), 1) == k.mine.end()) continue;
    for (size_t i = 0; i < k.planes.size(); ++i) planes[i] = k.mine[i] ? kv.plane(k.planes[i], written.layer) : nullptr;
    written.planes = planes.data();
    k.method->on_kv_written(written, ops, stream);
  }
}

const Summaries::Keeper* Summaries::keeper_of(PlaneIdx plane) const {
  for (const Keeper& k : keepers_) {
    if (std::find(k.planes.begin(), k.planes.end(), plane) != k.planes.end()) return &k;
  }
  return nullptr;
}

bool Summaries::can_rebuild(PlaneIdx plane, const Ops& ops) const {
  const Keeper* k = keeper_of(plane);
  IndexKeysView keys;
  CodesView codes;
  std::array<std::byte*, kPlanesMax> nowhere{};
  if (k == nullptr || k->method->index_keys(nowhere.data(), &keys)) return false;
  const bool coded = k->method->codes_view(nullptr, &codes);
  return ops.supported().has_all({coded ? OpKind::encode_codes : OpKind::block_summaries});
}

void Summaries::rebuild(PlaneIdx plane, KvWritten written, const KvCache& kv, Ops& ops, Stream& stream) const {
  const Keeper& k = *keeper_of(plane);
  std::array<std::byte*, kPlanesMax> planes{};
  for (size_t i = 0; i < k.planes.size(); ++i) planes[i] = k.planes[i] == plane ? kv.plane(plane, written.layer) : nullptr;
  written.planes = planes.data();
  k.method->on_kv_written(written, ops, stream);
}

ProductGroup::ProductGroup(const float* x, int32_t rows, std::initializer_list<Product> products, bool full_precision, bool as_many,
                           bool gated) {
  FOVEA_CHECK(products.size() <= weights_.size());
  int32_t count = 0;
  for (const Product& p : products) {
    weights_[count++] = {.w = *p.w, .bias = p.bias.data(), .out = p.out};
  }
  params_ = {.x = x,
             .rows = rows,
             .k = static_cast<int32_t>(products.begin()->w->cols),
             .weights = weights_.data(),
             .count = count,
             .full_precision = full_precision,
             .as_many = as_many,
             .gated = gated};
}

void project(const float* x, int32_t rows, std::initializer_list<Product> products, Ops& ops, Stream& stream, bool full_precision) {
  ops.linear(ProductGroup(x, rows, products, full_precision).params(), stream);
}

}  // namespace fovea
