// Attention of one layer over the row groups of a step, the same for every model:
//   policy   which rule the layer has for the group's method
//   choose   the method's Selection: its own, or that of an earlier layer
//   resolve  where the chosen blocks lie: the page table that attention reads through
//   observe  counters and traces see the Selection
//   attend   the model's operation
// Blocks that lie elsewhere than in the pool are fetched in resolve: nothing else stands, or waits, between choosing and
// attending. The operation takes its rows, heads, Selection and page table from a Reading alone: a group whose blocks are mobile is
// read in waves of rows, each of which finds columns for all it chose; one that is streamed, sequence by sequence and a few KV
// heads at a time, from a copy of the context. Neither changes a bit.
#pragma once

#include "kv/device_extent_cache.h"
#include "model/forward.h"

#include <array>
#include <optional>
#include <vector>

namespace fovea {

// Row groups of a step: methods x {prefill, decode}, and the dense ones.
inline constexpr size_t kGroupsMax = 64;

// What a model tells of a group's rows in one layer.
struct LayerQueries {
  SelectInputs select;       // what a method may choose by, at the group's first row; step, cache and planes are filled in
  float score_scale = 0.0f;  // select.q . k times it scores a key; 0: that is not the whole score (windows, MLA)
  int32_t window = 0;        // keys before it are not read
};

// What the operation reads, and for which rows of the batch and KV heads.
struct Reading {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1], relative to first_row
  const int32_t* seq_len = nullptr;   // [num_seqs]
  int32_t first_kv_head = 0;          // kv has kv.kv_heads of them
  bool prefill = false;               // by the operation for prompts: its rows are, or only that one takes a part of the heads here
  const Selection* selection = nullptr;
  KvView kv;                      // of the layer, with the page table
  const KeyGate* gate = nullptr;  // of kv: what is still being read; prefill only
};

class Attention {
 public:
  Attention(const ForwardBatch& batch, const KvCache& kv, Ops& ops, Stream& stream);

  // For each group in order: queries(group) -> LayerQueries, then read(group, reading).
  template <typename Queries, typename Read>
  Status attend(LayerIdx layer, Queries&& queries, Read&& read) {
    waves_ = 0;
    for (size_t i = 0; i < batch_.groups.size(); ++i) {
      const RowGroup& group = batch_.groups[i];
      const LayerQueries asked = queries(group);
      Reading reading;
      FOVEA_TRY(prepare(i, layer, asked, &reading));
      if (group.blocks == RowGroup::Blocks::in_pool) {
        read(group, reading);
        continue;
      }
      begin_parts(reading);
      for (bool more = true; more;) {
        FOVEA_TRY(next_part(group, layer, asked.window, &reading, &more));
        read(group, reading);
        FOVEA_TRY(end_part(reading));
      }
      if (batch_.read_ahead && group.blocks == RowGroup::Blocks::mobile) batch_.read_ahead->tell(group, layer);
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
  void begin_parts(const Reading& whole);
  bool may_skip(const RowGroup& group) const;
  Status next_part(const RowGroup& group, LayerIdx layer, int32_t window, Reading* part, bool* more);
  Status end_part(const Reading& part);
  Status next_wave_on_device(const RowGroup& group, LayerIdx layer, int32_t window, Reading* part, bool* more);
  Status next_wave(const RowGroup& group, LayerIdx layer, int32_t window, Reading* part, bool* more);
  void leave_out_late(const RowGroup& group, LayerIdx layer, const ExtentCache::Wave& wave);
  Strips strips_at(const RowGroup& group, LayerIdx layer, int32_t seq, int32_t head) const;
  std::optional<Strips> strips_behind(const RowGroup& group, const Strips& strips) const;
  Status next_strips(const RowGroup& group, LayerIdx layer, Reading* part, bool* more);

  const ForwardBatch& batch_;
  const KvCache& kv_;
  Ops& ops_;
  Stream& stream_;
  std::array<Choice, kGroupsMax> choices_;  // of each group, the last
  // Of a group that is read in parts.
  Reading whole_;
  int32_t next_row_ = 0, next_seq_ = 0, next_head_ = 0;
  int32_t waves_ = 0;               // of the layer so far, on a device
  int32_t rows_that_may_skip_ = 0;  // what is late, of all groups
  Selection part_selection_;
  std::vector<int32_t> part_indptr_, part_len_, part_units_, part_counts_, part_skipped_;
};

}  // namespace fovea
