#include "base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace fovea {
namespace {

// The number behind `key` in a file of lines "key number".
std::optional<int64_t> number_of(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  std::string word, rest;
  for (int64_t number = 0; in >> word; std::getline(in, rest)) {
    if (word == key && in >> number) return number;
  }
  return std::nullopt;
}

std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream in(path);
  int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;  // "max", or no such file
}

// What a group's limit leaves: pages of files are let go before anything fails.
std::optional<int64_t> left_in_group(const std::string& folder) {
  const auto limit = number_in(folder + "/memory.max"), used = number_in(folder + "/memory.current");
  if (!limit || !used) return std::nullopt;
  const auto files = [&](const char* key) { return number_of(folder + "/memory.stat", key).value_or(0); };
  return std::max<int64_t>(0, *limit - *used + files("inactive_file") + files("active_file"));
}

// "/a/b" of the line "0::/a/b".
std::string group_of_process(const std::string& root) {
  std::ifstream in(root + "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace

int64_t available_memory(const std::string& root) {
  constexpr int64_t kUnknown = int64_t{4} << 30;
  const auto kib = number_of(root + "proc/meminfo", "MemAvailable:");
  int64_t bytes = kib ? *kib * 1024 : kUnknown;
  // A container sees its own group as the root of all.
  for (std::string group = group_of_process(root);; group.resize(group.rfind('/'))) {
    if (const auto left = left_in_group(root + "sys/fs/cgroup" + group)) bytes = std::min(bytes, *left);
    if (group.empty() || group == "/") return bytes;
  }
}

}  // namespace fovea
