#include "server/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fovea::server {
namespace {

// Most keys of one object, and of all: objects keep the order of their keys, so that each key costs a walk over those before it.
constexpr int64_t kObjectKeysMax = 2048, kKeysMax = 262144;

// Bounds on what parsing would build, from the text alone: brackets and colons outside strings.
Status check_shape(std::string_view text, int depth_max) {
  std::vector<int64_t> keys = {0};  // of the brackets that are open
  int64_t all_keys = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      keys.push_back(0);
      if (static_cast<int>(keys.size()) - 1 > depth_max)
        return Status::invalid_argument("the body's JSON is nested deeper than " + std::to_string(depth_max) + " levels");
    } else if ((c == '}' || c == ']') && keys.size() > 1) {
      keys.pop_back();
    } else if (c == ':') {
      if (++keys.back() > kObjectKeysMax || ++all_keys > kKeysMax)
        return Status::invalid_argument("the body's JSON has more than " + std::to_string(kObjectKeysMax) +
                                        " keys in an object or " + std::to_string(kKeysMax) + " in all");
    }
  }
  return {};
}

std::string range_text(double min, double max) {
  const auto text = [](double x) {
    std::string s = x == std::floor(x) && std::abs(x) < 1e15 ? std::to_string(static_cast<int64_t>(x)) : std::to_string(x);
    return s;
  };
  return "must lie in [" + text(min) + ", " + text(max) + "]";
}

}  // namespace

Result<Json> parse_object(std::string_view text, int depth_max) {
  FOVEA_TRY(check_shape(text, depth_max));
  try {
    Json value = Json::parse(text);
    if (!value.is_object()) return Status::invalid_argument("the body must be a JSON object");
    return value;
  } catch (const Json::exception& e) {
    // nlohmann quotes what it read last: a prompt has no business in an error, so only the place is told.
    const auto* parse = dynamic_cast<const Json::parse_error*>(&e);
    return Status::invalid_argument("the body is not valid JSON" +
                                    (parse ? " at byte " + std::to_string(parse->byte) : std::string()));
  }
}

const Json* JsonFields::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void JsonFields::fail(const std::string& name, const std::string& what) {
  if (status_.ok()) status_ = Status::invalid_argument(where_ + name + ": " + what);
}

void JsonFields::boolean(const char* name, bool* out) {
  const Json* v = find(name);
  if (!v) return;
  if (!v->is_boolean()) return fail(name, "must be true or false");
  *out = v->get<bool>();
}

void JsonFields::text(const char* name, size_t bytes_max, std::string* out) {
  const Json* v = find(name);
  if (!v) return;
  if (!v->is_string()) return fail(name, "must be a string");
  const std::string& s = v->get_ref<const std::string&>();
  if (s.size() > bytes_max) return fail(name, "has more than " + std::to_string(bytes_max) + " bytes");
  *out = s;
}

void JsonFields::integer(const char* name, int64_t min, int64_t max, std::optional<int64_t>* out) {
  const Json* v = find(name);
  if (!v) return;
  if (!v->is_number_integer()) return fail(name, "must be an integer");
  const bool too_large = v->is_number_unsigned() && v->get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max());
  const int64_t i = too_large ? std::numeric_limits<int64_t>::max() : v->get<int64_t>();
  if (too_large || i < min || i > max) return fail(name, "must lie in [" + std::to_string(min) + ", " + std::to_string(max) + "]");
  *out = i;
}

void JsonFields::integer(const char* name, int64_t min, int64_t max, int32_t* out) {
  std::optional<int64_t> wide;
  integer(name, min, max, &wide);
  if (wide) *out = static_cast<int32_t>(*wide);
}

void JsonFields::number(const char* name, double min, double max, std::optional<float>* out) {
  const Json* v = find(name);
  if (!v) return;
  if (!v->is_number()) return fail(name, "must be a number");
  const double d = v->get<double>();
  if (!(d >= min && d <= max)) return fail(name, range_text(min, max));
  *out = static_cast<float>(d);
}

void JsonFields::number(const char* name, double min, double max, float* out) {
  std::optional<float> value;
  number(name, min, max, &value);
  if (value) *out = *value;
}

void JsonFields::token_ids(const char* name, size_t count_max, std::vector<int32_t>* out) {
  const Json* v = find(name);
  if (!v) return;
  if (!v->is_array()) return fail(name, "must be a list of token ids");
  if (v->size() > count_max) return fail(name, "has more than " + std::to_string(count_max) + " entries");
  for (const Json& id : *v) {
    // As unsigned, so that no number that is too large wraps into the range.
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t(std::numeric_limits<int32_t>::max()))
      return fail(name, "must be a list of token ids");
    out->push_back(id.get<int32_t>());
  }
}

void JsonFields::object(const char* name, const Json** out) {
  const Json* v = find(name);
  if (!v) return;
  if (!v->is_object()) return fail(name, "must be an object");
  *out = v;
}

std::string field_of(const std::string& message) {
  const size_t colon = message.find(": ");
  if (colon == std::string::npos) return "";
  const std::string field = message.substr(0, colon);
  const bool is_name = !field.empty() && std::all_of(field.begin(), field.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.' || c == '[' || c == ']';
  });
  return is_name ? field : "";
}

}  // namespace fovea::server
