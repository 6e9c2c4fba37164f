// Ops: every numeric operation of a forward pass, behind one interface. One plain Params struct per operation.
//
// Pointers are device memory of the backend (host memory for ref and cpu), arrays of lengths, indices and counts among
// them; the Params structs themselves, Selection and LinearParams::weights are host memory, read before the call returns.
// Shapes are row-major, innermost last; T is the number of token rows, H query heads, KV heads, d head_dim, bs block size
// in tokens. Activations are float32.
// Operations are enqueued on `stream` in order; on the CPU they are finished when the call returns. They allocate
// nothing and wait for nothing: prepare() sizes all scratch once, and what a launch looks like follows from the plain
// numbers of Params alone, never from an array, so that a captured launch replays with other lengths.
// Input that violates a stated bound is a bug and asserts (where the host can see it).
#pragma once

#include <fovea/dsa_ops.h>
#include <fovea/mla_ops.h>
#include <fovea/selection.h>
#include <fovea/status.h>
#include <fovea/types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace fovea {

class Stream;

// How linear layers multiply. Attention scores and softmax are float32 in both.
enum class Numerics : uint8_t {
  f32,   // float32 activations, weights widened exactly: what goldens hold in
  bf16,  // activations rounded to bf16, float32 accumulation: AMX or AVX-512 bf16, tensor cores
};

// ---- KV memory of one layer --------------------------------------------------------------------------------------

enum class KvLayout : uint8_t {
  hnd,      // K and V: [num_blocks, kv_heads, bs, d]; natural for per-head block selection, the default
  classic,  // K: [num_blocks, kv_heads, d/x, bs, x] with x = 16 / sizeof(element); V: [num_blocks, kv_heads, d, bs]
};

// Logical block -> physical slot. The entry of sequence s, KV head h, logical block b is
// slots[s * seq_stride + h * head_stride + b]; head_stride 0 is one table shared by all heads.
struct PageTableView {
  const int32_t* slots = nullptr;  // [seqs, max_blocks] (x kv_heads where head_stride != 0); entries beyond a length: any
  int64_t seq_stride = 0;
  int64_t head_stride = 0;
};

struct KvView {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::bf16;      // bf16, f16, f32; fp8_e4m3 on ref and cuda
  KvLayout layout = KvLayout::hnd;
  int32_t block_size = 16;        // tokens, a power of two in [8, 256]
  int32_t kv_heads = 0;
  int32_t head_dim = 0;           // d, a multiple of 16 in [64, 256] (any multiple of 8 in ref)
  int64_t block_stride = 0;       // elements from a slot to the next, K and V alike
  int64_t head_stride = 0;        // elements from a KV head to the next
  const float* k_scale = nullptr;  // [kv_heads] or null (1): quantised KV only
  const float* v_scale = nullptr;
  PageTableView table;
};

// ---- Attention ---------------------------------------------------------------------------------------------------

// Paged attention over a Selection (docs/algorithms.md, "Paged attention").
// Sequence s owns query rows [q_indptr[s], q_indptr[s+1]); the last of them sits at position seq_len[s] - 1, the one
// before at seq_len[s] - 2, and so on; each row sees the keys at positions <= its own. A sequence may have no rows.
// out = softmax(soft_cap(q k^T * scale) + alibi) v over the selected keys; a row that sees no key gives out = 0 and
// lse = -inf: also a row of a sequence of length 0, which pads a batch (decode only). Keys beyond the row's position are never
// multiplied: NaN there changes nothing. (cuda's paged_prefill keeps to that for keys beyond the last row of a tile; a V that is
// NaN at a key which only later rows of the tile see reaches its earlier rows too.)
struct AttentionParams {
  const float* q = nullptr;         // [T, H, d], post-rope
  float* out = nullptr;             // [T, H, d]
  float* lse = nullptr;             // [T, H] natural log of sum exp of the scaled, capped, biased scores; or null
  int32_t num_heads = 0;            // H, a multiple of kv.kv_heads
  int32_t rows = 0;                 // T = q_indptr[num_seqs]
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1]
  const int32_t* seq_len = nullptr;   // [num_seqs] keys of the sequence, its own rows included; 0: its rows see nothing
  int64_t max_len = 0;              // >= every seq_len; 0: OpsLimits::max_len
  KvView kv;
  float scale = 1.0f;               // usually d^-0.5
  float soft_cap = 0.0f;            // 0: none; else c * tanh(x / c), before bias and masks
  int32_t window = 0;               // 0: none; else a row at position p sees keys in (p - window, p]
  const float* alibi_slopes = nullptr;  // [H] or null; adds slope * (key_pos - query_pos)
  const Selection* selection = nullptr;  // null or Kind::all: dense
  // Counts what was read: adds, for each row, its (key, KV head) pairs whose K and V were loaded for it. cuda only
  // (elsewhere the host sees the Selection itself); null: not counted.
  int64_t* keys_read = nullptr;     // [T]
};

// ---- Rope, norm of q and k, cache write, hash codes: one pass ----------------------------------------------------

// Sign-rotation hash of a head vector (docs/algorithms.md, "Rotation and code"): `rotations` rotations of n bits each, n = d rounded up to a power
// of two; each is three rounds of (signs, Walsh-Hadamard); bits = sign; truncated to `bits`.
struct HashCodec {
  int32_t head_dim = 0;
  int32_t bits = 0;              // 64, 128 or 256
  int32_t n = 0;                 // power of two >= head_dim
  int32_t rotations = 0;         // ceil(bits / n)
  const float* signs = nullptr;  // [rotations, 3, n], each +1 or -1, in the order applied
};

// Plane `codes` of one layer: [num_blocks, kv_heads, words, bs] u64, words = bits / 64, indexed by BlockId (resident),
// word-major inside a block so that one vector holds a word of many tokens.
struct CodesView {
  uint64_t* codes = nullptr;
  int64_t block_stride = 0;  // u64 elements
  int64_t head_stride = 0;   // u64 elements
  HashCodec codec;
};

struct KvWriteParams {
  int32_t tokens = 0;          // T
  int32_t num_heads = 0;
  float* q = nullptr;          // [T, H, d] in: projection; out: normed and rotated, in place
  const float* k = nullptr;    // [T, kv_heads, d] projection
  const float* v = nullptr;    // [T, kv_heads, d]
  const float* q_norm = nullptr;  // [d] RMSNorm weight per head, or null
  const float* k_norm = nullptr;  // [d] or null
  float norm_eps = 1e-6f;
  int32_t rope_dim = 0;         // first rope_dim of d are rotated; 0: none
  bool rope_interleaved = false;  // false: pairs (i, i + rope_dim/2), as Llama; true: (2i, 2i+1)
  const float* cos = nullptr;   // [T, rope_dim / 2], attention scaling included
  const float* sin = nullptr;   // [T, rope_dim / 2]
  const int64_t* slot_mapping = nullptr;  // [T] slot * bs + offset; -1: do not write this token
  KvView kv;                    // kv.table is not used
  const int64_t* code_mapping = nullptr;  // [T] block * bs + offset for codes; null: slot_mapping
  const CodesView* codes = nullptr;       // null: no codes. Encodes k after rounding to the cache dtype.
};

// ---- Selection by hash codes ----------------------------------------------------------------------------------------

// For each query row r: encode its H query heads, score[kv_head, block] = max over the block's tokens at positions
// < row_len[r] and over the group's heads of (bits - 2 * hamming), then keep k[r] blocks: the first `init_blocks`, the last
// `local_blocks` (the partial one is the last), the rest by score, ties to the lower index; ascending. k[r] >= blocks: all.
struct HashSelectParams {
  int32_t rows = 0;
  int32_t num_heads = 0;
  int32_t kv_heads = 0;
  int32_t block_size = 16;
  const float* q = nullptr;           // [rows, H, d], post-rope
  const int32_t* row_seq = nullptr;   // [rows] row of the page table
  const int32_t* row_len = nullptr;   // [rows] keys visible to the row; 0 pads a batch: its counts become 0
  const int32_t* k = nullptr;         // [rows] blocks to keep, >= 1, <= capacity
  int32_t init_blocks = 1;
  int32_t local_blocks = 2;
  bool average_group = false;         // average the query over the group before encoding
  bool share_heads = false;           // one selection over all KV heads (score = max over them); groups = 1
  int32_t max_len = 0;                // >= every row_len: bounds scratch
  CodesView codes;
  PageTableView table;                // block table (codes are indexed by BlockId)
  int32_t* units = nullptr;           // out [rows, groups, capacity]
  int32_t* counts = nullptr;          // out [rows, groups]
  int32_t capacity = 0;
};

// ---- Dense math -----------------------------------------------------------------------------------------------------

struct EmbedParams {
  const void* table = nullptr;  // [vocab, hidden]
  DType dtype = DType::bf16;
  // [T] token ids; an id -1 - i stands for previous[i]: a token sampled by the step before, which no host has read yet.
  const int32_t* ids = nullptr;
  float* out = nullptr;          // [T, hidden]
  int32_t tokens = 0;
  int32_t hidden = 0;
  const int32_t* previous = nullptr;  // null: every id is >= 0
};

// cos and sin of every row's rotary angles: angle = float32(position * inv_freq[i]), both multiplied by `scaling`.
struct RopeAnglesParams {
  const int32_t* positions = nullptr;  // [T]
  const float* inv_freq = nullptr;     // [half]
  float scaling = 1.0f;
  int32_t tokens = 0;
  int32_t half = 0;                    // rope_dim / 2
  float* cos = nullptr;                // [T, half]
  float* sin = nullptr;                // [T, half]
};

// x += add (if given); out = x / rms(x) * weight, over the last dimension. With row_index, row r of out comes of row
// row_index[r] of x and add, and x stays as it is.
struct RmsNormParams {
  float* x = nullptr;            // [rows, dim]; changed only where `add` is given
  const float* add = nullptr;    // [rows, dim] or null
  const float* weight = nullptr;  // [dim]
  float* out = nullptr;          // [rows, dim]; null: only the addition
  int32_t rows = 0;              // of out
  int32_t dim = 0;
  float eps = 1e-6f;
  const int32_t* row_index = nullptr;  // [rows] or null: row r
};

// One product of a group that shares x: out = x W^T + bias.
struct LinearWeight {
  const void* w = nullptr;     // [n, k] row-major, as checkpoints store it, read in place
  DType dtype = DType::bf16;   // bf16, f16, f32
  int32_t n = 0;
  const float* bias = nullptr;  // [n] or null
  float* out = nullptr;        // [rows, n]
};

struct LinearParams {
  const float* x = nullptr;  // [rows, k]
  int32_t rows = 0;
  int32_t k = 0;
  const LinearWeight* weights = nullptr;  // [count], e.g. q, k and v of one layer
  int32_t count = 0;
  // Float32 activations whatever the numerics, and bits that depend on the row alone: for products of few outputs that
  // decide something (an indexer's weights, an expert router). Not on cuda.
  bool full_precision = false;
};

// out = silu(gate) * up
struct SiluMulParams {
  const float* gate = nullptr;  // [rows, dim]
  const float* up = nullptr;    // [rows, dim]
  float* out = nullptr;         // [rows, dim]; may be gate
  int32_t rows = 0;
  int32_t dim = 0;
};

// ---- Sampling -------------------------------------------------------------------------------------------------------

// One token for each row of logits. Steps in transformers' order: repetition penalty (a token seen before: logit > 0 ? /
// penalty : * penalty), temperature, top_k, top_p (the least head of the ranking whose mass reaches top_p; the first
// always stays), min_p (weight relative to the most likely). Then the kept tokens are walked in ascending id until their
// weights exceed uniform * (sum of all). Ranking: by logit, ties to the lower id. temperature 0: the first of the ranking.
struct SampleParams {
  const float* logits = nullptr;  // [.., vocab], unchanged
  int32_t rows = 0;
  int32_t vocab = 0;
  const float* temperature = nullptr;         // [rows], >= 0
  const int32_t* top_k = nullptr;             // [rows], 0: all
  const float* top_p = nullptr;               // [rows], in (0, 1]
  const float* min_p = nullptr;               // [rows], in [0, 1)
  const float* repetition_penalty = nullptr;  // [rows], 1: none
  const float* uniform = nullptr;             // [rows], in [0, 1)
  const int32_t* row_index = nullptr;         // [rows] row of logits (n answers share one), or null: row r
  // Tokens that occurred so far, any order, repeats allowed: history[history_indptr[r]..history_indptr[r+1]). Null: no
  // row has a penalty.
  const int32_t* history = nullptr;
  const int32_t* history_indptr = nullptr;    // [rows + 1]
  int32_t* tokens = nullptr;                  // out [rows]
};

// ---- The interface --------------------------------------------------------------------------------------------------

// The largest of everything one call will see; scratch is sized from it, once.
struct OpsLimits {
  int32_t max_rows = 1;         // T
  int32_t max_decode_rows = 1;  // rows of one paged_decode or hash_select call
  int64_t max_len = 1;          // keys of a sequence
  int32_t num_heads = 1;
  int32_t kv_heads = 1;
  int32_t head_dim = 64;
  int32_t block_size = 16;
  int32_t max_k = 1;            // widest linear input
  int32_t max_n = 1;            // widest linear output
  int32_t max_sample_rows = 1;  // rows of one sample() call
  int32_t vocab = 1;
  MlaShape mla;                 // zero: no MLA operation is called
  MoeLimits moe;                // zero: no MoE operation is called
  int32_t index_heads = 0;      // Hi of the DSA indexer; 0: index_topk is not called
  int32_t index_dim = 0;        // di
  int32_t index_topk = 0;       // most tokens a row chooses
  int32_t xattention_stride = 0;  // least stride of an xattention_select() call; 0: none is made
};

struct BlockSummariesParams;  // fovea/summary_ops.h
struct EncodeCodesParams;
struct SummarySelectParams;
struct AttentionMassParams;
struct BlockTopkParams;
struct XAttentionParams;  // fovea/xattention_ops.h

class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string_view name() const = 0;
  virtual Numerics numerics() const = 0;
  virtual Status prepare(const OpsLimits& limits) = 0;

  virtual void embed(const EmbedParams& p, Stream& stream) = 0;
  virtual void rms_norm(const RmsNormParams& p, Stream& stream) = 0;
  virtual void linear(const LinearParams& p, Stream& stream) = 0;
  virtual void silu_mul(const SiluMulParams& p, Stream& stream) = 0;
  virtual void rope_angles(const RopeAnglesParams& p, Stream& stream) = 0;
  virtual void kv_write(const KvWriteParams& p, Stream& stream) = 0;
  virtual void hash_select(const HashSelectParams& p, Stream& stream) = 0;

  // Each row on its own, memory-bound, split over blocks and merged; splits depend on the row's length alone.
  virtual void paged_decode(const AttentionParams& p, Stream& stream) = 0;
  // Tiles of query rows, compute-bound; a row's result does not depend on which rows share its tile, bit for bit.
  virtual void paged_prefill(const AttentionParams& p, Stream& stream) = 0;
  virtual void sample(const SampleParams& p, Stream& stream) = 0;

  // MLA and MoE: cpu and ref only.
  virtual void mla_write(const MlaWriteParams&, Stream&) { not_of_this_backend("mla_write"); }
  virtual void mla_absorb(const MlaAbsorbParams&, Stream&) { not_of_this_backend("mla_absorb"); }
  virtual void mla_unabsorb(const MlaUnabsorbParams&, Stream&) { not_of_this_backend("mla_unabsorb"); }
  virtual void mla_attend(const MlaAttendParams&, Stream&) { not_of_this_backend("mla_attend"); }
  virtual void mla_gather(const MlaGatherParams&, Stream&) { not_of_this_backend("mla_gather"); }
  virtual void ragged_attend(const RaggedAttentionParams&, Stream&) { not_of_this_backend("ragged_attend"); }
  virtual void lse_merge(const LseMergeParams&, Stream&) { not_of_this_backend("lse_merge"); }
  virtual void moe_route(const MoeRouteParams&, Stream&) { not_of_this_backend("moe_route"); }
  virtual void moe_experts(const MoeExpertsParams&, Stream&) { not_of_this_backend("moe_experts"); }

  // The DSA indexer: cpu and ref only.
  virtual void index_write(const IndexWriteParams&, Stream&) { not_of_this_backend("index_write"); }
  virtual void index_topk(const IndexTopkParams&, Stream&) { not_of_this_backend("index_topk"); }
  virtual void index_transform(const IndexTransformParams&, Stream&) { not_of_this_backend("index_transform"); }

  // Block summaries and what chooses by them: ref and cpu only. A method that needs them refuses other devices.
  virtual void block_summaries(const BlockSummariesParams&, Stream&) { not_of_this_backend("block_summaries"); }
  virtual void encode_codes(const EncodeCodesParams&, Stream&) { not_of_this_backend("encode_codes"); }
  virtual void summary_select(const SummarySelectParams&, Stream&) { not_of_this_backend("summary_select"); }
  virtual void attention_mass(const AttentionMassParams&, Stream&) { not_of_this_backend("attention_mass"); }
  virtual void block_topk(const BlockTopkParams&, Stream&) { not_of_this_backend("block_topk"); }

  // Sparse prefill's choice of blocks: ref and cpu only. A method that needs it refuses other devices.
  virtual void xattention_select(const XAttentionParams&, Stream&) { not_of_this_backend("xattention_select"); }

 protected:
  // Calling an operation that a backend lacks is a bug: whoever needs it asks for the device first.
  [[noreturn]] void not_of_this_backend(const char* op) const {
    std::fprintf(stderr, "fovea: %s: not an operation of backend %s\n", op, std::string(name()).c_str());
    std::abort();
  }
};

}  // namespace fovea

#include <fovea/summary_ops.h>
#include <fovea/xattention_ops.h>
