// Reads the fields of a JSON object that came from outside. The first error stays, as "field: what is wrong"; a field that is
// absent or null leaves its target as it is.
#pragma once

#include <fovea/status.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::server {

using Json = nlohmann::ordered_json;

// Parses one JSON text. Refuses what is nested deeper than depth_max before it builds anything, and a top level that is no object.
Result<Json> parse_object(std::string_view text, int depth_max);

class JsonFields {
 public:
  // `where` leads the names of errors: "fovea." or nothing.
  JsonFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Json* find(const char* name) const;  // null: absent or null
  void boolean(const char* name, bool* out);
  void text(const char* name, size_t bytes_max, std::string* out);
  void integer(const char* name, int64_t min, int64_t max, std::optional<int64_t>* out);
  void integer(const char* name, int64_t min, int64_t max, int32_t* out);
  void number(const char* name, double min, double max, std::optional<float>* out);
  void number(const char* name, double min, double max, float* out);
  void token_ids(const char* name, size_t count_max, std::vector<int32_t>* out);
  void object(const char* name, const Json** out);

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  void fail(const std::string& name, const std::string& what);

 private:
  const Json& object_;
  std::string where_;
  Status status_;
};

// The field that an error of a request names, ours or the engine's: what stands before its first ": "; empty: none.
std::string field_of(const std::string& message);

}  // namespace fovea::server
