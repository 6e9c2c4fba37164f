#include "sparse/gsa_family/gsa_family.h"

#include "base/check.h"
#include "device/device.h"
#include "sparse/gsa_family/budget.h"
#include "sparse/gsa_family/carry_over.h"

#include <algorithm>
#include <bit>

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
  shape_ = shape;
  limits_ = limits;
  device_ = &device;
  groups_ = groups;
  FOVEA_ASSIGN(counts_, device.allocate(sizeof(int32_t) * limits.max_rows * groups_, std::string(name()) + " counts"));
  k_ = staging.take<int32_t>(limits.max_rows);
  row_lists_.resize(limits.max_rows);
  FOVEA_TRY(reserve(&units_, int64_t{limits.max_rows} * groups_ * kUnitsAtFirst, " block lists"));
  units_version_ = 1;
  return {};
}

Status GsaFamily::reserve(Buffer* buffer, int64_t entries, const char* what) {
  if (static_cast<int64_t>(buffer->bytes() / sizeof(int32_t)) >= entries) return {};
  FOVEA_ASSIGN(*buffer, device_->allocate(sizeof(int32_t) * entries, std::string(name()) + what));
  if (buffer == &units_) ++units_version_;
  return {};
}

Status GsaFamily::step_begin(const StepRows& step) {
  FOVEA_TRY(begin_lists(step));
  step_ = step;
  chosen_ = LayerIdx{-1};
  for (int32_t r = 0; r < step.rows && overlaps(); ++r) {
    row_lists_[r] = nullptr;
    if (step.row_len[r] == 0) continue;
    std::unique_ptr<ChosenLists>& lists = lists_[step.row_sequence[r]];
    if (!lists) lists = std::make_unique<ChosenLists>(shape_.num_layers, groups_);
    lists->reserve(k_.host()[r]);
    row_lists_[r] = lists.get();
  }
  return {};
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
    most = std::max(most, k);
  }
  capacity_ = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(most)));
  const int64_t entries = int64_t{step.rows} * groups_ * capacity_;
  if (overlaps()) FOVEA_TRY(reserve(&scored_, entries, " block lists"));
  if (guesses()) {
    FOVEA_TRY(reserve(&next_units_, entries / 4, " next blocks"));
    FOVEA_TRY(reserve(&next_counts_, int64_t{limits_.max_rows} * groups_, " counts"));
  }
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

void GsaFamily::select_by_codes(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream) {
  HashSelectParams p{query_choice(in, units)};
  p.max_len = static_cast<int32_t>(limits_.max_len);
  p.codes = codes_in(in.planes[0], codec_.codec(), shape_);
  if (guesses()) {
    p.next_units = next_units_.as<int32_t>();
    p.next_counts = next_counts_.as<int32_t>();
    p.next_capacity = capacity_ / 4;
    has_next_ = true;
  }
  ops.hash_select(p, stream);
}

Status GsaFamily::select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) {
  has_next_ = false;
  score(in, overlaps() ? scored_.as<int32_t>() : units_.as<int32_t>(), ops, stream);
  if (overlaps()) {
    read_by_earlier_scores(in);
    keep_lists(in);
  }
  chosen_ = in.layer;
  *out = selection(in.step->rows);
  return {};
}

// With overlap, a row reads what the row before it chose: the one above it in this step, else the last of the step before; the
// first of a request reads what it chose itself.
void GsaFamily::read_by_earlier_scores(const SelectInputs& in) {
  const StepRows& step = *in.step;
  for (int32_t r = 0; r < step.rows; ++r) {
    const ChosenLists* lists = row_lists_[r];
    if (!lists) continue;
    const int32_t blocks = blocks_of(step.row_len[r]);
    const bool above = r > 0 && row_lists_[r - 1] == lists;
    const int32_t chosen_of = above ? blocks_of(step.row_len[r - 1]) : lists->blocks(in.layer.value);
    const bool own = chosen_of == 0 || chosen_of > blocks;  // nothing was chosen, or the request was rolled back
    for (int32_t g = 0; g < groups_; ++g) {
      const int64_t cell = int64_t{r} * groups_ + g, cell_above = cell - groups_;
      std::span<const int32_t> from(scored_.as<int32_t>() + cell * capacity_, std::min(k_.host()[r], blocks));
      if (!own && above) {
        const int32_t count = std::min(k_.host()[r - 1], chosen_of);
        from = {scored_.as<int32_t>() + cell_above * capacity_, static_cast<size_t>(count)};
      }
      if (!own && !above) from = lists->list(in.layer.value, g);
      // As many blocks as this row's own scores would keep: counts_ holds.
      const int32_t count = carry_over(from.data(), static_cast<int32_t>(from.size()), blocks, k_.host()[r],
                                       options_.local_window_sz, units_.as<int32_t>() + cell * capacity_);
      FOVEA_CHECK(count == counts_.as<int32_t>()[cell]);
    }
  }
}

bool GsaFamily::is_last_row(const StepRows& step, int32_t row) const {
  return step.row_len[row] > 0 &&
         (row + 1 == step.rows || step.row_sequence[row + 1] != step.row_sequence[row] || step.row_len[row + 1] == 0);
}

// The lists of each request's last row, for the next step.
void GsaFamily::keep_lists(const SelectInputs& in) {
  const StepRows& step = *in.step;
  for (int32_t r = 0; r < step.rows; ++r) {
    if (!is_last_row(step, r)) continue;
    for (int32_t g = 0; g < groups_; ++g) {
      const int64_t cell = int64_t{r} * groups_ + g;
      row_lists_[r]->store(in.layer.value, g, scored_.as<int32_t>() + cell * capacity_, counts_.as<int32_t>()[cell]);
    }
    row_lists_[r]->set_blocks(in.layer.value, blocks_of(step.row_len[r]));
  }
}

void GsaFamily::step_finish(bool ok) {
  for (int32_t r = 0; r < step_.rows && overlaps(); ++r) {
    if (row_lists_[r]) row_lists_[r]->finish_step(ok);
  }
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

}  // namespace fovea
