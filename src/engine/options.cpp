#include "engine/engine_impl.h"

#include "text/jinja/model_chat.h"

#include <string>

namespace fovea {
namespace {

Status bad(const char* flag, const std::string& value, const char* want) {
  return Status::invalid_argument(std::string(flag) + " " + value + ": must be " + want);
}

}  // namespace

Status check_options(const EngineOptions& o) {
  if (o.device != "auto" && o.device != "cpu" && o.device != "cuda") return bad("--device", o.device, "auto, cpu or cuda");
  if (o.block_size < 8 || o.block_size > 256 || (o.block_size & (o.block_size - 1)))
    return bad("--block-size", std::to_string(o.block_size), "a power of two from 8 to 256");
  if (!is_kv_dtype(o.kv_cache_dtype))
    return bad("--kv-cache-dtype", std::string(dtype_name(o.kv_cache_dtype)), "bf16, f16, f32, fp8_e4m3 or fp8_e5m2");
  if (!o.kv_scales.empty() && !is_fp8(o.kv_cache_dtype))
    return Status::invalid_argument("--kv-scales " + o.kv_scales + ": a KV cache of " + std::string(dtype_name(o.kv_cache_dtype)) +
                                    " has no scales; they are for --kv-cache-dtype fp8");
  FOVEA_TRY(parse_variables(o.chat_template_kwargs, "--template-kwargs").status());
  if (o.kv_cache_memory_bytes < 0) return bad("--kv-cache-memory", std::to_string(o.kv_cache_memory_bytes), ">= 0");
  if (o.kv_host_memory_bytes < 0) return bad("--kv-host-memory", std::to_string(o.kv_host_memory_bytes), ">= 0");
  if (o.kv_tokens < 0 || o.kv_tokens > INT32_MAX / 2) return bad("--kv-tokens", std::to_string(o.kv_tokens), "from 1 to 2^30");
  if (o.swap_space_bytes < 0) return bad("--swap-space", std::to_string(o.swap_space_bytes), ">= 0");
  if (o.max_model_len < 0 || o.max_model_len > INT32_MAX / 2)
    return bad("--max-model-len", std::to_string(o.max_model_len), "from 1 to 2^30");
  if (o.max_num_batched_tokens < 0 || o.max_num_batched_tokens > 65536)
    return bad("--max-num-batched-tokens", std::to_string(o.max_num_batched_tokens), "from 1 to 65536 (0: by the device)");
  if (o.max_num_seqs < 1 || o.max_num_seqs > 4096) return bad("--max-num-seqs", std::to_string(o.max_num_seqs), "from 1 to 4096");
  if (o.threads < 0 || o.threads > 1024) return bad("--threads", std::to_string(o.threads), "from 1 to 1024 (0: all cores)");
  if (o.sparse_min_context < 0) return bad("--sparse-min-context", std::to_string(o.sparse_min_context), ">= 0");
  if (o.max_step_kv_blocks < 0) return bad("--max-step-kv-blocks", std::to_string(o.max_step_kv_blocks), ">= 0");
  if (!o.kv_store.dir.empty() && o.kv_store.size_bytes < 1)
    return bad("--kv-store-size", std::to_string(o.kv_store.size_bytes), ">= 1");
  if (!o.kv_store.dir.empty() && !o.enable_prefix_caching)
    return Status::invalid_argument("--kv-store " + o.kv_store.dir + ": it keeps cached blocks; --no-prefix-caching keeps none");
  if (o.sparse_extend_max_tokens < 0) return bad("--sparse-extend-max-tokens", std::to_string(o.sparse_extend_max_tokens), ">= 0");
  return {};
}

}  // namespace fovea
