#include "model/gguf_writer.h"

namespace fovea {
namespace {

constexpr uint64_t kAlignment = 32;  // what readers take where no key says another
uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
void put(std::string* out, T x) {
  out->append(reinterpret_cast<const char*>(&x), sizeof x);
}

void put_text(std::string* out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out->append(text);
}

}  // namespace

void GgufWriter::key(std::string_view key, GgufType type) {
  ++key_count_;
  put_text(&keys_, key);
  put(&keys_, type);
}

void GgufWriter::array(std::string_view name, GgufType type, uint64_t count) {
  key(name, GgufType::array);
  put(&keys_, type);
  put(&keys_, count);
}

void GgufWriter::u32(std::string_view name, int64_t value) {
  key(name, GgufType::u32);
  put(&keys_, static_cast<uint32_t>(value));
}

void GgufWriter::f32(std::string_view name, double value) {
  key(name, GgufType::f32);
  put(&keys_, static_cast<float>(value));
}

void GgufWriter::boolean(std::string_view name, bool value) {
  key(name, GgufType::boolean);
  put(&keys_, value);
}

void GgufWriter::text(std::string_view name, std::string_view value) {
  key(name, GgufType::string);
  put_text(&keys_, value);
}

void GgufWriter::texts(std::string_view name, std::span<const std::string> values) {
  array(name, GgufType::string, values.size());
  for (const std::string& v : values) put_text(&keys_, v);
}

void GgufWriter::i32s(std::string_view name, std::span<const int32_t> values) {
  array(name, GgufType::i32, values.size());
  for (const int32_t v : values) put(&keys_, v);
}

void GgufWriter::f32s(std::string_view name, std::span<const float> values) {
  array(name, GgufType::f32, values.size());
  for (const float v : values) put(&keys_, v);
}

void GgufWriter::value(std::string_view name, const GgufValue& v) {
  if (v.is_array) {
    array(name, v.type, v.count);
  } else {
    key(name, v.type);
    if (v.type == GgufType::string) put<uint64_t>(&keys_, v.bytes.size());
  }
  keys_.append(v.bytes);
}

uint64_t GgufWriter::tensor(std::string_view name, std::span<const int64_t> shape, WeightType type) {
  const GgufTensorType& stored = gguf_tensor_type(type);
  const uint64_t begin = data_bytes_;
  int64_t elements = 1;
  ++tensor_count_;
  put_text(&tensors_, name);
  put(&tensors_, static_cast<uint32_t>(shape.size()));
  for (size_t i = shape.size(); i-- > 0;) {
    put(&tensors_, static_cast<uint64_t>(shape[i]));
    elements *= shape[i];
  }
  put(&tensors_, stored.number);
  put(&tensors_, begin);
  data_bytes_ = aligned(begin + static_cast<uint64_t>(elements / stored.block * stored.bytes));
  return begin;
}

std::string GgufWriter::front() const {
  std::string out = "GGUF";
  put<uint32_t>(&out, 3);
  put(&out, tensor_count_);
  put(&out, key_count_);
  out += keys_;
  out += tensors_;
  out.resize(aligned(out.size()));
  return out;
}

}  // namespace fovea
