// TensorSource: named tensors in files, whatever the format: what a checkpoint is loaded from. Safetensors and GGUF implement it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/kernels/weight.h>
#include <fovea/status.h>
#include <fovea/types.h>

namespace fovea {

// A tensor in memory. `data` lives as long as the source it comes from. Row-major, little endian; aligned to the element
// size at least.
struct TensorInfo {
  std::string name;
  std::string file;          // path of the file that holds it
  std::string stored_dtype;  // as written: "BF16"
  // stored_dtype is one of F32, F16, BF16, F8_E4M3; if not, `dtype` means nothing and data is raw bytes
  bool readable = false;
  DType dtype = DType::u8;
  std::optional<WeightType> blocks;  // not readable, but a matrix of blocks with their scales inside
  bool row_pairs = false;            // rows 2i and 2i + 1 of each head are what its rows i and i + head_dim / 2 should be
  std::vector<int64_t> shape;
  const void* data = nullptr;  // null only where bytes == 0
  size_t bytes = 0;
};

class TensorSource {
 public:
  // A file as digests see it. The views live as long as the source.
  struct File {
    std::string name;  // without its folder
    std::string_view header, data;
  };

  virtual ~TensorSource() = default;
  virtual const TensorInfo* find(const std::string& name) const = 0;  // null: not there; see TensorInfo::readable
  virtual std::vector<std::string> names() const = 0;                 // ascending
  virtual std::vector<File> files() const = 0;                        // ascending by name
  virtual const std::string& source() const = 0;                      // the file that says what is there, for error lines

  // The tensor, if it has this shape and a dtype that stands for itself (F32, F16, BF16). Errors name file and tensor:
  // not_found, unsupported (dtype), corrupt (shape).
  Result<TensorInfo> get(const std::string& name, std::span<const int64_t> shape) const;
};

// All weights of a model: of a directory, or of a GGUF file. Errors: not_found, io_error, corrupt, unsupported, resource_exhausted.
Result<std::unique_ptr<TensorSource>> open_tensors(const std::string& model);

// Refuses a dtype that does not stand for itself (F32, F16, BF16 do), naming file and tensor: unsupported.
Status check_plain(const TensorInfo& tensor);

// Refuses another shape, naming file and tensor: corrupt.
Status check_shape(const TensorInfo& tensor, std::span<const int64_t> shape);

}  // namespace fovea
