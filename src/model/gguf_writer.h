// The front of a GGUF file, version 3: what gguf_header.h reads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf_header.h"

namespace fovea {

class GgufWriter {
 public:
  // Keys, in the order in which they are written; each once.
  void u32(std::string_view key, int64_t value);
  void f32(std::string_view key, double value);
  void boolean(std::string_view key, bool value);
  void text(std::string_view key, std::string_view value);
  void texts(std::string_view key, std::span<const std::string> values);
  void i32s(std::string_view key, std::span<const int32_t> values);
  void f32s(std::string_view key, std::span<const float> values);
  void value(std::string_view key, const GgufValue& value);  // as another file has it

  // The next tensor; the data of all lie in this order. shape: rows first. Returns where its data begin, counted from
  // the end of front().
  uint64_t tensor(std::string_view name, std::span<const int64_t> shape, WeightType type);

  // All up to the data, with the zeros before them.
  std::string front() const;
  uint64_t data_bytes() const { return data_bytes_; }  // of all tensors, with the zeros between and after them

 private:
  void key(std::string_view key, GgufType type);
  void array(std::string_view key, GgufType type, uint64_t count);

  std::string keys_, tensors_;
  uint64_t key_count_ = 0, tensor_count_ = 0, data_bytes_ = 0;
};

}  // namespace fovea
