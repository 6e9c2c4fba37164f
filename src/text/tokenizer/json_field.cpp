#include "text/tokenizer/json_field.h"

namespace fovea {
namespace {

constexpr size_t kShownBytes = 60;

// Offset of the first bracket nested too deeply, or npos. Counts brackets outside of strings; syntax is not
// its job.
size_t too_deep_at(std::string_view text, int depth_max) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if ((c == '[' || c == '{') && ++depth > depth_max) return i;
    if (c == ']' || c == '}') --depth;
  }
  return std::string_view::npos;
}

}  // namespace

Result<nlohmann::json> JsonField::parse(std::string_view text, size_t bytes_max, int depth_max) {
  if (text.size() > bytes_max) {
    return Status::unsupported("a file of " + std::to_string(text.size()) + " bytes (at most " + std::to_string(bytes_max) + ")");
  }
  if (const size_t at = too_deep_at(text, depth_max); at != std::string_view::npos) {
    return Status::invalid_argument("nesting deeper than " + std::to_string(depth_max) + " at byte " + std::to_string(at));
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    std::string what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const size_t bracket = what.find("] "); bracket != std::string::npos) what.erase(0, bracket + 2);
    for (char& c : what) {
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    }
    return Status::invalid_argument("not JSON: " + what);
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted("no memory to read the JSON");
  }
}

bool JsonField::has(const char* key) const {
  const auto it = value_->is_object() ? value_->find(key) : value_->end();
  return it != value_->end() && !it->is_null();
}

Result<JsonField> JsonField::at(const char* key) const {
  FOVEA_TRY(expect_object());
  const auto it = value_->find(key);
  const std::string path = path_.empty() ? key : path_ + "." + key;
  if (it == value_->end()) return Status::invalid_argument(path + ": the field is missing");
  return JsonField(*it, path);
}

JsonField JsonField::item(size_t index) const { return JsonField((*value_)[index], path_ + "[" + std::to_string(index) + "]"); }

Result<std::string> JsonField::text() const {
  if (!value_->is_string()) return invalid("is not a string");
  return value_->get_ref<const std::string&>();
}

Result<bool> JsonField::boolean() const {
  if (!value_->is_boolean()) return invalid("is not true or false");
  return value_->get<bool>();
}

Result<int64_t> JsonField::integer(int64_t least, int64_t most) const {
  if (!value_->is_number_integer()) return invalid("is not an integer");
  const bool huge = value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (huge || value_->get<int64_t>() < least || value_->get<int64_t>() > most) {
    return invalid("is not in " + std::to_string(least) + ".." + std::to_string(most));
  }
  return value_->get<int64_t>();
}

Status JsonField::expect_array() const { return value_->is_array() ? Status() : invalid("is not an array"); }
Status JsonField::expect_object() const { return value_->is_object() ? Status() : invalid("is not an object"); }

Result<std::string> JsonField::text(const char* key) const {
  FOVEA_ASSIGN(const JsonField field, at(key));
  return field.text();
}

Result<bool> JsonField::boolean(const char* key) const {
  FOVEA_ASSIGN(const JsonField field, at(key));
  return field.boolean();
}

Result<bool> JsonField::boolean(const char* key, bool missing) const {
  if (!has(key)) return missing;
  return boolean(key);
}

std::string JsonField::shown() const {
  if (value_->is_array()) return "an array of " + std::to_string(value_->size());
  if (value_->is_object()) return "an object of " + std::to_string(value_->size());
  std::string text = value_->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

Status JsonField::invalid(const std::string& what) const {
  return Status::invalid_argument((path_.empty() ? "the document" : path_) + ": " + shown() + " " + what);
}

Status JsonField::unsupported(const std::string& what) const {
  return Status::unsupported((path_.empty() ? "the document" : path_) + ": " + shown() + " " + what);
}

}  // namespace fovea
