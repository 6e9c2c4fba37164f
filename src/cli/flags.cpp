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
                 "A GGUF file (of several parts the first), or a directory: config.json, *.safetensors, tokenizer.json")
      ->required();
  app.add_option("--device", options_.device, "auto (a GPU if there is one), cpu, or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->group(engine);
  app.add_option("--threads", options_.threads, "Worker threads; 0: every core this process may use")
      ->capture_default_str()
      ->group(engine);
  app.add_option(
         "--numerics", numerics_,
         "Arithmetic of linear layers: f32, bf16, auto (bf16 where the hardware multiplies it), int8 (on a CPU, where weights "
         "are quantised; auto rounds only answers so), or fp8 (prompts on a GPU, where weights are fp8). A mode's cached blocks "
         "are its own")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "int8", "fp8"}))
      ->capture_default_str()
      ->group(engine);
  app.add_option("--max-model-len", options_.max_model_len,
                 "Most tokens of a prompt and its answer together; 0: the model's own limit")
      ->group(engine);
  app.add_option("--max-num-batched-tokens", options_.max_num_batched_tokens,
                 "Most tokens computed in one step: prompts are read in chunks of this size; 0: 512 on a CPU, 2048 on a GPU")
      ->capture_default_str()
      ->group(engine);
  app.add_option("--max-num-seqs", options_.max_num_seqs, "Most sequences in one step")->capture_default_str()->group(engine);
  app.add_option("--max-step-kv-blocks", options_.max_step_kv_blocks,
                 "Most KV blocks that the answers in one step read together; other answers wait for the next step. 0: no limit")
      ->capture_default_str()
      ->group(engine);
  app.add_option("--block-size", options_.block_size, "Tokens in a KV block: a power of two from 8 to 256")
      ->capture_default_str()
      ->group(kv);
  app.add_option("--kv-cache-dtype", kv_cache_dtype_, "Type of cached keys and values: bf16, f16, f32, fp8 (fp8_e4m3) or fp8_e5m2")
      ->check(CLI::IsMember({"bf16", "bfloat16", "f16", "float16", "f32", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "auto"}))
      ->capture_default_str()
      ->group(kv);
  app.add_option("--kv-scales", options_.kv_scales,
                 "Scales of an fp8 KV cache, a file that `fovea calibrate` wrote; without it the checkpoint's own, or 1")
      ->group(kv);
  app.add_option("--kv-cache-memory", kv_cache_memory_,
                 "Most memory for the KV cache, e.g. 2G; 0: 60 % of free memory, taken as needed (on a GPU 90 %, at once)")
      ->transform(CLI::AsSizeValue(false))
      ->group(kv);
  app.add_option("--swap-space", swap_space_, "Memory outside the KV cache for preempted sparse sequences, 4G by default")
      ->transform(CLI::AsSizeValue(false))
      ->group(kv);
  app.add_option("--kv-offload", kv_offload_,
                 "Contexts larger than the KV cache: on (the cache keeps what is read most, the rest lies below), off (they are "
                 "refused), auto (on where one does not fit and --kv-store or --kv-host-memory is given)")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(kv);
  app.add_option("--kv-host-memory", kv_host_memory_,
                 "Memory below the KV cache for K and V of contexts that are larger than it (on a GPU pinned, for all of them, "
                 "unless --kv-store lies below it), e.g. 8G; 0: none")
      ->transform(CLI::AsSizeValue(false))
      ->group(kv);
  app.add_option("--kv-tokens", options_.kv_tokens,
                 "Most tokens of all contexts together where they are larger than the KV cache; 0: what it serves, up to "
                 "--max-model-len")
      ->capture_default_str()
      ->group(kv);
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching,!--no-prefix-caching", options_.enable_prefix_caching,
               "Reuse cached blocks when prompts begin alike; it is on unless it is switched off")
      ->group(kv);
  app.add_flag("--dummy-weights", options_.dummy_weights, "Random weights of config.json's shape (for benchmarks)")->group(engine);
  app.add_option("--seed", options_.seed, "Seed of sampling and of dummy weights")
      ->check([](const std::string& seed) {
        return seed.starts_with('-') ? seed + " is negative" : std::string();
      })  // CLI11 would wrap it
      ->capture_default_str()
      ->group(engine);
  if (!methods) return;
  const std::string sparse = kSparseGroup;
  app.add_option("--decode-method", decode_method,
                 "What questions and answers read: dense, gsa_on_device, gsa or dsa, with options in brackets: "
                 "gsa_on_device[hash_bits=128,length_factor=true]; "
                 "auto: dsa for models trained with an indexer, else dense")
      ->capture_default_str()
      ->group(sparse);
  app.add_option("--prefill-method", prefill_method,
                 "What prompts read: dense, xattention or dsa, with options likewise; auto: as above")
      ->capture_default_str()
      ->group(sparse);
  app.add_option("--budget-tokens", budget_tokens,
                 "Tokens of context that each step reads, for each layer and KV head; 0: the method's own budget")
      ->group(sparse);
  add_sparse_to(app);
}

void EngineFlags::add_store_to(CLI::App& app) {
  const std::string kv = "KV cache";
  StoreOptions& store = options_.kv_store;
  app.add_option("--kv-store", store.dir,
                 "Folder where cached blocks outlive this process: a document that was read once is loaded, not computed again. "
                 "One process writes it")
      ->group(kv);
  app.add_option("--kv-store-size", kv_store_size_, "Most bytes of its files, 64G by default; the least recently used go first")
      ->transform(CLI::AsSizeValue(false))
      ->group(kv);
  app.add_option("--kv-store-io", kv_store_io_,
                 "How its files are read: buffered, direct (past the page cache), or auto: direct for a GPU, else buffered")
      ->check(CLI::IsMember({"auto", "buffered", "direct"}))
      ->capture_default_str()
      ->group(kv);
  app.add_option("--kv-store-sync", kv_store_sync_,
                 "When files are synced to the disk: interval (every 5 s), none, or slab (each before it can be found). A killed "
                 "process loses nothing with any; after a power failure what is torn is computed again")
      ->check(CLI::IsMember({"interval", "none", "slab"}))
      ->capture_default_str()
      ->group(kv);
  app.add_flag("--kv-store-readonly", store.readonly,
               "Load from it and write nothing: any number of such processes beside one that writes")
      ->group(kv);
}

void EngineFlags::add_sparse_to(CLI::App& app) {
  const std::string sparse = kSparseGroup;
  app.add_option("--config", config_,
                 "YAML file with options of methods, ucm_sparse_config: {GSA_OnDevice: {...}} (docs/methods.md)")
      ->group(sparse);
  app.add_option("--sparse-min-context", options_.sparse_min_context, "Contexts shorter than this many tokens are read whole")
      ->capture_default_str()
      ->group(sparse);
  app.add_option("--sparse-extend-max-tokens", options_.sparse_extend_max_tokens,
                 "Questions about a cached document use the decode method up to this many tokens, longer ones the prefill method")
      ->capture_default_str()
      ->group(sparse);
}

void add_sampling_to(CLI::App& app, SamplingOverrides* asked, std::string* template_kwargs) {
  app.add_option("--max-tokens", asked->rest.max_tokens, "Most tokens of an answer")->capture_default_str();
  app.add_option(
      "--temperature", asked->temperature,
      "Randomness of sampling; 0: always the likeliest token. This and the four below: generation_config.json's, unless given");
  app.add_option("--top-k", asked->top_k, "Sample among the k likeliest tokens; 0: all");
  app.add_option("--top-p", asked->top_p, "Sample among the likeliest tokens that together reach this probability; 1: all");
  app.add_option("--min-p", asked->min_p, "Drop tokens less probable than this share of the likeliest one");
  app.add_option("--repetition-penalty", asked->repetition_penalty, "Above 1: make tokens that occurred already less likely");
  app.add_option("--stop", asked->rest.stop, "End the answer before this text; may be given many times");
  app.add_option("--template-kwargs", *template_kwargs,
                 "Variables of the chat template, a JSON object: '{\"enable_thinking\": false}'");
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
