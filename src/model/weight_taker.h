// Takes tensors out of a TensorSource, each with the shape that the config implies.
#pragma once

#include "model/checkpoint.h"
#include "model/tensor_source.h"

#include <memory>
#include <string>
#include <vector>

namespace fovea {

class WeightTaker {
 public:
  // fp8_blocks: a matrix NAME may be F8_E4M3 with a NAME_scale_inv beside it.
  WeightTaker(std::shared_ptr<const TensorSource> source, bool fp8_blocks);

  // Errors name file and tensor: not_found, unsupported (dtype), corrupt (shape), resource_exhausted.
  Status matrix(const std::string& name, int64_t rows, int64_t cols, WeightMatrix* out);
  Status vector(const std::string& name, int64_t size, std::vector<float>* out);
  // A tensor that the config denies: dropped in silence it would make the answers wrong.
  Status refuse(const std::string& name, const char* field) const;

  const std::string& source() const { return memory_->source->source(); }  // the file that says what is there
  size_t bytes() const { return bytes_; }                        // of the matrices taken, as they lie in memory
  std::shared_ptr<const void> owner() const { return memory_; }  // what the matrices point into

 private:
  struct Memory {
    std::shared_ptr<const TensorSource> source;
    std::vector<std::unique_ptr<uint16_t[]>> widened;  // bf16, of fp8 matrices
  };
  Status widened(const TensorInfo& stored, int64_t rows, int64_t cols, WeightMatrix* out);

  const bool fp8_blocks_;
  const std::shared_ptr<Memory> memory_;
  size_t bytes_ = 0;
};

}  // namespace fovea
