#include "sparse/gsa_family/gsa_family.h"

#include "base/check.h"
#include "device/device.h"
#include "sparse/gsa_family/budget.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fovea {
namespace {

constexpr int64_t kUnitsAtFirst = 64;  // blocks a row and list: 1,024 tokens in blocks of 16

enum Priority : int32_t { kUrgent = 0, kHigh = 1, kNormal = 2, kLow = 3 };

}  // namespace

int32_t prefetch_priority(int32_t queue_position) {
  return queue_position <= 0 ? kUrgent : queue_position <= 4 ? kHigh : queue_position <= 16 ? kNormal : kLow;
}

Status GsaFamily::attach_lists(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging,
                               int32_t groups) {
  FOVEA_TRY(check_gsa_options(std::string(name()), options_, shape));
  if (overlaps() && !limits.ops.has(OpKind::carry_over))
    return Status::unsupported(std::string(name()) + ": device " + std::string(device.kind()) + " has no operation for overlap");
  shape_ = shape;
  limits_ = limits;
  if (!limits.host && !scores_on_host() && (options_.budget_split == BudgetSplit::mass || options_.top_p > 0))
    return Status::unsupported(std::string(name()) + ": budget_split: mass and top_p are not on device " +
                               std::string(device.kind()) + " yet (with scoring: host they are)");
  device_ = &device;
  groups_ = groups;
  FOVEA_ASSIGN(counts_, device.allocate(sizeof(int32_t) * limits.max_rows * groups_, std::string(name()) + " counts"));
  k_ = staging.take_rows<int32_t>(limits.max_rows);
  if (overlaps()) kept_.attach(std::string(name()), shape, groups_, limits.max_rows, device, staging);
  return reserve(&units_, int64_t{limits.max_rows} * groups_ * kUnitsAtFirst, " block lists");
}

Status GsaFamily::reserve(Buffer* buffer, int64_t entries, const char* what, bool pinned) {
  if (static_cast<int64_t>(buffer->bytes() / sizeof(int32_t)) >= entries) return {};
  const size_t bytes = sizeof(int32_t) * entries;
  const std::string named = std::string(name()) + what;
  FOVEA_ASSIGN(*buffer, pinned ? device_->allocate_pinned(bytes, named) : device_->allocate(bytes, named));
  ++version_;
  return {};
}

Status GsaFamily::step_begin(const StepRows& step) {
  FOVEA_TRY(begin_lists(step));
  step_ = step;
  chosen_ = LayerIdx{-1};
  return overlaps() ? kept_.begin_step(step, k_.host()) : Status();
}

// How many blocks each row keeps, into k_, and lists that hold them. Only a step with more rows or larger budgets than any
// before it moves the buffers, never one of a steady decode.
Status GsaFamily::begin_lists(const StepRows& step) {
  FOVEA_CHECK(step.rows <= limits_.max_rows);
  int32_t most = 1;
  for (int32_t r = 0; r < step.rows; ++r) {
    const int32_t blocks = blocks_of(step.row_len[r]);
    const int32_t k = blocks == 0 ? 1 : gsa_blocks_kept(options_, step.row_budget_tokens[r], blocks, shape_.block_size);
    k_.host()[r] = k;
    most = std::max(most, longest_list(k, blocks));
  }
  capacity_ = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(most)));
  const int64_t entries = int64_t{step.rows} * groups_ * capacity_;
  if (overlaps()) FOVEA_TRY(reserve(&scored_, entries, " block lists"));
  if (guesses()) {
    FOVEA_TRY(reserve(&next_units_, entries / 4, " next blocks"));
    FOVEA_TRY(reserve(&next_counts_, int64_t{limits_.max_rows} * groups_, " counts"));
  }
  if (scores_on_host()) FOVEA_TRY(reserve(&host_.units, entries, " block lists", true));
  return reserve(&units_, entries, " block lists");
}

QueryBlockChoice GsaFamily::query_choice(const SelectInputs& in, int32_t* units) const {
  QueryBlockChoice c;
  c.rows = in.step->rows;
  c.kv_heads = shape_.kv_heads;
  c.block_size = shape_.block_size;
  c.row_len = in.step->device_row_len;
  c.k = k_.device();
  c.init_blocks = options_.init_window_sz;
  c.local_blocks = options_.local_window_sz;
  c.share_heads = options_.share_heads;
  c.units = units;
  c.counts = counts_.as<int32_t>();
  c.capacity = capacity_;
  c.num_heads = shape_.num_heads;
  c.q = in.q;
  c.row_seq = in.step->device_row_seq;
  c.average_group = options_.average_group;
  c.table = in.block_table;
  return c;
}

MassBudget GsaFamily::mass_budget() const {
  return {.split = options_.budget_split == BudgetSplit::mass,
          .top_p_1e4 = static_cast<int32_t>(std::llround(options_.top_p * 10000)),
          .softmax_scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim))};
}

Status GsaFamily::select_by_codes(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream) {
  HashSelectParams p{query_choice(in, units)};
  p.max_len = static_cast<int32_t>(limits_.max_len);
  p.codes = codes_in(in.planes[0], codec_.codec(), shape_);
  p.budget = mass_budget();
  p.own_keys_new = true;  // a step's keys are its rows' own
  std::ranges::copy(in.soon, p.soon);
  if (scores_on_host()) return select_on_host(p, in, stream);
  if (guesses()) {
    p.next_units = next_units_.as<int32_t>();
    p.next_counts = next_counts_.as<int32_t>();
    p.next_capacity = capacity_ / 4;
    has_next_ = true;
  }
  ops.hash_select(p, stream);
  return {};
}

Status GsaFamily::place_codec(Device& device) {
  FOVEA_TRY(codec_.place(std::string(name()), options_, shape_, device));
  if (!scores_on_host()) return {};
  FOVEA_CHECK(limits_.host_ops != nullptr);
  host_.device = make_cpu_device();
  host_.stream = host_.device->make_stream();
  host_.queries_there = device.make_event();
  FOVEA_TRY(host_.codec.place(std::string(name()), options_, shape_, *host_.device));
  const size_t q = sizeof(float) * limits_.max_rows * shape_.num_heads * shape_.head_dim;
  FOVEA_ASSIGN(host_.q, device.allocate_pinned(q, std::string(name()) + " queries"));
  FOVEA_ASSIGN(host_.counts, device.allocate_pinned(counts_.bytes(), std::string(name()) + " counts"));
  return {};
}

// The layer's queries come, and with them the codes that the step has written; lists go back. Pinned memory is free for the next
// layer when its queries are there: they come behind these lists.
Status GsaFamily::select_on_host(HashSelectParams p, const SelectInputs& in, Stream& stream) {
  const int64_t rows = in.step->rows;
  const size_t q = sizeof(float) * static_cast<size_t>(rows * shape_.num_heads * shape_.head_dim);
  device_->copy(host_.q.data(), in.q, q, CopyKind::to_host, stream);
  host_.queries_there->record(stream);
  FOVEA_TRY(host_.queries_there->wait());
  int32_t* const units = std::exchange(p.units, host_.units.as<int32_t>());
  int32_t* const counts = std::exchange(p.counts, host_.counts.as<int32_t>());
  p.q = host_.q.as<float>();
  p.row_seq = in.step->row_seq;
  p.row_len = in.step->row_len;
  p.k = k_.host();
  p.table = in.host_block_table;
  p.codes.codec = host_.codec.codec();
  limits_.host_ops->hash_select(p, *host_.stream);
  device_->copy(units, p.units, sizeof(int32_t) * static_cast<size_t>(rows * groups_ * capacity_), CopyKind::to_device, stream);
  device_->copy(counts, p.counts, sizeof(int32_t) * static_cast<size_t>(rows * groups_), CopyKind::to_device, stream);
  return {};
}

Status GsaFamily::select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) {
  has_next_ = false;
  FOVEA_TRY(score(in, overlaps() ? scored_.as<int32_t>() : units_.as<int32_t>(), ops, stream));
  if (overlaps()) FOVEA_TRY(read_by_earlier_scores(in, ops, stream));
  chosen_ = in.layer;
  *out = selection(in.step->rows);
  return {};
}

Status GsaFamily::read_by_earlier_scores(const SelectInputs& in, Ops& ops, Stream& stream) {
  CarryOverParams p;
  p.rows = in.step->rows;
  p.groups = groups_;
  p.block_size = shape_.block_size;
  p.local_blocks = options_.local_window_sz;
  p.row_len = in.step->device_row_len;
  p.k = k_.device();
  p.chosen = scored_.as<int32_t>();
  p.units = units_.as<int32_t>();  // each as long as the list that the row's own scores chose: counts_ holds
  p.capacity = capacity_;
  FOVEA_TRY(kept_.fill(in.layer, stream, &p));
  ops.carry_over(p, stream);
  return {};
}

void GsaFamily::step_finish(bool ok) {
  if (overlaps()) kept_.finish_step(ok);
}

void GsaFamily::take_wants(LayerIdx layer, std::vector<Want>* wants) {
  if (!wanted_ || !options_.prefetch || std::exchange(chosen_, LayerIdx{-1}) != layer) return;
  int32_t queue_position = 0;
  for (int32_t r = 0; r < step_.rows; ++r) {
    if (!is_last_row(step_, r)) continue;
    const int32_t priority = prefetch_priority(queue_position++);
    for (int32_t h = 0; h < shape_.kv_heads; ++h) {
      const int64_t cell = int64_t{r} * groups_ + (groups_ == 1 ? 0 : h);
      const auto want = [&](std::span<const int32_t> blocks, int32_t at, int32_t steps, bool guess) {
        for (int32_t block : blocks) wants->push_back({step_.row_sequence[r], layer, KvHeadIdx{h}, block, at, steps, guess});
      };
      if (overlaps()) want({scored_.as<int32_t>() + cell * capacity_, size_t(counts_.as<int32_t>()[cell])}, priority, 1, false);
      if (has_next_)
        want({next_units_.as<int32_t>() + cell * (capacity_ / 4), size_t(next_counts_.as<int32_t>()[cell])}, kLow,
             options_.prefetch_ahead, true);
    }
  }
}

Selection GsaFamily::selection(int32_t rows) const {
  Selection s;
  s.kind = Selection::Kind::list;
  s.heads = groups_ == 1 ? HeadGroups::all : HeadGroups::per_kv_head;
  s.tokens_per_unit = shape_.block_size;
  s.rows = rows;
  s.groups = groups_;
  s.capacity = capacity_;
  s.units = units_.as<int32_t>();
  s.counts = counts_.as<int32_t>();
  return s;
}

int64_t GsaFamily::estimate_blocks(int64_t tokens, int32_t budget_tokens) const {
  return gsa_blocks_kept(options_, budget_tokens, blocks_of(tokens), shape_.block_size);
}

int64_t GsaFamily::most_blocks(int64_t tokens, int32_t budget_tokens) const {
  const int32_t blocks = blocks_of(tokens);
  return longest_list(gsa_blocks_kept(options_, budget_tokens, blocks, shape_.block_size), blocks);
}

int32_t GsaFamily::longest_list(int32_t k, int32_t blocks) const {
  return options_.budget_split == BudgetSplit::mass ? std::max(k, std::min(4 * k, blocks)) : k;
}

}  // namespace fovea
