// A JSON value that knows its place in the document, so that an error can name field and value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fovea/status.h>
#include <nlohmann/json.hpp>

namespace fovea {

class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  // Text of at most `bytes_max` bytes and `depth_max` nested arrays and objects. Syntax errors give the byte.
  static Result<nlohmann::json> parse(std::string_view text, size_t bytes_max, int depth_max);

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }

  bool has(const char* key) const;              // there, and not null
  Result<JsonField> at(const char* key) const;  // there, and this is an object
  JsonField item(size_t index) const;           // of an array, in range

  Result<std::string> text() const;
  Result<bool> boolean() const;
  Result<int64_t> integer(int64_t least, int64_t most) const;
  Status expect_array() const;
  Status expect_object() const;

  Result<std::string> text(const char* key) const;
  Result<bool> boolean(const char* key) const;
  Result<bool> boolean(const char* key, bool missing) const;  // missing: not there or null

  // `path: what`, with the value shown.
  Status invalid(const std::string& what) const;
  Status unsupported(const std::string& what) const;

 private:
  std::string shown() const;  // the value, cut to a few dozen characters
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace fovea
