#include "sparse/dsa/dsa.h"

#include "base/check.h"
#include "device/device.h"
#include "kernels/common/dsa_chunks.h"

#include <algorithm>
#include <bit>

namespace fovea {
namespace {

const char* precision_name(IndexPrecision p) {
  return p == IndexPrecision::exact ? "exact" : p == IndexPrecision::bf16 ? "bf16" : "fp8";
}

}  // namespace

std::string Dsa::lineage() const {
  return "dsa topk=" + std::to_string(topk_) + " precision=" + precision_name(options_.precision);
}

Status Dsa::check(const ModelShape& shape, const MethodLimits& limits, const Device& device) const {
  if (shape.index_heads == 0) return Status::unsupported("dsa: the model has no indexer");
  if (!limits.ops.has_all(needs()))
    return Status::unsupported("dsa: device " + std::string(device.kind()) + " has no indexer operations");
  if (options_.topk < 0 || options_.topk > shape.index_topk)
    return Status::invalid_argument("dsa: topk " + std::to_string(options_.topk) + " is not from 1 to the model's index_topk " +
                                    std::to_string(shape.index_topk) + " (0: that)");
  if (shape.index_dim % 8 != 0 || shape.index_dim > kMaxIndexDim || shape.index_heads > kMaxIndexHeads)
    return Status::unsupported("dsa: an indexer of " + std::to_string(shape.index_heads) + " heads of " +
                               std::to_string(shape.index_dim) + "; at most 128 heads of a multiple of 8 up to 256");
  if (options_.precision == IndexPrecision::fp8 &&
      (!std::has_single_bit(static_cast<uint32_t>(shape.index_dim)) || shape.index_dim > kMaxFp8IndexDim))
    return Status::unsupported("dsa: precision fp8 needs an index dimension that is a power of two up to 128, not " +
                               std::to_string(shape.index_dim));
  return {};
}

Status Dsa::attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) {
  FOVEA_TRY(check(shape, limits, device));
  shape_ = shape;
  limits_ = limits;
  topk_ = options_.topk > 0 ? options_.topk : shape.index_topk;
  for (Lists& lists : lists_) FOVEA_TRY(allocate(&lists, device));
  if (!options_.materialize) return {};
  const int64_t free_bytes = device.free_bytes();
  const IndexWork work{.rows = limits.max_rows, .keys = limits.max_len, .topk = topk_};
  const IndexChunkPlan plan = plan_index_chunks(work, free_bytes, free_bytes);
  logits_floats_ = plan.chunk_rows * limits.max_len;
  FOVEA_ASSIGN(logits_, device.allocate(sizeof(float) * logits_floats_, "dsa logits"));
  return {};
}

Status Dsa::allocate(Lists* lists, Device& device) {
  const int64_t entries = int64_t{limits_.max_rows} * topk_;
  FOVEA_ASSIGN(lists->positions, device.allocate(sizeof(int32_t) * entries, "dsa positions"));
  FOVEA_ASSIGN(lists->counts, device.allocate(sizeof(int32_t) * limits_.max_rows, "dsa counts"));
  return {};
}

std::vector<PlaneSpec> Dsa::planes() const {
  const std::string mode = precision_name(options_.precision);
  const int64_t elements = int64_t{shape_.block_size} * shape_.index_dim;
  std::vector<PlaneSpec> specs = {{"index_k." + mode, 1, elements * index_element_bytes(options_.precision), Residency::resident}};
  if (options_.precision == IndexPrecision::fp8)
    specs.push_back({"index_scale." + mode, 1, static_cast<int64_t>(sizeof(float)) * shape_.block_size, Residency::resident});
  return specs;
}

bool Dsa::index_keys(std::byte* const* planes, IndexKeysView* out) const {
  *out = {};
  out->precision = options_.precision;
  out->k = planes[0];
  if (options_.precision == IndexPrecision::fp8) out->scale = reinterpret_cast<float*>(planes[1]);
  out->block_size = shape_.block_size;
  out->dim = shape_.index_dim;
  return true;
}

Status Dsa::step_begin(const StepRows& step) {
  FOVEA_CHECK(step.rows <= limits_.max_rows);
  return {};
}

IndexTopkParams Dsa::choice(const SelectInputs& in, Lists& lists) const {
  IndexTopkParams p;
  p.rows = in.step->rows;
  p.heads = shape_.index_heads;
  p.q = in.index_q;
  p.weights = in.index_weights;
  p.row_seq = in.step->device_row_seq;
  p.row_len = in.step->device_row_len;
  p.topk = topk_;
  p.max_len = limits_.max_len;
  index_keys(in.planes, &p.keys);
  p.keys.block_table = in.block_table.slots;
  p.keys.table_stride = in.block_table.seq_stride;
  p.out = {IndexSpace::position, p.rows, topk_, lists.positions.as<int32_t>(), lists.counts.as<int32_t>()};
  if (options_.materialize) {
    p.logits = logits_.as<float>();
    p.logits_floats = logits_floats_;
  }
  return p;
}

Status Dsa::select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) {
  FOVEA_CHECK(in.index_q && in.index_weights);
  const IndexTopkParams p = choice(in, lists_[in.step->prefill]);
  ops.index_topk(p, stream);
  // A Selection is of logical units: attention maps them to memory itself.
  FOVEA_CHECK(p.out.space == IndexSpace::position);
  *out = Selection{};
  out->kind = Selection::Kind::list;
  out->heads = HeadGroups::all;
  out->tokens_per_unit = 1;
  out->rows = p.rows;
  out->groups = 1;
  out->capacity = topk_;
  out->units = p.out.indices;
  out->counts = p.out.counts;
  return {};
}

// Tokens, not blocks, are what it reads: as many blocks as they would fill.
int64_t Dsa::estimate_blocks(int64_t tokens, int32_t) const {
  return (std::min<int64_t>(tokens, topk_) + shape_.block_size - 1) / shape_.block_size;
}

int64_t Dsa::summary_bytes(int64_t row_len) const {
  if (row_len <= topk_) return 0;  // all are chosen, none is scored
  const int64_t scale = options_.precision == IndexPrecision::fp8 ? static_cast<int64_t>(sizeof(float)) : 0;
  return row_len * (shape_.index_dim * index_element_bytes(options_.precision) + scale);
}

}  // namespace fovea
