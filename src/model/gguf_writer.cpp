#include "model/gguf_writer.h"

namespace fovea {
namespace {

constexpr uint64_t kAlignment = 32;  // what readers take where no key says another
uint64_t padded(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
void put(std::string* out, T x) {
  out->append(reinterpret_cast<const char*>(&x), sizeof x);
}

void put_text(std::string* out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out->append(text);
}

}  // namespace

void GgufWriter::value(std::string_view key, const GgufValue& v) {
  ++key_count_;
  put_text(&keys_, key);
  if (v.is_array) put(&keys_, GgufType::array);
  put(&keys_, v.type);
  if (v.is_array) put(&keys_, v.count);
  if (!v.is_array && v.type == GgufType::string) put<uint64_t>(&keys_, v.bytes.size());
  keys_.append(v.bytes);
}

void GgufWriter::text(std::string_view key, std::string_view text) { value(key, {GgufType::string, false, 1, text}); }

void GgufWriter::texts(std::string_view key, const std::vector<std::string>& texts) {
  std::string bytes;
  for (const std::string& text : texts) put_text(&bytes, text);
  value(key, {GgufType::string, true, texts.size(), bytes});
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
  data_bytes_ = padded(begin + static_cast<uint64_t>(elements / stored.block * stored.bytes));
  return begin;
}

std::string GgufWriter::front() const {
  std::string out = "GGUF";
  put<uint32_t>(&out, 3);
  put(&out, tensor_count_);
  put(&out, key_count_);
  out += keys_;
  out += tensors_;
  out.resize(padded(out.size()));
  return out;
}

}  // namespace fovea
