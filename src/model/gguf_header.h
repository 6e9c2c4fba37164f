// Strict reader of the front of a GGUF file, version 2 or 3 (https://github.com/ggml-org/ggml, docs/gguf.md).
//
// A file is: "GGUF", version, counts, metadata (key, type, value), the tensors' names, shapes, types and offsets, then from an
// aligned place their data. Every count, length and offset is held against the bytes that are there, and tensors may not overlap.
// What is refused is refused with one line naming file and key or tensor. Nothing is copied: keys, strings and arrays are
// views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/kernels/weight.h>
#include <fovea/status.h>

namespace fovea {

// The format's numbers.
enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

struct GgufValue {
  GgufType type = GgufType::u8;  // of an array: of its elements
  bool is_array = false;
  uint64_t count = 1;
  std::string_view bytes;  // a string's text; else as the file has it: in an array of strings a u64 length stands before each

  std::vector<std::string_view> strings() const;  // of an array of strings
};

// A type of tensors as the format numbers it.
struct GgufTensorType {
  uint32_t number;
  std::string_view name;             // "Q4_K"
  int64_t block;                     // elements that lie together
  int64_t bytes;                     // of a block
  std::optional<WeightType> weight;  // none: the engine has no operation for it
};

// Of a type that the engine computes with and files have: not fp8_e4m3, int8 or int4.
const GgufTensorType& gguf_tensor_type(WeightType type);

// The names of those that the engine computes with, for error lines.
std::string gguf_weight_types();

struct GgufTensor {
  std::string_view name;
  const GgufTensorType* type = nullptr;
  std::vector<int64_t> shape;  // rows first, as everywhere here: the file lists dimensions the other way round
  uint64_t begin = 0;          // bytes from the start of the file
  uint64_t bytes = 0;
};

struct GgufHeader {
  std::string where;  // the file; leads every error
  std::map<std::string_view, GgufValue> metadata;
  std::vector<GgufTensor> tensors;  // as the file lists them
  size_t data_begin = 0;            // bytes from the start of the file

  const GgufValue* find(std::string_view key) const;  // null: not there

  // The value, with its type checked. Absent: none. Errors name file and key: corrupt.
  Result<std::optional<int64_t>> integer(std::string_view key, int64_t least, int64_t most) const;
  Result<std::optional<double>> number(std::string_view key, double least, double most) const;
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::string_view> text(std::string_view key) const;  // absent: empty
  Result<std::vector<std::string_view>> strings(std::string_view key) const;
  Result<std::vector<int64_t>> integers(std::string_view key) const;  // one integer, or an array of them
  Result<std::vector<float>> floats(std::string_view key) const;

  Result<int64_t> required_integer(std::string_view key, int64_t least, int64_t most) const;

  Status wrong(std::string_view key, const std::string& expected) const;
  Status unsupported(std::string_view key, const std::string& known) const;
};

// Pure. Views of `file`, the whole file, stay in the result. Errors: corrupt, unsupported (a version or a type of tensors that is
// not known).
Result<GgufHeader> parse_gguf_header(std::string_view file, const std::string& name);

}  // namespace fovea
