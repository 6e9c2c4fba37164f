#include "model/gguf_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "model/json_reader.h"

namespace fovea {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF's numbers are little endian");

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kKeyBytesMax = 65535, kTensorNameBytesMax = 1024;
constexpr uint64_t kAlignmentDefault = 32, kAlignmentMax = 1 << 16;
constexpr int64_t kElementsMax = int64_t{1} << 48;
// Least that an entry takes: its name's length, and a type and a byte, or a rank, a dimension, a type and an offset.
constexpr uint64_t kEntryBytesMin = 8 + 4 + 1, kTensorBytesMin = 8 + 4 + 8 + 4 + 8;

constexpr GgufTensorType kTensorTypes[] = {
    {0, "F32", 1, 4, WeightType::f32},
    {1, "F16", 1, 2, WeightType::f16},
    {30, "BF16", 1, 2, WeightType::bf16},
    {2, "Q4_0", 32, 18, WeightType::q4_0},
    {3, "Q4_1", 32, 20, WeightType::q4_1},
    {6, "Q5_0", 32, 22, WeightType::q5_0},
    {7, "Q5_1", 32, 24, WeightType::q5_1},
    {8, "Q8_0", 32, 34, WeightType::q8_0},
    {10, "Q2_K", 256, 84, WeightType::q2_k},
    {11, "Q3_K", 256, 110, WeightType::q3_k},
    {12, "Q4_K", 256, 144, WeightType::q4_k},
    {13, "Q5_K", 256, 176, WeightType::q5_k},
    {14, "Q6_K", 256, 210, WeightType::q6_k},
    {20, "IQ4_NL", 32, 18, WeightType::iq4_nl},
    {23, "IQ4_XS", 256, 136, WeightType::iq4_xs},
    {39, "MXFP4", 32, 17, WeightType::mxfp4},
    {9, "Q8_1", 32, 36, {}},
    {15, "Q8_K", 256, 292, {}},
    {16, "IQ2_XXS", 256, 66, {}},
    {17, "IQ2_XS", 256, 74, {}},
    {18, "IQ3_XXS", 256, 98, {}},
    {19, "IQ1_S", 256, 50, {}},
    {21, "IQ3_S", 256, 110, {}},
    {22, "IQ2_S", 256, 82, {}},
    {24, "I8", 1, 1, {}},
    {25, "I16", 1, 2, {}},
    {26, "I32", 1, 4, {}},
    {27, "I64", 1, 8, {}},
    {28, "F64", 1, 8, {}},
    {29, "IQ1_M", 256, 56, {}},
    {34, "TQ1_0", 256, 54, {}},
    {35, "TQ2_0", 256, 66, {}},
    {40, "NVFP4", 64, 36, {}},
    {41, "Q1_0", 128, 18, {}},
    {42, "Q2_0", 64, 18, {}},
};

const GgufTensorType* find_type(uint32_t number) {
  for (const GgufTensorType& t : kTensorTypes) {
    if (t.number == number) return &t;
  }
  return nullptr;
}

// Of a scalar; 0: none.
size_t scalar_bytes(GgufType type) {
  constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<uint32_t>(type)];
}

constexpr uint32_t kTypes = 13;

// Takes values off the front of what is left of a file.
class Cursor {
 public:
  Cursor(std::string_view file, const std::string& name) : file_(file), name_(name) {}

  size_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }

  Result<std::string_view> take(uint64_t bytes, const std::string& what) {
    if (bytes > left()) {
      return Status::corrupt(name_ + ": " + what + " takes " + std::to_string(bytes) + " bytes, but only " +
                             std::to_string(left()) + " are left (truncated file?)");
    }
    const std::string_view out = file_.substr(at_, bytes);
    at_ += bytes;
    return out;
  }
  template <typename T>
  Result<T> number(const std::string& what) {
    FOVEA_ASSIGN(const std::string_view bytes, take(sizeof(T), what));
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  Result<std::string_view> string(const std::string& what) {
    FOVEA_ASSIGN(const uint64_t length, number<uint64_t>(what));
    return take(length, what);
  }

 private:
  std::string_view file_;
  const std::string& name_;
  size_t at_ = 0;
};

Result<GgufType> read_type(Cursor& c, const std::string& name, const std::string& what) {
  FOVEA_ASSIGN(const uint32_t type, c.number<uint32_t>(what));
  if (type >= kTypes) return Status::corrupt(name + ": " + what + ": value type " + std::to_string(type) + " is not known");
  return static_cast<GgufType>(type);
}

Status check_booleans(std::string_view bytes, const std::string& name, const std::string& what) {
  for (const char b : bytes) {
    if (b != 0 && b != 1) return Status::corrupt(name + ": " + what + ": a boolean is neither 0 nor 1");
  }
  return Status();
}

Status read_array(Cursor& c, const std::string& name, const std::string& what, std::string_view file, GgufValue* v) {
  v->is_array = true;
  FOVEA_ASSIGN(v->type, read_type(c, name, what));
  if (v->type == GgufType::array) return Status::unsupported(name + ": " + what + ": an array of arrays is not supported");
  FOVEA_ASSIGN(v->count, c.number<uint64_t>(what));
  const uint64_t least = v->type == GgufType::string ? sizeof(uint64_t) : scalar_bytes(v->type);
  if (v->count > c.left() / least) {
    return Status::corrupt(name + ": " + what + ": an array of " + std::to_string(v->count) + " does not fit in the " +
                           std::to_string(c.left()) + " bytes that are left (truncated file?)");
  }
  if (v->type != GgufType::string) {
    FOVEA_ASSIGN(v->bytes, c.take(v->count * least, what));
    return Status();
  }
  const size_t begin = c.at();
  for (uint64_t i = 0; i < v->count; ++i) FOVEA_TRY(c.string(what).status());
  v->bytes = file.substr(begin, c.at() - begin);
  return Status();
}

Result<GgufValue> read_value(Cursor& c, const std::string& name, const std::string& what, std::string_view file) {
  GgufValue v;
  FOVEA_ASSIGN(v.type, read_type(c, name, what));
  if (v.type == GgufType::array) {
    FOVEA_TRY(read_array(c, name, what, file, &v));
  } else if (v.type == GgufType::string) {
    FOVEA_ASSIGN(v.bytes, c.string(what));
  } else {
    FOVEA_ASSIGN(v.bytes, c.take(scalar_bytes(v.type), what));
  }
  if (v.type == GgufType::boolean) FOVEA_TRY(check_booleans(v.bytes, name, what));
  return v;
}

Status read_metadata(Cursor& c, uint64_t count, std::string_view file, GgufHeader* h) {
  if (count > c.left() / kEntryBytesMin) {
    return Status::corrupt(h->where + ": " + std::to_string(count) + " keys do not fit in the file (truncated file?)");
  }
  for (uint64_t i = 0; i < count; ++i) {
    const std::string number = "key " + std::to_string(i);
    FOVEA_ASSIGN(const std::string_view key, c.string(number));
    if (key.empty() || key.size() > kKeyBytesMax) {
      return Status::corrupt(h->where + ": " + number + ": a name of " + std::to_string(key.size()) + " bytes");
    }
    FOVEA_ASSIGN(const GgufValue value, read_value(c, h->where, "key " + quote_name(key), file));
    if (!h->metadata.emplace(key, value).second) return Status::corrupt(h->where + ": key " + quote_name(key) + " is there twice");
  }
  return Status();
}

// The shape and, from it and the type, the bytes.
Status read_shape(Cursor& c, const std::string& where, const std::string& what, GgufTensor* t) {
  FOVEA_ASSIGN(const uint32_t rank, c.number<uint32_t>(what));
  if (rank < 1 || rank > 4)
    return Status::corrupt(where + ": " + what + ": " + std::to_string(rank) + " dimensions are not 1 to 4");
  int64_t elements = 1;
  for (uint32_t d = 0; d < rank; ++d) {
    FOVEA_ASSIGN(const uint64_t size, c.number<uint64_t>(what));
    if (size == 0 || size > static_cast<uint64_t>(kElementsMax / elements)) {
      return Status::corrupt(where + ": " + what + ": dimension " + std::to_string(d) + " of " + std::to_string(size) +
                             " is impossible");
    }
    elements *= static_cast<int64_t>(size);
    t->shape.insert(t->shape.begin(), static_cast<int64_t>(size));
  }
  FOVEA_ASSIGN(const uint32_t type, c.number<uint32_t>(what));
  t->type = find_type(type);
  if (t->type == nullptr) {
    return Status::unsupported(where + ": " + what + ": tensor type " + std::to_string(type) + " is not known");
  }
  if (t->shape.back() % t->type->block != 0) {
    return Status::corrupt(where + ": " + what + ": rows of " + std::to_string(t->shape.back()) + " are not whole blocks of " +
                           std::string(t->type->name));
  }
  t->bytes = static_cast<uint64_t>(elements / t->type->block * t->type->bytes);
  return Status();
}

// Offsets count from where the data begins, which is known once all tensors are read.
Status read_tensors(Cursor& c, uint64_t count, GgufHeader* h) {
  if (count > c.left() / kTensorBytesMin) {
    return Status::corrupt(h->where + ": " + std::to_string(count) + " tensors do not fit in the file (truncated file?)");
  }
  h->tensors.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    GgufTensor t;
    std::string what = "tensor " + std::to_string(i);
    FOVEA_ASSIGN(t.name, c.string(what));
    if (t.name.empty() || t.name.size() > kTensorNameBytesMax) {
      return Status::corrupt(h->where + ": " + what + ": a name of " + std::to_string(t.name.size()) + " bytes");
    }
    what = "tensor " + quote_name(t.name);
    FOVEA_TRY(read_shape(c, h->where, what, &t));
    FOVEA_ASSIGN(t.begin, c.number<uint64_t>(what));
    h->tensors.push_back(std::move(t));
  }
  return Status();
}

Status check_names(const GgufHeader& h) {
  std::vector<std::string_view> names;
  for (const GgufTensor& t : h.tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  return twice == names.end() ? Status() : Status::corrupt(h.where + ": tensor " + quote_name(*twice) + " is there twice");
}

// Offsets become places in the file, each aligned and whole within it, none within another.
Status place_tensors(uint64_t alignment, uint64_t file_bytes, GgufHeader* h) {
  std::vector<const GgufTensor*> order;
  for (GgufTensor& t : h->tensors) {
    const std::string at = h->where + ": tensor " + quote_name(t.name) + ": ";
    const uint64_t room = file_bytes - std::min<uint64_t>(h->data_begin, file_bytes);
    if (t.begin % alignment != 0) return Status::corrupt(at + "offset " + std::to_string(t.begin) + " is not aligned");
    if (t.begin > room || t.bytes > room - t.begin) {
      return Status::corrupt(at + std::to_string(t.bytes) + " bytes at offset " + std::to_string(t.begin) + " exceed the " +
                             std::to_string(room) + " of data (truncated file?)");
    }
    t.begin += h->data_begin;
    order.push_back(&t);
  }
  std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->begin + order[i - 1]->bytes <= order[i]->begin) continue;
    return Status::corrupt(h->where + ": tensor " + quote_name(order[i]->name) + " overlaps tensor " +
                           quote_name(order[i - 1]->name));
  }
  return Status();
}

}  // namespace

const GgufTensorType& gguf_tensor_type(WeightType type) {
  const auto* found = std::ranges::find(kTensorTypes, std::optional(type), &GgufTensorType::weight);
  FOVEA_CHECK(found != std::end(kTensorTypes));
  return *found;
}

std::string gguf_weight_types() {
  std::string out;
  for (const GgufTensorType& t : kTensorTypes) {
    if (t.weight) out += (out.empty() ? "" : " ") + std::string(t.name);
  }
  return out;
}

Result<GgufHeader> parse_gguf_header(std::string_view file, const std::string& name) {
  GgufHeader h;
  h.where = name;
  Cursor c(file, h.where);
  FOVEA_ASSIGN(const std::string_view magic, c.take(kMagic.size(), "the file's mark"));
  if (magic != kMagic) return Status::corrupt(name + ": it does not begin with \"GGUF\"");
  FOVEA_ASSIGN(const uint32_t version, c.number<uint32_t>("the version"));
  if (version != 2 && version != 3) {
    const bool swapped = version >> 24 == 2 || version >> 24 == 3;
    return Status::unsupported(name + ": GGUF version " + std::to_string(version) + " is not supported (2 and 3 are" +
                               (swapped ? "; the file is big endian)" : ")"));
  }
  FOVEA_ASSIGN(const uint64_t tensors, c.number<uint64_t>("the number of tensors"));
  FOVEA_ASSIGN(const uint64_t keys, c.number<uint64_t>("the number of keys"));
  FOVEA_TRY(read_metadata(c, keys, file, &h));
  FOVEA_TRY(read_tensors(c, tensors, &h));
  FOVEA_TRY(check_names(h));
  FOVEA_ASSIGN(const auto aligned, h.integer("general.alignment", 8, kAlignmentMax));
  const uint64_t alignment = static_cast<uint64_t>(aligned.value_or(kAlignmentDefault));
  if (!std::has_single_bit(alignment)) return h.wrong("general.alignment", "a power of two");
  h.data_begin = (c.at() + alignment - 1) / alignment * alignment;
  FOVEA_TRY(place_tensors(alignment, file.size(), &h));
  return h;
}

}  // namespace fovea
