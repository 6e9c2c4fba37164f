#include "model/attend.h"

#include "base/check.h"

namespace fovea {

Attention::Attention(const ForwardBatch& batch, const KvCache& kv, Ops& ops, Stream& stream)
    : batch_(batch), kv_(kv), ops_(ops), stream_(stream) {
  FOVEA_CHECK(batch.groups.size() <= kGroupsMax);
}

Status Attention::prepare(size_t group, LayerIdx layer, const LayerQueries& queries, Reading* out) {
  static const Selection kAll;
  const RowGroup& g = batch_.groups[group];
  const LayerRule rule = g.method ? g.policy->rule(layer) : LayerRule::dense;
  if (rule == LayerRule::own) FOVEA_TRY(choose_for(group, layer, queries));
  out->selection = rule == LayerRule::dense ? &kAll : &choices_[group].selection;
  out->kv = kv_.kv_view(layer);
  out->kv.table = resolve(g, *out->selection);
  if (batch_.observer) {
    const LayerScores scores{queries.select.q, out->kv, queries.score_scale};
    batch_.observer->on_selection(g, layer, *out->selection, queries.score_scale != 0 ? &scores : nullptr);
  }
  return {};
}

Status Attention::choose_for(size_t group, LayerIdx layer, const LayerQueries& queries) {
  const RowGroup& g = batch_.groups[group];
  Choice& choice = choices_[group];
  if (g.policy->rule(layer) != LayerRule::own || choice.layer == layer) return {};
  std::array<std::byte*, Summaries::kPlanesMax> planes;
  FOVEA_CHECK(g.planes.size() <= planes.size());
  for (size_t i = 0; i < g.planes.size(); ++i) planes[i] = kv_.plane(g.planes[i], layer);
  SelectInputs in = queries.select;
  in.layer = layer;
  in.step = &g.step;
  in.block_table = g.table;
  in.kv = kv_.kv_view(layer);
  in.kv.table = g.table;
  in.planes = planes.data();
  FOVEA_TRY(g.method->select(in, ops_, stream_, &choice.selection));
  choice.layer = layer;
  return {};
}

// All blocks lie in the pool, each in the slot of its own number.
PageTableView Attention::resolve(const RowGroup& group, const Selection&) const { return group.table; }

}  // namespace fovea
