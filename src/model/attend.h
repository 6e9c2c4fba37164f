// Attention of one layer over the row groups of a step, the same for every model:
//   policy   which rule the layer has for the group's method
//   choose   the method's Selection: its own, or that of an earlier layer
//   resolve  where the chosen blocks lie: the page table that attention reads through
//   observe  counters and traces see the Selection
//   attend   the model's operation
// Blocks that lie elsewhere than in the pool are fetched in resolve: nothing else stands, or waits, between choosing and
// attending. The operation takes its rows, Selection and page table from a Reading alone, so a group may be read in waves.
#pragma once

#include "model/forward.h"

#include <array>

namespace fovea {

// Row groups of a step: methods x {prefill, decode}, and the dense ones.
inline constexpr size_t kGroupsMax = 64;

// What a model tells of a group's rows in one layer.
struct LayerQueries {
  SelectInputs select;       // what a method may choose by, at the group's first row; step, cache and planes are filled in
  float score_scale = 0.0f;  // select.q . k times it scores a key; 0: that is not the whole score (windows, MLA)
};

// What the operation reads.
struct Reading {
  const Selection* selection = nullptr;
  KvView kv;  // of the layer, with the page table
};

class Attention {
 public:
  Attention(const ForwardBatch& batch, const KvCache& kv, Ops& ops, Stream& stream);

  // For each group in order: queries(group) -> LayerQueries, then read(group, reading).
  template <typename Queries, typename Read>
  Status attend(LayerIdx layer, Queries&& queries, Read&& read) {
    for (size_t i = 0; i < batch_.groups.size(); ++i) {
      Reading reading;
      FOVEA_TRY(prepare(i, layer, queries(batch_.groups[i]), &reading));
      read(batch_.groups[i], reading);
    }
    return {};
  }

  // Chooses ahead of attend() for the groups of one method, while what it chooses by is there.
  template <typename Queries>
  Status choose(LayerIdx layer, const Method* method, Queries&& queries) {
    for (size_t i = 0; i < batch_.groups.size(); ++i) {
      if (batch_.groups[i].method == method) FOVEA_TRY(choose_for(i, layer, queries(batch_.groups[i])));
    }
    return {};
  }

 private:
  struct Choice {
    LayerIdx layer{-1};  // that chose it
    Selection selection;
  };

  Status prepare(size_t group, LayerIdx layer, const LayerQueries& queries, Reading* out);
  Status choose_for(size_t group, LayerIdx layer, const LayerQueries& queries);
  PageTableView resolve(const RowGroup& group, const Selection& selection) const;

  const ForwardBatch& batch_;
  const KvCache& kv_;
  Ops& ops_;
  Stream& stream_;
  std::array<Choice, kGroupsMax> choices_;  // of each group, the last
};

}  // namespace fovea
