// What a model is: config.json (+ generation_config.json) as transformers 4 and 5 write them, or the metadata of a GGUF file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/kernels/moe.h>
#include <fovea/status.h>

namespace fovea {

enum class Arch { llama, qwen2, qwen3, deepseek_v2, deepseek_v3, deepseek_v32, glm_moe_dsa };

enum class RopeKind {
  none_scaling,
  linear,
  llama3,
  yarn,
  divided  // each frequency by a number of its own: how GGUF files write llama3
};

std::string_view arch_name(Arch arch);           // "llama"
std::string_view rope_kind_name(RopeKind kind);  // "default", "linear", "llama3", "yarn": config.json's words; "divided"

// Rotary embedding, every optional field resolved to the value that transformers would use.
struct RopeConfig {
  double theta = 10000.0;
  RopeKind kind = RopeKind::none_scaling;
  double factor = 1.0;                 // linear, llama3, yarn
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  double original_max_position = 0.0;  // llama3, yarn: tokens of the model's first training
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  bool truncate = true;                // yarn: the ramp's ends are rounded to whole dimensions
  double attention_factor = 1.0;       // yarn: cos and sin are multiplied by it (mscale is in it already)
  std::vector<float> divisors;         // divided: [head_dim / 2]
  double mscale_all_dim = 0.0;         // linear, llama3, yarn: DeepSeek's models scale scores by it; 0: they do not
};

// 0.1 * mscale * ln(factor) + 1; 1 where factor <= 1.
double yarn_mscale(double factor, double mscale);

// What DeepSeek's models and GLM-5 have beyond a dense model: multi-head latent attention, a mixture of experts, and from V3.2 on
// the lightning indexer (docs/algorithms.md, "DSA").
struct DeepseekConfig {
  // Latent attention. A token's cache entry is kv_lora_rank latent numbers, then rope_dim shared by all heads.
  int32_t q_lora_rank = 0;  // 0: one matrix makes queries of the hidden state
  int32_t kv_lora_rank = 0;
  int32_t nope_dim = 0;          // qk_nope_head_dim
  int32_t rope_dim = 0;          // qk_rope_head_dim, even
  int32_t v_dim = 0;             // v_head_dim
  bool rope_interleaved = true;  // pairs (2i, 2i + 1)
  float softmax_scale = 0;       // (nope_dim + rope_dim)^-0.5, times mscale^2 where the rope has mscale_all_dim
  // Indexer. Its first rope_dim dimensions are turned too.
  int32_t index_heads = 0;  // 0: the model has none
  int32_t index_dim = 0;
  int32_t index_topk = 0;  // tokens a query attends to
  bool index_rope_interleaved = false;
  std::vector<uint8_t> layer_indexes;  // [num_layers] 1: the layer has an indexer; 0: it takes the choice of the
                                       // nearest layer before it that has one. The first is 1, or all are 0
  // Feed-forward.
  std::vector<uint8_t> layer_moe;  // [num_layers] 1: experts; 0: a dense block of intermediate_size
  int32_t experts = 0;             // routed
  int32_t shared_experts = 0;      // one block of shared_experts * moe_intermediate
  int32_t experts_per_token = 0;
  int32_t moe_intermediate = 0;
  ExpertScoring scoring = ExpertScoring::sigmoid;
  bool router_bias = true;    // e_score_correction_bias
  int32_t expert_groups = 1;  // divides experts into groups of group_top at least
  int32_t top_groups = 1;     // groups that a token may choose experts from
  int32_t group_top = 2;      // a group is judged by the sum of its best ones
  float routed_scaling = 1;
  bool normalize_weights = true;  // norm_topk_prob

  int32_t qk_dim() const { return nope_dim + rope_dim; }
  int32_t latent_dim() const { return kv_lora_rank + rope_dim; }
  int32_t shared_intermediate() const { return shared_experts * moe_intermediate; }
};

// generation_config.json: the model's own defaults, for a user who sets none.
struct SamplingDefaults {
  std::optional<bool> do_sample;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
};

// What quantization_config says of a model's matrices; quantization.h has what becomes of them.
struct QuantizationConfig {
  enum class Method : uint8_t { fp8, gptq, awq, compressed_tensors };
  Method method = Method::fp8;
  int64_t block_rows = 0, block_cols = 0;  // fp8: of weight_block_size; 0: none is stated
  int64_t group = 0;                       // gptq, awq: columns of a group; 0: all
  bool zeros_less_one = false;             // gptq: zeros are stored less one
};

struct ModelConfig {
  Arch arch = Arch::llama;
  std::string architecture;  // as written: "Qwen3ForCausalLM"
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_heads = 0;     // query heads, a multiple of num_kv_heads
  int32_t num_kv_heads = 0;  // 1 with latent attention
  int32_t head_dim = 0;      // a multiple of 16 in [64, 256]; with latent attention latent_dim()
  int32_t vocab_size = 0;
  int64_t max_position_embeddings = 0;  // tokens
  float rms_norm_eps = 1e-6f;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMS norm of each head's q and k before the rotary embedding
  bool tie_word_embeddings = false;
  RopeConfig rope;
  int32_t sliding_window = 0;           // tokens a query sees, itself among them, in windowed layers; 0: no such layer
  std::vector<uint8_t> layer_windowed;  // [num_layers], 1: the layer uses sliding_window
  std::vector<int32_t> eos_token_ids;   // any of them ends an answer; may be empty
  std::optional<int32_t> bos_token_id, pad_token_id;
  std::string stored_dtype;  // config's torch_dtype or dtype ("bfloat16"); may be empty. The weights' own
                             // dtype decides
  SamplingDefaults sampling;
  std::optional<QuantizationConfig> quantization;
  std::optional<DeepseekConfig> deepseek;  // of a model with latent attention, which has no biases but qkv_bias and o_bias

  int32_t rope_dim() const { return deepseek ? deepseek->rope_dim : head_dim; }
  int32_t q_size() const { return num_heads * head_dim; }
  int32_t kv_size() const { return num_kv_heads * head_dim; }
};

// Pure. `name` leads every error. Errors: corrupt (not JSON, a field missing or of a wrong kind or value),
// unsupported (well formed, but an architecture, rope kind, activation or quantization this build does not
// know).
Result<ModelConfig> parse_model_config(std::string_view json, const std::string& name);

// Overrides `config` with what generation_config.json states. Pure.
Status apply_generation_config(std::string_view json, const std::string& name, ModelConfig* config);

// Refuses heads of a size that attention is not built for, naming `where`: unsupported.
Status check_head_dim(const std::string& where, int64_t head_dim);

// Of a directory: config.json, and generation_config.json where there is one. Of a GGUF file: its metadata.
Result<ModelConfig> load_model_config(const std::string& model);

}  // namespace fovea
