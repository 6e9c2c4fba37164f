#include "sparse/gsa_on_device/replayed_gsa.h"

#include <algorithm>

namespace fovea {

void place_list(const std::vector<int32_t>& list, int32_t shared_blocks, int32_t recorded_blocks, int32_t blocks,
                std::vector<int32_t>* out) {
  out->clear();
  for (int32_t block : list) {
    const int32_t at = block < shared_blocks ? block : blocks - (recorded_blocks - block);
    if (at < blocks && at > (out->empty() ? -1 : out->back())) out->push_back(at);
  }
}

ReplayedGsa::ReplayedGsa(GsaOptions options, std::vector<RecordedLists> recorded) : GsaOnDevice(std::move(options)) {
  for (RecordedLists& lists : recorded) {
    list_capacity_ = std::max(list_capacity_, lists.k);
    recordings_.push_back({std::move(lists)});
  }
  std::sort(recordings_.begin(), recordings_.end(),
            [](const Recording& a, const Recording& b) { return a.lists.context_tokens < b.lists.context_tokens; });
}

Status ReplayedGsa::attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) {
  FOVEA_TRY(GsaOnDevice::attach(shape, limits, device, staging));
  for (const Recording& r : recordings_) {
    if (r.lists.block_size != shape.block_size)
      return Status::invalid_argument("recorded lists are of blocks of " + std::to_string(r.lists.block_size) + " tokens, not of " +
                                      std::to_string(shape.block_size));
    for (const RecordedRow& row : r.lists.rows) {
      if (std::any_of(row.lists.begin(), row.lists.end(), [](const auto& list) { return list.empty(); }))
        return Status::invalid_argument("recorded lists of layers that read everything cannot be replayed");
    }
  }
  const int64_t lists = int64_t{shape.num_layers} * shape.kv_heads;
  lists_ = staging.take<int32_t>(lists * list_capacity_);
  lengths_ = staging.take<int32_t>(lists);
  return {};
}

Status ReplayedGsa::step_begin(const StepRows& step) {
  FOVEA_TRY(GsaOnDevice::step_begin(step));
  if (step.rows != 1)
    return Status::unsupported("recorded lists are replayed to one row a step, not to " + std::to_string(step.rows));
  const auto longer = std::find_if(recordings_.begin(), recordings_.end(),
                                   [&](const Recording& r) { return r.lists.context_tokens > step.row_len[0]; });
  if (longer == recordings_.begin())
    return Status::unsupported("no lists were recorded at " + std::to_string(step.row_len[0]) + " tokens of context or fewer");
  Recording& recording = *(longer - 1);
  write_lists(recording, blocks_of(step.row_len[0]));
  recording.next = (recording.next + 1) % recording.lists.rows.size();
  return {};
}

void ReplayedGsa::write_lists(const Recording& recording, int32_t blocks) {
  const RecordedLists& recorded = recording.lists;
  const RecordedRow& row = recorded.rows[recording.next];
  const auto recorded_blocks = static_cast<int32_t>(row.position / recorded.block_size + 1);
  for (int32_t l = 0; l < shape_.num_layers; ++l) {
    for (int32_t h = 0; h < shape_.kv_heads; ++h) {
      const auto from = static_cast<size_t>(l % recorded.layers * recorded.kv_heads + h % recorded.kv_heads);
      place_list(row.lists[from], recorded.shared_blocks(), recorded_blocks, blocks, &list_);
      const int64_t to = int64_t{l} * shape_.kv_heads + h;
      std::copy(list_.begin(), list_.end(), lists_.host() + to * list_capacity_);
      lengths_.host()[to] = static_cast<int32_t>(list_.size());
    }
  }
}

Status ReplayedGsa::select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) {
  FOVEA_TRY(GsaOnDevice::select(in, ops, stream, out));  // for its time
  out->heads = HeadGroups::per_kv_head;
  out->groups = shape_.kv_heads;
  out->capacity = list_capacity_;
  const int64_t first = int64_t{in.layer.value} * shape_.kv_heads;
  out->units = lists_.device() + first * list_capacity_;
  out->counts = lengths_.device() + first;
  return {};
}

}  // namespace fovea
