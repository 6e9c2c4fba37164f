// Flags shared by the subcommands, and how errors leave the program.
#pragma once

#include <fovea/engine.h>
#include <fovea/options.h>

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

namespace fovea::cli {

constexpr int kBadInput = 2;  // exit code for errors the user can fix
constexpr int kFailure = 1;   // exit code for errors they cannot

// --model and everything that shapes an engine, added to a subcommand; options() reads the result.
class EngineFlags {
 public:
  void add_to(CLI::App& app, bool methods = true);
  // The flags of a store below the pool.
  void add_store_to(CLI::App& app);
  // The sparse flags that do not name a method; add_to() adds them too where `methods` is true.
  void add_sparse_to(CLI::App& app);
  // The path of --config. Where it holds more than methods, whoever read it gives their section (YAML; empty: none).
  const std::string& config() const { return config_; }
  void set_method_yaml(std::string yaml) { method_yaml_ = std::move(yaml); }
  // Reads --config too, unless that was done. Notes for the user (keys without effect) go to stderr.
  Result<EngineOptions> options() const;

  std::string decode_method = "auto";
  std::string prefill_method = "auto";
  int32_t budget_tokens = 0;

 private:
  EngineOptions options_;
  std::string kv_cache_dtype_ = "bf16";
  std::string numerics_ = "auto";
  std::string config_;
  std::optional<std::string> method_yaml_;
  uint64_t kv_cache_memory_ = 0;
  uint64_t kv_host_memory_ = 0;
  std::string kv_offload_ = "auto";
  uint64_t swap_space_ = uint64_t{4} << 30;
  uint64_t kv_store_size_ = uint64_t{64} << 30;
  std::string kv_store_io_ = "auto", kv_store_sync_ = "interval";
};

// --max-tokens, --temperature and the like, and --template-kwargs.
void add_sampling_to(CLI::App& app, SamplingOverrides* asked, std::string* template_kwargs);

// "fovea: note: ..." to stderr, a line each.
void print_notes(const std::vector<std::string>& notes);

// Prints "fovea: message" to stderr; the exit code that belongs to the error.
int report(const Status& status);

// "3 h 12 min", "4.2 s"
std::string duration_text(double seconds);
// "1.50 GiB"
std::string bytes_text(double bytes);

Result<std::string> read_file(const std::string& path);
Status write_file(const std::string& path, const std::string& text);
// The folder of --out, made where it is missing.
Status make_folder(const std::string& folder);

}  // namespace fovea::cli
