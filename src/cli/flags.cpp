#include "cli/flags.h"

#include <fovea/method_specs.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fovea::cli {
namespace {

constexpr const char* kEngineGroup = "Engine";
constexpr const char* kSparseGroup = "Sparse attention";

}  // namespace

void EngineFlags::add_to(CLI::App& app, bool methods) {
  const std::string engine = kEngineGroup, kv = "KV cache";
  app.add_option("--model", options_.model_dir,
                 "Model to load: a GGUF file (for a split file, its first part), or a directory with config.json, *.safetensors "
                 "and tokenizer.json")
      ->required();
  app.add_option("--device", options_.device, "Device to run on: cpu, cuda, or auto (a GPU if there is one)")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->group(engine);
  app.add_option("--threads", options_.threads, "Number of worker threads; 0: every core available to this process")
      ->capture_default_str()
      ->group(engine);
  app.add_option(
         "--numerics", numerics_,
         "Arithmetic of linear layers: f32, bf16, auto (bf16 where the hardware supports it), int8 (quantized weights on a CPU; "
         "auto uses int8 for answers only), or fp8 (prompts on a GPU with fp8 weights). Modes do not share cached blocks")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "int8", "fp8"}))
      ->capture_default_str()
      ->group(engine);
  app.add_option("--max-model-len", options_.max_model_len,
                 "Maximum length of a prompt plus its answer, in tokens; 0: the model's own limit")
      ->group(engine);
  app.add_option("--max-num-batched-tokens", options_.max_num_batched_tokens,
                 "Maximum tokens per step: prompts are prefilled in chunks of this size; 0: 512 on a CPU, 2048 on a GPU")
      ->capture_default_str()
      ->group(engine);
  app.add_option("--max-num-seqs", options_.max_num_seqs, "Maximum sequences per step")->capture_default_str()->group(engine);
  app.add_option(
         "--max-step-kv-blocks", options_.max_step_kv_blocks,
         "Maximum KV blocks that the answers of one step may read in total; the other answers wait for the next step. 0: no limit")
      ->capture_default_str()
      ->group(engine);
  app.add_option("--block-size", options_.block_size, "Tokens per KV block: a power of two from 8 to 256")
      ->capture_default_str()
      ->group(kv);
  app.add_option("--kv-cache-dtype", kv_cache_dtype_,
                 "Data type of the KV cache: bf16, f16, f32, fp8 (same as fp8_e4m3) or fp8_e5m2")
      ->check(CLI::IsMember({"bf16", "bfloat16", "f16", "float16", "f32", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "auto"}))
      ->capture_default_str()
      ->group(kv);
  app.add_option("--kv-scales", options_.kv_scales,
                 "Scales for an fp8 KV cache, a file written by `fovea calibrate`; default: the checkpoint's own scales, or 1")
      ->group(kv);
  app.add_option("--kv-cache-memory", kv_cache_memory_,
                 "Maximum memory for the KV cache, e.g. 2G; 0: 60 % of free memory, allocated as needed (on a GPU 90 %, allocated "
                 "at startup)")
      ->transform(CLI::AsSizeValue(false))
      ->group(kv);
  app.add_option("--swap-space", swap_space_, "Memory outside the KV cache for preempted sparse sequences (default 4G)")
      ->transform(CLI::AsSizeValue(false))
      ->group(kv);
  app.add_option(
         "--kv-offload", kv_offload_,
         "Contexts larger than the KV cache: on (the cache keeps the blocks that are read most; the rest goes to --kv-store or "
         "--kv-host-memory), off (reject them), auto (on if a context does not fit and one of the two is given)")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(kv);
  app.add_option("--kv-host-memory", kv_host_memory_,
                 "Host memory for the K and V of contexts larger than the KV cache, e.g. 8G; 0: none. On a GPU it is pinned, and "
                 "must hold all of them unless --kv-store is given")
      ->transform(CLI::AsSizeValue(false))
      ->group(kv);
  app.add_option("--kv-tokens", options_.kv_tokens,
                 "Contexts larger than the KV cache: maximum tokens of all of them together; 0: what the cache can serve, up to "
                 "--max-model-len")
      ->capture_default_str()
      ->group(kv);
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching,!--no-prefix-caching", options_.enable_prefix_caching,
               "Reuse cached blocks of prompts that begin alike (on by default)")
      ->group(kv);
  app.add_flag("--dummy-weights", options_.dummy_weights, "Use random weights in the shape that config.json gives (for benchmarks)")
      ->group(engine);
  app.add_option("--seed", options_.seed, "Random seed of sampling and of dummy weights")
      ->check([](const std::string& seed) {
        return seed.starts_with('-') ? seed + " is negative" : std::string();
      })  // CLI11 would wrap it
      ->capture_default_str()
      ->group(engine);
  if (!methods) return;
  const std::string sparse = kSparseGroup;
  app.add_option("--decode-method", decode_method,
                 "Attention method for questions and answers: dense, gsa_on_device, gsa or dsa, with options in brackets: "
                 "gsa_on_device[hash_bits=128,length_factor=true]; auto: dsa for models trained with an indexer, else dense")
      ->capture_default_str()
      ->group(sparse);
  app.add_option("--prefill-method", prefill_method,
                 "Attention method for prompts: dense, xattention or dsa, with options in brackets; auto: as for --decode-method")
      ->capture_default_str()
      ->group(sparse);
  app.add_option("--budget-tokens", budget_tokens,
                 "Context tokens that each step reads, per layer and KV head; 0: the method's own budget")
      ->group(sparse);
  add_sparse_to(app);
}

void EngineFlags::add_store_to(CLI::App& app) {
  const std::string kv = "KV cache";
  StoreOptions& store = options_.kv_store;
  app.add_option("--kv-store", store.dir,
                 "Directory that keeps cached blocks across runs: a document that was prefilled once is loaded, not recomputed. "
                 "Only one process may write to it")
      ->group(kv);
  app.add_option("--kv-store-size", kv_store_size_,
                 "Maximum size of the store (default 64G); the least recently used files are removed first")
      ->transform(CLI::AsSizeValue(false))
      ->group(kv);
  app.add_option("--kv-store-io", kv_store_io_,
                 "How to read the store: buffered, direct (bypasses the page cache), or auto (direct for a GPU, else buffered)")
      ->check(CLI::IsMember({"auto", "buffered", "direct"}))
      ->capture_default_str()
      ->group(kv);
  app.add_option("--kv-store-sync", kv_store_sync_,
                 "When to sync the store to disk: interval (every 5 s), none, or slab (each file before it can be found). A killed "
                 "process loses nothing with any of them; data torn by a power failure is recomputed")
      ->check(CLI::IsMember({"interval", "none", "slab"}))
      ->capture_default_str()
      ->group(kv);
  app.add_flag("--kv-store-readonly", store.readonly,
               "Load from the store but never write to it; any number of such processes can run beside one that writes")
      ->group(kv);
}

void EngineFlags::add_sparse_to(CLI::App& app) {
  const std::string sparse = kSparseGroup;
  app.add_option("--config", config_, "YAML file with method options: ucm_sparse_config: {GSA_OnDevice: {...}} (docs/methods.md)")
      ->group(sparse);
  app.add_option("--sparse-min-context", options_.sparse_min_context, "Contexts shorter than this many tokens use dense attention")
      ->capture_default_str()
      ->group(sparse);
  app.add_option("--sparse-extend-max-tokens", options_.sparse_extend_max_tokens,
                 "Questions about a cached document use the decode method up to this many tokens, and the prefill method if they "
                 "are longer")
      ->capture_default_str()
      ->group(sparse);
}

void add_sampling_to(CLI::App& app, SamplingOverrides* asked, std::string* template_kwargs) {
  app.add_option("--max-tokens", asked->rest.max_tokens, "Maximum tokens per answer")->capture_default_str();
  app.add_option("--temperature", asked->temperature,
                 "Sampling temperature; 0: greedy. This option and the next four default to generation_config.json");
  app.add_option("--top-k", asked->top_k, "Sample from the k most likely tokens; 0: all");
  app.add_option("--top-p", asked->top_p, "Sample from the most likely tokens whose probabilities add up to this; 1: all");
  app.add_option("--min-p", asked->min_p, "Drop tokens whose probability is below this fraction of the most likely token's");
  app.add_option("--repetition-penalty", asked->repetition_penalty, "Above 1: make tokens that already occurred less likely");
  app.add_option("--stop", asked->rest.stop, "End the answer before this text; may be repeated");
  app.add_option("--template-kwargs", *template_kwargs, "Chat template variables, a JSON object: '{\"enable_thinking\": false}'");
}

Result<EngineOptions> EngineFlags::options() const {
  EngineOptions o = options_;
  const std::string& t = kv_cache_dtype_;
  o.kv_cache_dtype = t == "f32" || t == "float32"   ? DType::f32
                     : t == "f16" || t == "float16" ? DType::f16
                     : t == "fp8_e5m2"              ? DType::fp8_e5m2
                     : t.starts_with("fp8")         ? DType::fp8_e4m3
                                                    : DType::bf16;
  o.numerics = numerics_ == "f32"    ? NumericsChoice::f32
               : numerics_ == "bf16" ? NumericsChoice::bf16
               : numerics_ == "int8" ? NumericsChoice::int8
               : numerics_ == "fp8"  ? NumericsChoice::fp8
                                     : NumericsChoice::automatic;
  o.kv_cache_memory_bytes = static_cast<int64_t>(kv_cache_memory_);
  o.swap_space_bytes = static_cast<int64_t>(swap_space_);
  o.kv_store.size_bytes = static_cast<int64_t>(kv_store_size_);
  o.kv_store.io = kv_store_io_ == "buffered" ? StoreIo::buffered : kv_store_io_ == "direct" ? StoreIo::direct : StoreIo::automatic;
  o.kv_store.sync = kv_store_sync_ == "none" ? StoreSync::none : kv_store_sync_ == "slab" ? StoreSync::slab : StoreSync::interval;
  o.kv_host_memory_bytes = static_cast<int64_t>(kv_host_memory_);
  o.kv_offload = kv_offload_ == "on" ? OffloadChoice::on : kv_offload_ == "off" ? OffloadChoice::off : OffloadChoice::automatic;
  if (budget_tokens < 0) return Status::invalid_argument("--budget-tokens " + std::to_string(budget_tokens) + ": must be >= 0");
  std::vector<std::string> notes;
  if (method_yaml_) {
    if (!method_yaml_->empty()) {
      FOVEA_ASSIGN(o.methods, read_method_yaml(*method_yaml_, config_, &notes));
    }
  } else if (!config_.empty()) {
    FOVEA_ASSIGN(o.methods, read_method_config(config_, &notes));
  }
  print_notes(notes);
  print_notes(notes_of_specs(std::vector{prefill_method, decode_method}));
  o.decode_method = decode_method;
  o.prefill_method = prefill_method;
  return o;
}

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::fprintf(stderr, "fovea: note: %s\n", note.c_str());
}

int report(const Status& status) {
  std::fprintf(stderr, "fovea: %s\n", status.message().c_str());
  return status.code() == StatusCode::internal ? kFailure : kBadInput;
}

std::string duration_text(double s) {
  char text[64];
  if (s < 120) {
    std::snprintf(text, sizeof(text), s < 10 ? "%.2f s" : "%.1f s", s);
  } else if (s < 7200) {
    std::snprintf(text, sizeof(text), "%.0f min %02.0f s", (s - static_cast<int>(s) % 60) / 60,
                  static_cast<double>(static_cast<int>(s) % 60));
  } else {
    std::snprintf(text, sizeof(text), "%d h %02d min", static_cast<int>(s) / 3600, static_cast<int>(s) / 60 % 60);
  }
  return text;
}

std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  while (bytes >= 1024 && u < 4) {
    bytes /= 1024;
    ++u;
  }
  char text[32];
  std::snprintf(text, sizeof(text), u == 0 ? "%.0f %s" : "%.2f %s", bytes, units[u]);
  return text;
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status::not_found(path + ": cannot be opened");
  std::ostringstream text;
  text << in.rdbuf();
  if (!in.good() && !in.eof()) return Status::io_error(path + ": cannot be read");
  return text.str();
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.flush();
  return out.good() ? Status() : Status::io_error(path + ": cannot be written");
}

Status make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? Status::io_error("--out " + folder + ": " + error.message()) : Status();
}

}  // namespace fovea::cli
