#include "sparse/gsa_family/kept_lists.h"

#include "base/check.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace fovea {

bool is_last_row(const StepRows& step, int32_t row) {
  return step.row_len[row] > 0 &&
         (row + 1 == step.rows || step.row_sequence[row + 1] != step.row_sequence[row] || step.row_len[row + 1] == 0);
}

void KeptLists::attach(std::string name, const ModelShape& shape, int32_t groups, int32_t max_rows, Device& device,
                       StepMemory& staging) {
  name_ = std::move(name);
  device_ = &device;
  layers_ = shape.num_layers;
  groups_ = groups;
  block_size_ = shape.block_size;
  from_ = staging.take_rows<int32_t>(max_rows);
  from_count_ = staging.take_rows<int32_t>(max_rows);
  keep_at_ = staging.take_rows<int32_t>(max_rows);
}

KeptLists::Request& KeptLists::request_of(SequenceId sequence) {
  const auto [it, is_new] = requests_.try_emplace(sequence);
  if (is_new) {
    if (free_.empty()) free_.push_back(slots_++);
    it->second.slot = free_.back();
    free_.pop_back();
  }
  return it->second;
}

// A row reads by what the row before it chose: the one above it in this step, else the last of the step before; the first of a
// request, and one that was rolled back behind that choice, by what it chooses itself.
Status KeptLists::begin_step(const StepRows& step, const int32_t* k) {
  of_step_.clear();
  int32_t most = 1;
  for (int32_t r = 0; r < step.rows; ++r) {
    from_.host()[r] = CarryOverParams::kOwn;
    from_count_.host()[r] = 0;
    keep_at_.host()[r] = -1;
    if (step.row_len[r] == 0) continue;
    Request& q = request_of(step.row_sequence[r]);
    const int32_t blocks = blocks_of(step.row_len[r]), next = q.current ^ 1;
    const bool above = r > 0 && step.row_len[r - 1] > 0 && step.row_sequence[r - 1] == step.row_sequence[r];
    const int32_t chosen_of = above ? blocks_of(step.row_len[r - 1]) : q.blocks[q.current];
    if (chosen_of > 0 && chosen_of <= blocks) {
      from_.host()[r] = above ? CarryOverParams::kAbove : q.place(q.current);
      from_count_.host()[r] = above ? 0 : q.count[q.current];
    }
    if (!is_last_row(step, r)) continue;
    keep_at_.host()[r] = q.place(next);
    q.blocks[next] = blocks;
    q.count[next] = std::min(k[r], blocks);
    of_step_.push_back(&q);
    most = std::max(most, k[r]);
  }
  return reserve(most);
}

// The memory doubles with requests and with budgets, so it moves a few times in an engine's life.
Status KeptLists::reserve(int32_t capacity) {
  if (outgrown_.data) ++version_;  // work that moves them is not captured
  if (slots_ <= lists_.slots && capacity <= lists_.capacity) return {};
  Memory grown;
  grown.slots = std::max(lists_.slots, static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(slots_))));
  grown.capacity = std::max(lists_.capacity, static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(capacity))));
  const size_t bytes = sizeof(int32_t) * static_cast<size_t>(layers_ * grown.layer_entries(groups_));
  FOVEA_ASSIGN(grown.data, device_->allocate(bytes, name_ + " lists of earlier steps"));
  if (!outgrown_.data) outgrown_ = std::exchange(lists_, {});
  lists_ = std::move(grown);
  ++version_;
  return {};
}

Status KeptLists::fill(LayerIdx layer, Stream& stream, CarryOverParams* p) {
  if (outgrown_.data) {
    const int64_t from_entries = outgrown_.layer_entries(groups_), to_entries = lists_.layer_entries(groups_);
    std::vector<CopyExtent> extents;
    for (int32_t l = 0; l < layers_; ++l) {
      extents.push_back({.to = lists_.data.as<int32_t>() + l * to_entries,
                         .from = outgrown_.data.as<int32_t>() + l * from_entries,
                         .bytes = sizeof(int32_t) * static_cast<size_t>(outgrown_.capacity),
                         .rows = static_cast<size_t>(from_entries / outgrown_.capacity),
                         .to_stride = sizeof(int32_t) * static_cast<size_t>(lists_.capacity),
                         .from_stride = sizeof(int32_t) * static_cast<size_t>(outgrown_.capacity)});
    }
    FOVEA_TRY(device_->transfer(extents, CopyKind::on_device, stream));
    outgrown_ = {};  // freed once that is done
  }
  p->from = from_.device();
  p->from_count = from_count_.device();
  p->keep_at = keep_at_.device();
  p->kept = lists_.data.as<int32_t>() + layer.value * lists_.layer_entries(groups_);
  p->kept_capacity = lists_.capacity;
  return {};
}

void KeptLists::finish_step(bool ok) {
  for (Request* q : of_step_) q->current ^= ok ? 1 : 0;
  of_step_.clear();
}

void KeptLists::forget(SequenceId sequence) {
  const auto it = requests_.find(sequence);
  if (it == requests_.end()) return;
  std::erase(of_step_, &it->second);
  free_.push_back(it->second.slot);
  requests_.erase(it);
}

}  // namespace fovea
