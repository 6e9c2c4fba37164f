// Options of an engine. Names are those of vLLM's and llama.cpp's flags, so that users know them.
#pragma once

#include <fovea/kernels/weight.h>
#include <fovea/store.h>
#include <fovea/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fovea {

// What represents a block when GSA scores it (docs/methods.md, "Representations").
enum class GsaRepresentation : uint8_t {
  hash,       // the codes of its tokens' keys
  mean,       // the mean of its keys
  minmax,     // the box around its keys
  recency,    // how often it was selected and how late it stands; ignores the query
  mean_hash,  // one code of its mean key
  oracle,     // the attention mass it holds: reads every key, to compare with
};

// How hash codes are compared (docs/hash-selection.md).
enum class GsaCodes : uint8_t {
  symmetric,   // signs of the query with signs of the key
  asymmetric,  // the query in 4 bits a dimension with signs of the key: as many answers with half the bytes
};

// Where hash codes lie and are compared in a run on a GPU.
enum class GsaScoring : uint8_t {
  device,
  host,  // in RAM, by the CPU's kernels; block numbers alone travel. For large batches where device memory is scarce
};

// How a layer's budget, KV heads times k blocks, is divided among its heads (docs/algorithms.md).
enum class BudgetSplit : uint8_t {
  equal,  // k each
  mass,   // by the attention mass that scores estimate, k / 4 to 4 k each
};

// What attention does about a block that is still on its way from a store.
enum class LatePolicy : uint8_t {
  exact,        // waits
  best_effort,  // leaves it out, and counts that
};

// Options of the GSA family (UCM's names and defaults; docs/algorithms.md says where ours differ).
struct GsaOptions {
  double sparse_ratio = 0.3;    // share of blocks kept when there is no token budget
  int32_t budget_tokens = 0;    // tokens kept; 0: by ratio
  int32_t init_window_sz = 1;   // first blocks, always kept
  int32_t local_window_sz = 2;  // last blocks, always kept (the partial one is the last)
  int32_t min_blocks = 4;
  GsaCodes codes = GsaCodes::asymmetric;          // of `hash`; other representations have no codes of tokens
  bool length_factor = false;                     // asymmetric codes alone: each key's length too, 2 bytes a token and KV head
  GsaScoring scoring = GsaScoring::device;        // of hash codes on a GPU; on a CPU the host is the device
  BudgetSplit budget_split = BudgetSplit::equal;  // mass: of asymmetric codes with length_factor alone, scored by a CPU
  double top_p = 0;       // a head stops once its blocks hold this share of its estimated mass; 0: never. Likewise
  int32_t hash_bits = 0;  // a multiple of 64 up to 256; 0: asymmetric codes head_dim rounded up to a power of two, others 128
  uint64_t hash_seed = 7;
  bool average_group = false;          // average the query over the group before encoding
  bool share_heads = false;            // one selection for all KV heads
  std::vector<int32_t> dense_layers;   // layers that read everything
  std::vector<int32_t> reuse_layers;   // layers that reuse the selection of the nearest layer before them
  bool overlap = false;                // the scores of one step select for the next
  bool prefetch = true;                // name blocks that later steps will want; false: retrieval on demand (ESA's way)
  int32_t prefetch_ahead = 2;          // steps for which a choice counts as a guess of the next ones
  int32_t prefetch_workers = 4;        // threads that read a store where io_uring is refused
  int32_t max_pending_prefetch = 64;   // queued tasks
  int32_t prefetch_cache_size = 1000;  // blocks
  LatePolicy late_policy = LatePolicy::exact;
  GsaRepresentation representation = GsaRepresentation::hash;  // gsa alone
};

// Options of XAttention (its published names and defaults; docs/xattention.md).
struct XAttentionOptions {
  int32_t stride = 16;                          // tokens of a cell: 4, 8, 16, 32 or 64; 8 sees more, at twice the cost
  int32_t block_size = 128;                     // tokens of a block that is read or not: 64 or 128
  double norm = 1.0;                            // divides the estimate's scores: above 1 spreads them
  double threshold = 0.9;                       // share of a row of blocks' estimated sum that is read; 1: everything
  std::vector<std::vector<double>> thresholds;  // [layer][head], or [layer][1]; empty: `threshold` everywhere
  int32_t top_k = 0;                            // blocks that a tile of queries reads, instead of a share; 0: by threshold
  int32_t sink_blocks = 1;                      // first blocks, always read
  int32_t recent_blocks = 1;                    // blocks up to the tile's own, always read
  bool group_vote = false;                      // one list per KV head: the blocks that half of its query heads selected
  int64_t min_context = 4096;                   // tiles of 128 tokens that end at or below it are read densely
};

// Options of DSA, the indexer of DeepSeek-V3.2 and GLM-5 (docs/dsa.md).
struct DsaOptions {
  IndexPrecision precision = IndexPrecision::exact;  // of index keys and queries
  int32_t topk = 0;                                  // tokens a row reads; 0: the model's index_topk, which is also the most
  bool materialize = false;                          // write the scores out, in chunks (the oracle of the streaming choice)
  int64_t prefix_chunk_capacity = 131072;            // most tokens of a chunk of prefixes that are read whole, over the whole batch
};

// One configuration of a method, held ready by the engine; a request picks it by its label.
struct MethodOptions {
  std::string name = "dense";  // dense, dsa, gsa, gsa_on_device, xattention
  std::string label;           // unique in an engine; empty: the name
  GsaOptions gsa;
  XAttentionOptions xattention;
  DsaOptions dsa;
};

// Contexts that do not fit the KV pool.
enum class OffloadChoice : uint8_t {
  automatic,  // as `on` where one does not fit and something lies below the pool; else as `off`
  on,         // the pool keeps what is read most; K and V lie complete in a store or in host memory
  off,        // a prompt larger than the pool is refused
};

// How linear layers multiply. Attention scores and softmax are float32 in all.
enum class NumericsChoice : uint8_t {
  automatic,  // bf16 where the hardware multiplies it, else f32; but where weights are quantised (fp8 apart) a CPU rounds rows of
              // answers to int8, up to 16 in a step: those are kept for no other request
  f32,        // nothing is rounded
  bf16,       // as automatic
  int8,       // on a CPU: as automatic, and prompts are rounded to int8 likewise. Cached blocks are not those of other modes
  fp8,        // on a GPU: as bf16, and more than 16 rows are rounded to e4m3 where weights are fp8. Cached blocks likewise
};

struct EngineOptions {
  std::string model_dir;               // a directory, or a GGUF file (of several parts the first)
  std::string device = "auto";         // auto (a GPU if there is one), cpu, cuda
  int32_t block_size = 16;             // tokens a KV block holds
  DType kv_cache_dtype = DType::bf16;  // bf16, f16, f32, fp8_e4m3 or fp8_e5m2
  std::string kv_scales;               // file of an fp8 cache's scales (calibrate.h); empty: the checkpoint's, or 1
  int64_t kv_cache_memory_bytes = 0;   // most bytes of KV (all planes); 0: what max_num_seqs and memory allow
  OffloadChoice kv_offload = OffloadChoice::automatic;
  int64_t kv_host_memory_bytes = 0;             // of a tier of blocks below the pool, in host memory; 0: none
  int64_t kv_tokens = 0;                        // most tokens of contexts that are larger than the pool; 0: max_model_len
  int64_t swap_space_bytes = int64_t{4} << 30;  // RAM outside the pool for preempted sparse sequences
  int64_t max_model_len = 0;                    // 0: the model's max_position_embeddings
  int32_t max_num_batched_tokens = 0;           // tokens of one step, the chunk of a prefill; 0: 512 on a CPU, 2048 on a GPU
  int32_t max_num_seqs = 64;                    // sequences of one step
  int32_t threads = 0;                          // 0: the cores this process may use
  NumericsChoice numerics = NumericsChoice::automatic;
  std::vector<MethodOptions> methods = {MethodOptions{}};  // "dense" is always there
  // For requests that name none: labels, or names of methods with their default options. auto: what the model was trained
  // for (dense, but for models with an indexer).
  std::string decode_method = "auto";      // of questions and answers
  std::string prefill_method = "auto";     // of prompts
  int32_t sparse_min_context = 1024;       // below: dense, whatever the method
  int32_t sparse_extend_max_tokens = 256;  // a question up to this long goes through the decode method
  int64_t max_step_kv_blocks = 0;          // most KV blocks that a step's decode rows read together; 0: no limit
  bool enable_prefix_caching = true;
  StoreOptions kv_store;       // where cached blocks outlive the pool and the process; no dir: nowhere
  bool dummy_weights = false;  // random weights of config.json's shape (benchmarks)
  WeightType dummy_weight_type = WeightType::bf16;
  uint64_t seed = 0;                 // of dummy weights and of unseeded sampling
  std::string chat_template_kwargs;  // a JSON object of template variables for every prompt: {"enable_thinking": false}
  std::string tenant_salt;           // part of every block's key
  bool use_reference_ops = false;    // the scalar kernels (tests)
  bool cuda_graphs = true;           // decode steps replay captured graphs
};

}  // namespace fovea
