// fovea quantize: a model as a GGUF file, its weights in few bits.
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"

#include <fovea/quantize.h>

#include <cstdio>
#include <memory>

namespace fovea::cli {
namespace {

Status execute(QuantizeOptions& o) {
  Progress progress("quantize", "M weights");
  o.progress = [&](int64_t done, int64_t total) { progress.show(done / 1'000'000, total / 1'000'000); };
  FOVEA_ASSIGN(const QuantizeResult made, quantize_model(o));
  progress.clear();
  print_notes(made.notes);
  const double bits = 8.0 * static_cast<double>(made.bytes) / static_cast<double>(made.parameters);
  std::fprintf(stderr, "%s: %.1f M parameters in %s, %.2f bits each\n", o.out.c_str(), static_cast<double>(made.parameters) / 1e6,
               bytes_text(static_cast<double>(made.bytes)).c_str(), bits);
  return {};
}

}  // namespace

Run add_quantize(CLI::App& app) {
  auto o = std::make_shared<QuantizeOptions>();
  CLI::App* cmd = app.add_subcommand("quantize", "Write a model as a GGUF file with quantized weights, which llama.cpp also reads");
  cmd->add_option("--model", o->model,
                  "Model to convert: a directory with config.json, *.safetensors and tokenizer.json, or a GGUF file (for a split "
                  "file, its first part). Its weights must be f32, f16 or bf16")
      ->required();
  cmd->add_option("--type", o->type,
                  "Type of the weight matrices: q4_k_m (a mixture of q4_k and q6_k), q4_0, q6_k, q8_0, f16, bf16 or f32")
      ->required()
      ->check(CLI::IsMember(quantize_types()));
  cmd->add_option("--out", o->out, "GGUF file to write")->required();
  cmd->add_flag("--force", o->overwrite, "Overwrite the file if it exists");
  cmd->add_option("--threads", o->threads, "Number of worker threads; 0: every core available to this process")
      ->capture_default_str();
  return [o] {
    const Status s = execute(*o);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
