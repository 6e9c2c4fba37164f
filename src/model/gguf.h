// A model in one GGUF file, or in the parts NAME-00001-of-0000N.gguf, as a TensorSource: memory-mapped, tensors under the names
// that Hugging Face's checkpoints have.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/status.h>
#include "model/config.h"
#include "model/gguf_header.h"
#include "model/mapped_file.h"
#include "model/tensor_source.h"

namespace fovea {

// Whether --model names a GGUF file rather than a directory.
bool is_gguf(const std::string& model);

class GgufSource final : public TensorSource {
 public:
  // Of parts, `path` is the first. Every tensor must be one that the architecture has; those that architectures of this engine
  // never have are refused by name. Errors: as those of parse_gguf_header, and not_found, io_error.
  static Result<std::unique_ptr<GgufSource>> open(const std::string& path);

  // Of the (first) file: what describes the model.
  const GgufHeader& header() const { return parts_.front().header; }

  const TensorInfo* find(const std::string& name) const override;
  std::vector<std::string> names() const override;
  std::vector<File> files() const override;
  const std::string& source() const override { return header().where; }

 private:
  struct Part {
    std::unique_ptr<MappedFile> file;
    GgufHeader header;
  };

  static Result<Part> open_part(const std::string& path);
  Status open_rest(const std::string& path);
  Status index(const Part& part, std::string_view arch);

  std::vector<Part> parts_;  // never empty
  std::map<std::string, TensorInfo> tensors_;
};

// What Hugging Face calls a tensor of the architectures this engine runs; empty: they have no such tensor. Names of our own:
// rope_freqs.weight as there, and of what GGUF files of latent models hold in another form (checkpoint.cpp) mlp.experts.gate_proj.weight
// and its like, all experts of a layer, self_attn.k_b_proj.weight and v_b_proj.weight, the halves of kv_b_proj.
std::string gguf_tensor_name(std::string_view name);

// The same the other way round; `name` must be one of these architectures'.
std::string gguf_name_of(std::string_view name);

// Of the tensors of architecture llama these have their rows in pairs (TensorInfo::row_pairs); the others' rotary embeddings turn
// halves, as here. name: a GGUF file's.
bool gguf_row_pairs(std::string_view arch, std::string_view name);

// Where row `row` of such a tensor is in the file, and which row lies at `file_row`.
int64_t gguf_paired_row(int64_t row, int64_t head_dim);
int64_t gguf_row_of_pairs(int64_t file_row, int64_t head_dim);

// The config that the metadata and the tensors of a GGUF file state. Errors name file and key: corrupt, unsupported (an
// architecture, or a key that changes what is computed and that is not known).
Result<ModelConfig> gguf_model_config(const GgufSource& source);

}  // namespace fovea
