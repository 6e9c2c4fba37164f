// Models as GGUF files, with weights of few bits: files that llama.cpp reads too.
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fovea {

struct QuantizeOptions {
  std::string model;  // a directory of Hugging Face's, or a GGUF file; of f32, f16 or bf16 weights
  std::string out;    // the GGUF file
  // q8_0, q4_0, q6_k, bf16, f16, f32: all matrices are, but for those that llama.cpp keeps finer (the output matrix). q4_k_m: q4_k,
  // and q6_k for a half of the matrices of values and of those that lead out of the feed-forward blocks. Where a row is no whole
  // blocks of its type: q5_0 for q4_k, q8_0 for q6_k, f16 for others. Norms and biases are f32.
  std::string type;
  bool overwrite = false;                                     // `out`, where it is there already
  int threads = 0;                                            // 0: every core this process may use
  std::function<void(int64_t done, int64_t total)> progress;  // in weights; may be null
};

struct QuantizeResult {
  int64_t parameters = 0;
  int64_t bytes = 0;               // of the file
  std::vector<std::string> notes;  // for the user: matrices that became another type than was asked for
};

// The names that QuantizeOptions::type takes.
std::vector<std::string> quantize_types();

// The file appears under its name when it is whole, and not before. Errors are one line that names file, tensor or field:
// unsupported (weights that are quantised already; architectures with latent attention; what a GGUF file cannot say),
// invalid_argument (type, a file that is there, weights that are not finite), those of loading the model, io_error,
// resource_exhausted (a full disk).
Result<QuantizeResult> quantize_model(const QuantizeOptions& options);

}  // namespace fovea
