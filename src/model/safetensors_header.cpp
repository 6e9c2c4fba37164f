#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>

#include "model/json_reader.h"
#include "model/safetensors.h"

namespace fovea {
namespace {

using nlohmann::json;

struct StoredDType {
  std::string_view name;
  unsigned bits;
};
// Every dtype the format defines: the size of a tensor is checked even where its elements are never read.
constexpr StoredDType kStoredDTypes[] = {
    {"F64", 64},    {"F32", 32},    {"F16", 16}, {"BF16", 16}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},   {"I64", 64},  {"I32", 32},    {"I16", 16},    {"I8", 8},
    {"U64", 64},    {"U32", 32},    {"U16", 16}, {"U8", 8},    {"BOOL", 8},    {"C64", 64},
};

// Reads the header in one pass without a document tree, so a hostile header costs no more memory than its own
// size.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(SafetensorsHeader* out) : out_(out) {}
  const std::string& error() const { return error_; }

  bool start_object(size_t) override {
    switch (at_) {
      case At::nothing:
        at_ = At::top;
        return true;
      case At::entry_value:
        at_ = tensor_ == "__metadata__" ? At::metadata : At::fields;
        seen_fields_ = 0;
        return true;
      default:
        return unexpected("an object");
    }
  }
  bool end_object() override {
    if (at_ == At::fields) {
      if (seen_fields_ != kAllFields) return missing_field();
      at_ = At::top;
    } else if (at_ == At::metadata) {
      at_ = At::top;
    } else {
      at_ = At::done;
    }
    return true;
  }
  bool key(string_t& name) override {
    if (at_ == At::top) {
      const bool fresh = name == "__metadata__" ? !std::exchange(seen_metadata_, true) : out_->tensors.try_emplace(name).second;
      tensor_ = std::move(name);
      at_ = At::entry_value;
      return fresh ? true : fail("tensor " + quote_name(tensor_) + " appears twice");
    }
    field_ = std::move(name);
    if (at_ == At::metadata) {
      at_ = At::metadata_value;
      if (out_->metadata.try_emplace(field_).second) return true;
      return fail("__metadata__: key " + quote_name(field_) + " appears twice");
    }
    return field_key();
  }
  bool string(string_t& text) override {
    if (at_ == At::metadata_value) {
      out_->metadata[field_] = std::move(text);
      at_ = At::metadata;
      return true;
    }
    if (at_ != At::dtype) return unexpected("the string " + quote_name(text));
    entry().dtype = std::move(text);
    at_ = At::fields;
    return true;
  }
  bool start_array(size_t) override {
    if (at_ == At::shape_value) {
      at_ = At::shape_items;
    } else if (at_ == At::offsets_value) {
      at_ = At::offset_items;
    } else {
      return unexpected("an array");
    }
    return true;
  }
  bool end_array() override {
    if (at_ == At::offset_items && offsets_ != 2) {
      return fail(where() + "has " + std::to_string(offsets_) + " values, not 2");
    }
    at_ = At::fields;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (at_ == At::shape_items) return shape_item(value);
    if (at_ == At::offset_items) return offset_item(value);
    return unexpected("the number " + std::to_string(value));
  }
  bool number_integer(number_integer_t value) override { return unexpected("the number " + std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return unexpected("the number " + text); }
  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail("header is not valid JSON at its byte " + std::to_string(position));
  }

 private:
  enum class At {
    nothing,
    top,
    entry_value,
    metadata,
    metadata_value,
    fields,
    dtype,
    shape_value,
    shape_items,
    offsets_value,
    offset_items,
    done
  };
  static constexpr unsigned kDType = 1, kShape = 2, kOffsets = 4, kAllFields = 7;

  SafetensorsEntry& entry() { return out_->tensors[tensor_]; }

  bool field_key() {
    unsigned field = 0;
    if (field_ == "dtype") {
      field = kDType;
      at_ = At::dtype;
    } else if (field_ == "shape") {
      field = kShape;
      at_ = At::shape_value;
    } else if (field_ == "data_offsets") {
      field = kOffsets;
      at_ = At::offsets_value;
      offsets_ = 0;
    } else {
      return fail("tensor " + quote_name(tensor_) + ": unknown field " + quote_name(field_));
    }
    if (seen_fields_ & field) return fail("tensor " + quote_name(tensor_) + ": field " + field_ + " appears twice");
    seen_fields_ |= field;
    return true;
  }
  bool shape_item(uint64_t value) {
    std::vector<int64_t>& shape = entry().shape;
    if (shape.size() == kSafetensorsRankMax) {
      return fail(where() + "has more than " + std::to_string(kSafetensorsRankMax) + " dimensions");
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return fail(where() + "holds " + std::to_string(value) + ", more than 63 bits");
    }
    shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool offset_item(uint64_t value) {
    if (offsets_ < 2) (offsets_ == 0 ? entry().begin : entry().end) = value;
    ++offsets_;
    return true;
  }
  bool missing_field() {
    const char* name = !(seen_fields_ & kDType) ? "dtype" : !(seen_fields_ & kShape) ? "shape" : "data_offsets";
    return fail("tensor " + quote_name(tensor_) + ": field " + name + " is missing");
  }
  std::string where() const {
    if (at_ == At::metadata_value) return "__metadata__ " + quote_name(field_) + ": ";
    if (at_ == At::entry_value) return quote_name(tensor_) + ": ";
    return "tensor " + quote_name(tensor_) + ": field " + field_ + " ";
  }
  bool unexpected(const std::string& what) {
    if (at_ == At::nothing) return fail("header is not a JSON object but " + what);
    return fail(where() + "may not be " + what);
  }
  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }

  SafetensorsHeader* out_;
  At at_ = At::nothing;
  std::string tensor_, field_;
  unsigned seen_fields_ = 0;
  int64_t offsets_ = 0;
  bool seen_metadata_ = false;
  std::string error_;
};

// Bytes of `count` elements of `bits` each, nullopt where they do not fit 64 bits or do not end on a byte.
std::optional<uint64_t> bytes_of(std::span<const int64_t> shape, unsigned bits) {
  uint64_t count = 1;
  bool overflow = false;
  bool empty = false;
  for (const int64_t n : shape) {
    empty |= n == 0;
    overflow |= __builtin_mul_overflow(count, static_cast<uint64_t>(n), &count);
  }
  if (empty) return 0;
  overflow |= __builtin_mul_overflow(count, static_cast<uint64_t>(bits), &count);
  if (overflow || count % 8 != 0) return std::nullopt;
  return count / 8;
}

Status check_entry(const std::string& name, const SafetensorsEntry& e, uint64_t data_bytes) {
  const std::string range = "[" + std::to_string(e.begin) + ", " + std::to_string(e.end) + "]";
  if (e.begin > e.end || e.end > data_bytes) {
    return Status::corrupt("tensor " + quote_name(name) + ": data_offsets " + range + " are not within the " +
                           std::to_string(data_bytes) + " bytes of data");
  }
  const auto* known =
      std::find_if(std::begin(kStoredDTypes), std::end(kStoredDTypes), [&](const StoredDType& t) { return t.name == e.dtype; });
  if (known == std::end(kStoredDTypes)) return Status();  // refused when it is asked for
  const std::optional<uint64_t> bytes = bytes_of(e.shape, known->bits);
  if (!bytes) {
    return Status::corrupt("tensor " + quote_name(name) + ": shape " + shape_text(e.shape) + " of " + e.dtype +
                           " is no number of bytes that fits 64 bits");
  }
  if (*bytes != e.end - e.begin) {
    return Status::corrupt("tensor " + quote_name(name) + ": shape " + shape_text(e.shape) + " of " + e.dtype + " needs " +
                           std::to_string(*bytes) + " bytes, data_offsets " + range + " hold " + std::to_string(e.end - e.begin));
  }
  return Status();
}

// The ranges, in order of their begin, must follow one another from 0 to data_bytes.
Status check_coverage(const SafetensorsHeader& header, uint64_t data_bytes) {
  struct Range {
    uint64_t begin, end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  ranges.reserve(header.tensors.size());
  for (const auto& [name, e] : header.tensors) ranges.push_back({e.begin, e.end, &name});
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  uint64_t covered = 0;
  for (const Range& r : ranges) {
    if (r.begin != covered) {
      return Status::corrupt("tensor " + quote_name(*r.name) + ": data_offsets begin at " + std::to_string(r.begin) +
                             (r.begin < covered ? ", inside another tensor that ends at " : ", which leaves a gap after byte ") +
                             std::to_string(covered));
    }
    covered = r.end;
  }
  if (covered != data_bytes) {
    return Status::corrupt("the tensors cover " + std::to_string(covered) + " of " + std::to_string(data_bytes) + " bytes of data");
  }
  return Status();
}

// A shard must lie in the model's own directory: a plain file name, never a path.
bool plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view header_json, uint64_t data_bytes, const std::string& name) {
  if (header_json.empty() || header_json.front() != '{') {
    return Status::corrupt(name + ": header does not begin with '{'");
  }
  SafetensorsHeader header;
  HeaderReader reader(&header);
  if (!nlohmann::json::sax_parse(header_json.data(), header_json.data() + header_json.size(), &reader)) {
    return Status::corrupt(name + ": " + reader.error());
  }
  for (const auto& [tensor, entry] : header.tensors) {
    FOVEA_TRY(check_entry(tensor, entry, data_bytes).with_context(name));
  }
  FOVEA_TRY(check_coverage(header, data_bytes).with_context(name));
  return header;
}

Result<std::map<std::string, std::vector<std::string>>> parse_safetensors_index(std::string_view text, const std::string& name) {
  FOVEA_ASSIGN(const nlohmann::json index, parse_json_object(text, name));
  const auto weights = index.find("weight_map");
  if (weights == index.end() || !weights->is_object() || weights->empty()) {
    return Status::corrupt(name + ": field weight_map is not an object that names tensors");
  }
  std::map<std::string, std::vector<std::string>> by_shard;
  for (const auto& [tensor, shard] : weights->items()) {
    if (!shard.is_string() || !plain_file_name(shard.get_ref<const std::string&>())) {
      return Status::corrupt(name + ": weight_map " + quote_name(tensor) + ": " + json_snippet(shard) +
                             " is not the name of a file in the model's directory");
    }
    by_shard[shard.get<std::string>()].push_back(tensor);
  }
  return by_shard;
}

}  // namespace fovea
