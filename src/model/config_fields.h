// Typed access to the fields of a JSON object, where every error is one line with file, field and value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <fovea/status.h>

namespace fovea {

// Most that is taken from a file.
inline constexpr int64_t kWidthMax = 1 << 20;  // hidden and intermediate size: products of two stay far within 63 bits
inline constexpr int64_t kHeadsMax = 4096;
inline constexpr int64_t kLayersMax = 4096;
inline constexpr int64_t kVocabMax = 1 << 24;
inline constexpr int64_t kPositionsMax = 1 << 30;
inline constexpr double kThetaMin = 1.0 + 1e-6, kThetaMax = 1e15;  // rope's base; above 1: yarn divides by its logarithm

class ConfigFields {
 public:
  // `where` leads every error: the file, and the path of a nested object. `object` outlives this.
  ConfigFields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // Null or absent: nullptr.
  const nlohmann::json* find(const char* field) const;
  bool present(const char* field) const { return object_.contains(field); }  // also where it is null

  // Absent or null: nullopt. A wrong kind or a value outside [least, most]: corrupt.
  Result<std::optional<int64_t>> integer(const char* field, int64_t least, int64_t most) const;
  Result<std::optional<double>> number(const char* field, double least, double most) const;
  Result<std::optional<bool>> boolean(const char* field) const;
  Result<std::string> text(const char* field) const;  // absent or null: empty
  // One id or a list of ids, each in [0, most]; absent or null: empty.
  Result<std::vector<int32_t>> ids(const char* field, int64_t most) const;

  // The same, and the field must be there.
  Result<int64_t> required_integer(const char* field, int64_t least, int64_t most) const;

  Status wrong(const char* field, const std::string& expected) const;
  Status unsupported(const char* field, const std::string& known) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace fovea
