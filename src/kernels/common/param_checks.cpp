#include "kernels/common/param_checks.h"

#include <algorithm>
#include <bit>
#include <string>

namespace fovea {
namespace {

Status bad(const char* field, int64_t value, const std::string& wanted) {
  return Status::invalid_argument(std::string(field) + " is " + std::to_string(value) + ", not " + wanted);
}

Status in_range(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return bad(field, value, "in [" + std::to_string(least) + ", " + std::to_string(most) + "]");
}

Status at_least(const char* field, int64_t value, int64_t least) {
  return value >= least ? Status() : bad(field, value, std::to_string(least) + " or more");
}

Status given(const char* field, const void* pointer) {
  return pointer ? Status() : Status::invalid_argument(std::string(field) + " is null");
}

Status check_heads(int32_t num_heads, int32_t kv_heads, const OpsLimits& limits) {
  FOVEA_TRY(in_range("kv_heads", kv_heads, 1, limits.kv_heads));
  FOVEA_TRY(in_range("num_heads", num_heads, kv_heads, limits.num_heads));
  return num_heads % kv_heads == 0 ? Status() : bad("num_heads", num_heads, "a multiple of kv_heads, " + std::to_string(kv_heads));
}

Status check_block_size(int32_t block_size) {
  if (block_size >= 8 && block_size <= 256 && std::has_single_bit(static_cast<unsigned>(block_size))) return {};
  return bad("block_size", block_size, "a power of two in [8, 256]");
}

Status check_head_dim(const char* field, int32_t d, int32_t most) {
  if (d >= kMinHeadDim && d <= most && d % 16 == 0) return {};
  return bad(field, d, "a multiple of 16 in [" + std::to_string(kMinHeadDim) + ", " + std::to_string(most) + "]");
}

Status check_kv(const KvView& kv, const OpsLimits& limits, bool values) {
  FOVEA_TRY(given("kv.k", kv.k));
  if (values) FOVEA_TRY(given("kv.v", kv.v));
  if (!is_kv_dtype(kv.dtype)) {
    return Status::invalid_argument("kv.dtype is " + std::string(dtype_name(kv.dtype)) + ", not bf16, f16, f32 or fp8");
  }
  FOVEA_TRY(check_block_size(kv.block_size));
  FOVEA_TRY(in_range("kv.kv_heads", kv.kv_heads, 1, limits.kv_heads));
  FOVEA_TRY(check_head_dim("kv.head_dim", kv.head_dim, limits.head_dim));
  // Rows are read 16 bytes at a time.
  const auto step = 16 / static_cast<int64_t>(dtype_bytes(kv.dtype));
  FOVEA_TRY(at_least("kv.block_stride", kv.block_stride, 1));
  if (kv.block_stride % step) return bad("kv.block_stride", kv.block_stride, "a multiple of " + std::to_string(step));
  if (kv.head_stride % step) return bad("kv.head_stride", kv.head_stride, "a multiple of " + std::to_string(step));
  if (kv.token_stride % step) return bad("kv.token_stride", kv.token_stride, "a multiple of " + std::to_string(step));
  if (kv.token_stride && kv.layout != KvLayout::hnd) return bad("kv.token_stride", kv.token_stride, "0 as layout classic has it");
  return {};
}

Status check_rows_dtype(DType dtype) {
  if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return {};
  return Status::invalid_argument("dtype is " + std::string(dtype_name(dtype)) + ", not f32, f16 or bf16");
}

Status check_selection(const Selection& s, const AttentionParams& p) {
  if (s.kind == Selection::Kind::all) return {};
  const int32_t groups = s.heads == HeadGroups::all ? 1 : s.heads == HeadGroups::per_kv_head ? p.kv.kv_heads : p.num_heads;
  if (s.groups != groups) return bad("selection.groups", s.groups, std::to_string(groups) + " as its heads say");
  FOVEA_TRY(at_least("selection.tokens_per_unit", s.tokens_per_unit, 1));
  if (!s.row_indptr) FOVEA_TRY(at_least("selection.rows", s.rows, p.rows));
  if (s.kind == Selection::Kind::range) {
    FOVEA_TRY(given("selection.begins", s.begins));
    return given("selection.ends", s.ends);
  }
  FOVEA_TRY(given("selection.units", s.units));
  return given("selection.counts", s.counts);
}

Status check_codec(const HashCodec& codec) {
  FOVEA_TRY(given("codec.signs", codec.signs));
  if (codec.bits < 64 || codec.bits > 256 || codec.bits % 64) return bad("codec.bits", codec.bits, "a multiple of 64 up to 256");
  if (codec.n < 64 || codec.n > 256 || !std::has_single_bit(static_cast<unsigned>(codec.n))) {
    return bad("codec.n", codec.n, "64, 128 or 256: codes are of head_dim 48 and more");
  }
  return {};
}

Status check_choice(const BlockChoice& p, const OpsLimits& limits) {
  FOVEA_TRY(in_range("rows", p.rows, 0, limits.max_decode_rows));
  FOVEA_TRY(in_range("kv_heads", p.kv_heads, 1, limits.kv_heads));
  FOVEA_TRY(check_block_size(p.block_size));
  FOVEA_TRY(at_least("init_blocks", p.init_blocks, 0));
  FOVEA_TRY(at_least("local_blocks", p.local_blocks, 0));
  FOVEA_TRY(at_least("capacity", p.capacity, 1));
  FOVEA_TRY(given("row_len", p.row_len));
  FOVEA_TRY(given("k", p.k));
  FOVEA_TRY(given("units", p.units));
  return given("counts", p.counts);
}

}  // namespace

Status check_limits(const OpsLimits& l) {
  FOVEA_TRY(at_least("max_rows", l.max_rows, 1));
  FOVEA_TRY(at_least("max_decode_rows", l.max_decode_rows, 1));
  FOVEA_TRY(at_least("max_len", l.max_len, 1));
  FOVEA_TRY(at_least("kv_heads", l.kv_heads, 1));
  FOVEA_TRY(check_head_dim("head_dim", l.head_dim, kMaxHeadDim));
  FOVEA_TRY(check_block_size(l.block_size));
  return check_heads(l.num_heads, l.kv_heads, l);
}

namespace {

// All of AttentionParams but its results.
Status check_queries(const AttentionParams& p, const OpsLimits& limits) {
  FOVEA_TRY(in_range("rows", p.rows, 0, std::max(limits.max_rows, limits.max_decode_rows)));
  FOVEA_TRY(check_kv(p.kv, limits, true));
  FOVEA_TRY(check_heads(p.num_heads, p.kv.kv_heads, limits));
  if (p.q_heads != 0) FOVEA_TRY(at_least("q_heads", p.q_heads, p.num_heads));
  FOVEA_TRY(in_range("max_len", p.max_len, 0, limits.max_len));
  FOVEA_TRY(at_least("window", p.window, 0));
  if (!(p.soft_cap >= 0)) return Status::invalid_argument("soft_cap is " + std::to_string(p.soft_cap) + ", below 0");
  FOVEA_TRY(check_rows_dtype(p.dtype));
  FOVEA_TRY(given("q", p.q));
  FOVEA_TRY(given("q_indptr", p.q_indptr));
  FOVEA_TRY(given("seq_len", p.seq_len));
  FOVEA_TRY(given("kv.table.slots", p.kv.table.slots));
  return p.selection ? check_selection(*p.selection, p) : Status();
}

}  // namespace

Status check_params(const AttentionParams& p, const OpsLimits& limits) {
  FOVEA_TRY(given("out", p.out));
  return check_queries(p, limits);
}

Status check_params(const PartitionedAttentionParams& p, const OpsLimits& limits) {
  const AttentionParams& a = p.attention;
  FOVEA_TRY(check_queries(a, limits));
  FOVEA_TRY(in_range("attention.rows", a.rows, 0, limits.max_decode_rows));
  FOVEA_TRY(in_range("attention.window", a.window, 0, 0));
  if (a.selection) return Status::invalid_argument("attention.selection is not null: partitions are of dense attention");
  if (a.heads_per_row() != a.num_heads) return bad("attention.q_heads", a.q_heads, "num_heads");
  if (p.partition_size < 16 || p.partition_size % 16) return bad("partition_size", p.partition_size, "a multiple of 16");
  const int64_t len = a.max_len > 0 ? a.max_len : limits.max_len;
  FOVEA_TRY(at_least("max_partitions", p.max_partitions, (len + p.partition_size - 1) / p.partition_size));
  FOVEA_TRY(given("exp_sums", p.exp_sums));
  FOVEA_TRY(given("max_logits", p.max_logits));
  return given("tmp_out", p.tmp_out);
}

Status check_params(const MergePartitionsParams& p, const OpsLimits&) {
  FOVEA_TRY(at_least("rows", p.rows, 0));
  FOVEA_TRY(at_least("num_heads", p.num_heads, 1));
  FOVEA_TRY(at_least("partitions", p.partitions, 0));
  FOVEA_TRY(check_head_dim("head_dim", p.head_dim, kMaxHeadDim));
  FOVEA_TRY(check_rows_dtype(p.dtype));
  FOVEA_TRY(given("exp_sums", p.exp_sums));
  FOVEA_TRY(given("max_logits", p.max_logits));
  FOVEA_TRY(given("tmp_out", p.tmp_out));
  return given("out", p.out);
}

Status check_params(const CopyBlocksParams& p, const OpsLimits&) {
  FOVEA_TRY(at_least("num_planes", p.num_planes, 0));
  FOVEA_TRY(at_least("count", p.count, 0));
  if (p.num_planes == 0 || p.count == 0) return {};
  FOVEA_TRY(given("planes", p.planes));
  return given("pairs", p.pairs);
}

Status check_params(const ConvertParams& p, const OpsLimits&) {
  for (const DType dtype : {p.in_dtype, p.out_dtype}) {
    if (!is_kv_dtype(dtype)) return Status::invalid_argument("a dtype is " + std::string(dtype_name(dtype)) + ", not a float's");
  }
  FOVEA_TRY(at_least("rows", p.rows, 0));
  FOVEA_TRY(at_least("heads", p.heads, 1));
  FOVEA_TRY(at_least("elements", p.elements, 0));
  FOVEA_TRY(given("in", p.in));
  return given("out", p.out);
}

Status check_params(const PageTableToCsrParams& p, const OpsLimits&) {
  FOVEA_TRY(at_least("rows", p.rows, 0));
  FOVEA_TRY(at_least("block_size", p.block_size, 1));
  FOVEA_TRY(at_least("table_stride", p.table_stride, 0));
  FOVEA_TRY(at_least("capacity", p.capacity, 0));
  return given("indptr", p.indptr);
}

Status check_params(const CsrToPageTableParams& p, const OpsLimits&) {
  FOVEA_TRY(at_least("rows", p.rows, 0));
  FOVEA_TRY(at_least("block_size", p.block_size, 1));
  FOVEA_TRY(at_least("table_stride", p.table_stride, 0));
  return given("indptr", p.indptr);
}

Status check_params(const KvWriteParams& p, const OpsLimits& limits) {
  FOVEA_TRY(in_range("tokens", p.tokens, 0, limits.max_rows));
  FOVEA_TRY(check_kv(p.kv, limits, true));
  FOVEA_TRY(in_range("num_heads", p.num_heads, 0, limits.num_heads));
  FOVEA_TRY(in_range("rope_dim", p.rope_dim, 0, p.kv.head_dim));
  if (p.rope_dim % 2) return bad("rope_dim", p.rope_dim, "even");
  FOVEA_TRY(check_rows_dtype(p.dtype));
  if (p.num_heads > 0) FOVEA_TRY(given("q", p.q));
  FOVEA_TRY(given("k", p.k));
  FOVEA_TRY(given("v", p.v));
  if (p.rope_dim > 0) {
    FOVEA_TRY(given("cos", p.cos));
    FOVEA_TRY(given("sin", p.sin));
  }
  FOVEA_TRY(given("slot_mapping", p.slot_mapping));
  return p.codes ? check_codec(p.codes->codec) : Status();
}

Status check_params(const EncodeCodesParams& p, const OpsLimits& limits) {
  FOVEA_TRY(in_range("tokens", p.tokens, 0, limits.max_rows));
  FOVEA_TRY(check_kv(p.kv, limits, false));
  FOVEA_TRY(given("slot_mapping", p.slot_mapping));
  FOVEA_TRY(given("codes.codes", p.codes.codes));
  return check_codec(p.codes.codec);
}

Status check_params(const HashEncodeParams& p, const OpsLimits&) {
  FOVEA_TRY(at_least("rows", p.rows, 0));
  FOVEA_TRY(check_codec(p.codec));
  FOVEA_TRY(given("x", p.x));
  if (p.codec.length_factor) FOVEA_TRY(given("factors", p.factors));
  return given("codes", p.codes);
}

Status check_params(const HammingScoresParams& p, const OpsLimits& limits) {
  FOVEA_TRY(in_range("rows", p.rows, 0, limits.max_decode_rows));
  FOVEA_TRY(check_heads(p.num_heads, p.kv_heads, limits));
  FOVEA_TRY(check_block_size(p.block_size));
  FOVEA_TRY(check_codec(p.codes.codec));
  if (p.codes.codec.asymmetric) return Status::invalid_argument("codes.codec is asymmetric: hash_select alone scores these");
  FOVEA_TRY(at_least("max_blocks", p.max_blocks, 0));
  FOVEA_TRY(given("query_codes", p.query_codes));
  FOVEA_TRY(given("row_seq", p.row_seq));
  FOVEA_TRY(given("row_len", p.row_len));
  FOVEA_TRY(given("table.slots", p.table.slots));
  FOVEA_TRY(given("codes.codes", p.codes.codes));
  return given("scores", p.scores);
}

Status check_params(const HashSelectParams& p, const OpsLimits& limits) {
  FOVEA_TRY(check_choice(p, limits));
  FOVEA_TRY(check_heads(p.num_heads, p.kv_heads, limits));
  FOVEA_TRY(in_range("max_len", p.max_len, 0, limits.max_len));
  FOVEA_TRY(given("q", p.q));
  FOVEA_TRY(given("row_seq", p.row_seq));
  FOVEA_TRY(given("table.slots", p.table.slots));
  FOVEA_TRY(given("codes.codes", p.codes.codes));
  return check_codec(p.codes.codec);
}

Status check_params(const BlockTopkParams& p, const OpsLimits& limits) {
  FOVEA_TRY(check_choice(p, limits));
  FOVEA_TRY(at_least("max_blocks", p.max_blocks, 0));
  return given("scores", p.scores);
}

namespace {

Status check_tiles(const XAttentionParams& p, const OpsLimits& limits) {
  if (limits.xattention_stride == 0) return Status::invalid_argument("prepare() was told of no call: xattention_stride is 0");
  FOVEA_TRY(check_heads(p.num_heads, p.kv.kv_heads, limits));
  if (p.block_size != 64 && p.block_size != 128) return bad("block_size", p.block_size, "64 or 128");
  FOVEA_TRY(at_least("top_k", p.top_k, 0));
  FOVEA_TRY(at_least("sink_blocks", p.sink_blocks, 0));
  FOVEA_TRY(at_least("recent_blocks", p.recent_blocks, 1));
  FOVEA_TRY(at_least("capacity", p.capacity, 1));
  FOVEA_TRY(given("tile_seq", p.tile_seq));
  FOVEA_TRY(given("tile_indptr", p.tile_indptr));
  FOVEA_TRY(given("threshold", p.threshold));
  FOVEA_TRY(given("units", p.units));
  return given("counts", p.counts);
}

constexpr int32_t kMostArrays = 65535;  // batch * heads of one call: a grid's third side
constexpr int32_t kMostCells = 1024;    // of a block, and tokens of a cell

Status check_chunk(int32_t start, int32_t end, int32_t rows) {
  FOVEA_TRY(at_least("chunk_start", start, 0));
  return end - start == rows ? Status()
                             : bad("chunk_end", end, "chunk_start and the " + std::to_string(rows) + " cells of the query");
}

}  // namespace

Status check_params(const XAttentionParams& p, const OpsLimits& limits) {
  FOVEA_TRY(check_tiles(p, limits));
  FOVEA_TRY(check_kv(p.kv, limits, false));
  FOVEA_TRY(in_range("stride", p.stride, limits.xattention_stride, 64));
  if (p.stride < 4 || !std::has_single_bit(static_cast<unsigned>(p.stride))) {
    return bad("stride", p.stride, "a power of two in [4, 64]");
  }
  if (!(p.norm > 0)) return Status::invalid_argument("norm is " + std::to_string(p.norm) + ", not above 0");
  return given("q", p.q);
}

Status check_params(const XAttentionChoiceParams& p, const OpsLimits& limits) {
  FOVEA_TRY(check_tiles(p, limits));
  return given("sums", p.sums);
}

Status check_params(const FlatGroupGemmParams& p, const OpsLimits&) {
  FOVEA_TRY(in_range("batch", p.batch, 0, kMostArrays));
  FOVEA_TRY(at_least("kv_heads", p.kv_heads, 1));
  FOVEA_TRY(in_range("heads", p.heads, p.kv_heads, kMostArrays / std::max(1, p.batch)));
  if (p.heads % p.kv_heads) return bad("heads", p.heads, "a multiple of kv_heads, " + std::to_string(p.kv_heads));
  FOVEA_TRY(at_least("q_len", p.q_len, 0));
  FOVEA_TRY(at_least("kv_len", p.kv_len, 0));
  FOVEA_TRY(check_head_dim("head_dim", p.head_dim, kMaxHeadDim));
  FOVEA_TRY(check_rows_dtype(p.dtype));
  FOVEA_TRY(in_range("stride", p.stride, 2, kMostCells));
  FOVEA_TRY(check_chunk(p.chunk_start, p.chunk_end, p.q_cells()));
  FOVEA_TRY(given("query_states", p.query_states));
  FOVEA_TRY(given("key_states", p.key_states));
  return given("attn_weights", p.attn_weights);
}

Status check_params(const SoftmaxBlockSumParams& p, const OpsLimits&) {
  FOVEA_TRY(in_range("batch", p.batch, 0, kMostArrays));
  FOVEA_TRY(in_range("heads", p.heads, 1, kMostArrays / std::max(1, p.batch)));
  FOVEA_TRY(at_least("rows", p.rows, 0));
  FOVEA_TRY(at_least("cols", p.cols, 0));
  FOVEA_TRY(in_range("reshaped_block_size", p.reshaped_block_size, 1, kMostCells));
  FOVEA_TRY(at_least("segment_size", p.segment_size, p.reshaped_block_size));
  FOVEA_TRY(check_chunk(p.chunk_start, p.chunk_end, p.rows));
  FOVEA_TRY(at_least("real_q_len", p.real_q_len, 0));
  if (!(p.scale > 0)) return Status::invalid_argument("scale is " + std::to_string(p.scale) + ", not above 0");
  FOVEA_TRY(given("attn_weights_slice", p.attn_weights_slice));
  return given("block_sums", p.block_sums);
}

Status check_params(const IndexTopkParams& p, const OpsLimits& limits) {
  FOVEA_TRY(in_range("heads", p.heads, 1, limits.index_heads));
  FOVEA_TRY(in_range("keys.dim", p.keys.dim, 1, limits.index_dim));
  FOVEA_TRY(in_range("rows", p.rows, 0, std::max(limits.max_rows, limits.max_decode_rows)));
  FOVEA_TRY(in_range("topk", p.topk, 1, std::min(limits.index_topk, p.out.capacity)));
  FOVEA_TRY(in_range("max_len", p.max_len, 0, limits.max_len));
  if (p.out.space != IndexSpace::position) return Status::invalid_argument("out.space is not position");
  if (p.out.rows != p.rows) return bad("out.rows", p.out.rows, std::to_string(p.rows) + ", the rows");
  if (p.mapped.indices && p.mapped.space == IndexSpace::position) return Status::invalid_argument("mapped.space is position");
  if (p.mapped.indices && p.mapped.space == IndexSpace::ragged) FOVEA_TRY(given("ragged_start", p.ragged_start));
  FOVEA_TRY(given("q", p.q));
  FOVEA_TRY(given("weights", p.weights));
  FOVEA_TRY(given("row_len", p.row_len));
  return given("out.indices", p.out.indices);
}

}  // namespace fovea
