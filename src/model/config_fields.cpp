#include "model/config_fields.h"

#include <cmath>
#include <sstream>

#include "model/json_reader.h"

namespace fovea {
namespace {

using nlohmann::json;

// A JSON number that is a whole one within 63 bits.
std::optional<int64_t> whole(const json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

std::string plain(double x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

}  // namespace

const json* ConfigFields::find(const char* field) const {
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

Status ConfigFields::wrong(const char* field, const std::string& expected) const {
  const json* value = find(field);
  const std::string have = value == nullptr ? (present(field) ? " is null" : " is missing") : " is " + json_snippet(*value);
  return Status::corrupt(where_ + ": field " + field + have + ", expected " + expected);
}

Status ConfigFields::unsupported(const char* field, const std::string& known) const {
  const json* value = find(field);
  return Status::unsupported(where_ + ": " + field + " " + (value == nullptr ? "null" : json_snippet(*value)) +
                             " is not supported (" + known + ")");
}

Result<std::optional<int64_t>> ConfigFields::integer(const char* field, int64_t least, int64_t most) const {
  const json* value = find(field);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> n = whole(*value);
  if (n && *n >= least && *n <= most) return n;
  return wrong(field, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<int64_t> ConfigFields::required_integer(const char* field, int64_t least, int64_t most) const {
  FOVEA_ASSIGN(const std::optional<int64_t> n, integer(field, least, most));
  if (n) return *n;
  return wrong(field, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<std::optional<double>> ConfigFields::number(const char* field, double least, double most) const {
  const json* value = find(field);
  if (value == nullptr) return std::optional<double>();
  if (value->is_number()) {
    const double x = value->get<double>();
    if (x >= least && x <= most) return std::optional<double>(x);
  }
  return wrong(field, "a number from " + plain(least) + " to " + plain(most));
}

Result<std::optional<bool>> ConfigFields::boolean(const char* field) const {
  const json* value = find(field);
  if (value == nullptr) return std::optional<bool>();
  if (value->is_boolean()) return std::optional<bool>(value->get<bool>());
  return wrong(field, "true or false");
}

Result<std::string> ConfigFields::text(const char* field) const {
  const json* value = find(field);
  if (value == nullptr) return std::string();
  if (value->is_string()) return value->get<std::string>();
  return wrong(field, "a string");
}

Result<std::vector<int32_t>> ConfigFields::ids(const char* field, int64_t most) const {
  std::vector<int32_t> out;
  const json* value = find(field);
  if (value == nullptr) return out;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& item : list) {
    const std::optional<int64_t> id = whole(item);
    if (!id || *id < 0 || *id > most) {
      return wrong(field, "token ids from 0 to " + std::to_string(most));
    }
    out.push_back(static_cast<int32_t>(*id));
  }
  return out;
}

}  // namespace fovea
