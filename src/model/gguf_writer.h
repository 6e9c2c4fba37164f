// The front of a GGUF file, version 3: what gguf_header.h reads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "model/gguf_header.h"

namespace fovea {

class GgufWriter {
 public:
  // Keys, in the order in which they are written; each once.
  void u32(std::string_view key, int64_t value) { number(key, static_cast<uint32_t>(value)); }
  void f32(std::string_view key, double value) { number(key, static_cast<float>(value)); }
  void text(std::string_view key, std::string_view value);
  void texts(std::string_view key, const std::vector<std::string>& values);
  void value(std::string_view key, const GgufValue& value);  // as another file has it
  template <typename T>                                      // uint32_t, int32_t, float or bool
  void number(std::string_view key, T x) {
    value(key, {type_of<T>(), false, 1, {reinterpret_cast<const char*>(&x), sizeof x}});
  }
  template <typename T>
  void numbers(std::string_view key, const std::vector<T>& x) {
    value(key, {type_of<T>(), true, x.size(), {reinterpret_cast<const char*>(x.data()), x.size() * sizeof(T)}});
  }

  // The next tensor; the data of all lie in this order. shape: rows first. Returns where its data begin, counted from the end of
  // front().
  uint64_t tensor(std::string_view name, std::span<const int64_t> shape, WeightType type);

  // All up to the data, with the zeros before them.
  std::string front() const;
  uint64_t data_bytes() const { return data_bytes_; }  // of all tensors, with the zeros between and after them

 private:
  template <typename T>
  static constexpr GgufType type_of() {
    if (std::is_same_v<T, bool>) return GgufType::boolean;
    return std::is_same_v<T, float> ? GgufType::f32 : std::is_signed_v<T> ? GgufType::i32 : GgufType::u32;
  }

  std::string keys_, tensors_;
  uint64_t key_count_ = 0, tensor_count_ = 0, data_bytes_ = 0;
};

}  // namespace fovea
