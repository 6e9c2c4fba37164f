// What the keys of a GGUF file hold, with their types checked.
#include <cstring>

#include "model/gguf_header.h"
#include "model/json_reader.h"

namespace fovea {
namespace {

template <typename T>
T load(std::string_view bytes, uint64_t index = 0) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

std::optional<int64_t> integer_at(const GgufValue& v, uint64_t i) {
  switch (v.type) {
    case GgufType::u8:
      return load<uint8_t>(v.bytes, i);
    case GgufType::i8:
      return load<int8_t>(v.bytes, i);
    case GgufType::u16:
      return load<uint16_t>(v.bytes, i);
    case GgufType::i16:
      return load<int16_t>(v.bytes, i);
    case GgufType::u32:
      return load<uint32_t>(v.bytes, i);
    case GgufType::i32:
      return load<int32_t>(v.bytes, i);
    case GgufType::i64:
      return load<int64_t>(v.bytes, i);
    case GgufType::u64: {
      const auto x = load<uint64_t>(v.bytes, i);
      return x <= static_cast<uint64_t>(INT64_MAX) ? std::optional<int64_t>(static_cast<int64_t>(x)) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> number_at(const GgufValue& v, uint64_t i) {
  if (v.type == GgufType::f32) return load<float>(v.bytes, i);
  if (v.type == GgufType::f64) return load<double>(v.bytes, i);
  const std::optional<int64_t> n = integer_at(v, i);
  return n ? std::optional<double>(static_cast<double>(*n)) : std::nullopt;
}

std::string shown(const GgufValue* v) {
  if (v == nullptr) return "is missing";
  if (v->is_array) return "is an array of " + std::to_string(v->count);
  if (v->type == GgufType::string) return "is " + quote_name(v->bytes);
  if (v->type == GgufType::boolean) return v->bytes[0] ? "is true" : "is false";
  if (const auto n = integer_at(*v, 0)) return "is " + std::to_string(*n);
  return "is " + std::to_string(number_at(*v, 0).value_or(0));
}

}  // namespace

std::vector<std::string_view> GgufValue::strings() const {
  std::vector<std::string_view> out;
  out.reserve(count);
  for (size_t at = 0; at < bytes.size();) {  // the reader has walked it
    const auto length = load<uint64_t>(bytes.substr(at, sizeof(uint64_t)));
    out.push_back(bytes.substr(at + sizeof length, length));
    at += sizeof length + length;
  }
  return out;
}

const GgufValue* GgufHeader::find(std::string_view key) const {
  const auto it = metadata.find(key);
  return it == metadata.end() ? nullptr : &it->second;
}

Status GgufHeader::wrong(std::string_view key, const std::string& expected) const {
  return Status::corrupt(where + ": key " + quote_name(key) + " " + shown(find(key)) + ", expected " + expected);
}

Status GgufHeader::unsupported(std::string_view key, const std::string& known) const {
  return Status::unsupported(where + ": key " + quote_name(key) + " " + shown(find(key)) + ", which is not supported (" + known +
                             ")");
}

Result<std::optional<int64_t>> GgufHeader::integer(std::string_view key, int64_t least, int64_t most) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::optional<int64_t>();
  const auto n = v->is_array ? std::nullopt : integer_at(*v, 0);
  if (n && *n >= least && *n <= most) return n;
  return wrong(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<int64_t> GgufHeader::required_integer(std::string_view key, int64_t least, int64_t most) const {
  FOVEA_ASSIGN(const std::optional<int64_t> n, integer(key, least, most));
  if (n) return *n;
  return wrong(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<std::optional<double>> GgufHeader::number(std::string_view key, double least, double most) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::optional<double>();
  const auto x = v->is_array ? std::nullopt : number_at(*v, 0);
  if (x && *x >= least && *x <= most) return x;
  return wrong(key, "a number from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<std::optional<bool>> GgufHeader::boolean(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::optional<bool>();
  if (!v->is_array && v->type == GgufType::boolean) return std::optional<bool>(v->bytes[0] != 0);
  return wrong(key, "true or false");
}

Result<std::string_view> GgufHeader::text(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::string_view();
  if (!v->is_array && v->type == GgufType::string) return v->bytes;
  return wrong(key, "a string");
}

Result<std::vector<std::string_view>> GgufHeader::strings(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::vector<std::string_view>();
  if (v->is_array && v->type == GgufType::string) return v->strings();
  return wrong(key, "an array of strings");
}

Result<std::vector<int64_t>> GgufHeader::integers(std::string_view key) const {
  std::vector<int64_t> out;
  const GgufValue* v = find(key);
  for (uint64_t i = 0; v != nullptr && i < v->count; ++i) {
    const auto n = integer_at(*v, i);
    if (!n) return wrong(key, "integers");
    out.push_back(*n);
  }
  return out;
}

Result<std::vector<float>> GgufHeader::floats(std::string_view key) const {
  std::vector<float> out;
  const GgufValue* v = find(key);
  for (uint64_t i = 0; v != nullptr && i < v->count; ++i) {
    const auto x = number_at(*v, i);
    if (!x) return wrong(key, "numbers");
    out.push_back(static_cast<float>(*x));
  }
  return out;
}

}  // namespace fovea
