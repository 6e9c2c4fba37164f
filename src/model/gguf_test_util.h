// For tests: GGUF files made on the spot, right or broken.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "model/gguf_header.h"

namespace fovea {

template <typename T>
std::string raw(T x) {
  std::string out(sizeof x, '\0');
  std::memcpy(out.data(), &x, sizeof x);
  return out;
}
inline std::string counted(std::string_view text) { return raw<uint64_t>(text.size()) + std::string(text); }

class GgufFileText {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;
  std::string magic = "GGUF";

  // A key with its value as the file has it, after the type.
  GgufFileText& entry(std::string_view key, GgufType type, const std::string& value) {
    keys_.push_back(counted(key) + raw(type) + value);
    return *this;
  }
  GgufFileText& text(std::string_view key, std::string_view value) { return entry(key, GgufType::string, counted(value)); }
  GgufFileText& u32(std::string_view key, uint32_t value) { return entry(key, GgufType::u32, raw(value)); }
  GgufFileText& f32(std::string_view key, float value) { return entry(key, GgufType::f32, raw(value)); }
  GgufFileText& flag(std::string_view key, bool value) { return entry(key, GgufType::boolean, raw(value)); }
  GgufFileText& strings(std::string_view key, const std::vector<std::string>& values) {
    std::string all = raw(GgufType::string) + raw<uint64_t>(values.size());
    for (const std::string& v : values) all += counted(v);
    return entry(key, GgufType::array, all);
  }
  template <typename T>
  GgufFileText& numbers(std::string_view key, GgufType type, const std::vector<T>& values) {
    std::string all = raw(type) + raw<uint64_t>(values.size());
    for (const T v : values) all += raw(v);
    return entry(key, GgufType::array, all);
  }

  // shape: rows first. type: the format's number. data: as many bytes as the type and the shape say.
  GgufFileText& tensor(std::string_view name, std::vector<uint64_t> shape, uint32_t type, const std::string& data) {
    std::string front = counted(name) + raw(static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) front += raw(shape[i]);
    tensors_.push_back(front + raw(type) + raw<uint64_t>(data_.size()));
    data_ += data;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  // An F32 tensor of these values, from the first on.
  GgufFileText& floats(std::string_view name, std::vector<uint64_t> shape, const std::vector<float>& values) {
    std::string data;
    for (const float x : values) data += raw(x);
    return tensor(name, std::move(shape), 0, data);
  }

  std::string bytes() const {
    std::string out = magic + raw(version) + raw<uint64_t>(tensors_.size()) + raw<uint64_t>(keys_.size());
    for (const std::string& k : keys_) out += k;
    for (const std::string& t : tensors_) out += t;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data_;
  }

 private:
  std::vector<std::string> keys_, tensors_;
  std::string data_;
};

}  // namespace fovea
