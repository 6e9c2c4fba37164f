#include "model/json_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

namespace fovea {
namespace {

using nlohmann::json;

constexpr size_t kQuotedBytesMax = 120;
constexpr size_t kSnippetBytesMax = 60;

// Walks the text once and remembers the first thing that is not allowed; builds nothing.
class StrictJsonCheck : public nlohmann::json_sax<json> {
 public:
  const std::string& error() const { return error_; }

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    return fail("key " + quote_name(name) + " appears twice in one object");
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    std::string_view what = e.what();  // "[json.exception...] parse error at line 1, column 2: reason"
    const size_t at = what.rfind("; last read");
    if (at != std::string_view::npos) what = what.substr(0, at);
    const size_t colon = what.find(": ");
    if (colon != std::string_view::npos) what = what.substr(colon + 2);
    return fail("not valid JSON at byte " + std::to_string(position) + ": " + std::string(what));
  }

 private:
  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }
  bool value() { return keys_.empty() ? fail("the top level is not a JSON object") : true; }
  bool open() {
    if (keys_.size() >= kJsonDepthMax) {
      return fail("nested deeper than " + std::to_string(kJsonDepthMax) + " levels");
    }
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> keys_;  // keys seen, one set per open object or array
  std::string error_;
};

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};

}  // namespace

std::string quote_name(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kQuotedBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02x", byte);
      out += hex;
    } else {
      out += c;
    }
  }
  out += text.size() > kQuotedBytesMax ? "...\"" : "\"";
  return out;
}

std::string json_snippet(const json& value) {
  if (value.is_string()) return quote_name(value.get_ref<const std::string&>());
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kSnippetBytesMax) text = text.substr(0, kSnippetBytesMax) + "...";
  return text;
}

Result<json> parse_json_object(std::string_view text, const std::string& name) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (text.empty()) return Status::corrupt(name + ": the file is empty");
  StrictJsonCheck check;
  if (!json::sax_parse(begin, end, &check)) return Status::corrupt(name + ": " + check.error());
  json value = json::parse(begin, end, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return Status::corrupt(name + ": the top level is not a JSON object");
  return value;
}

Result<std::string> read_file(const std::string& path, uint64_t bytes_max) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    const std::string why = path + ": " + std::strerror(errno);
    return errno == ENOENT || errno == ENOTDIR ? Status::not_found(why) : Status::io_error(why);
  }
  if (!S_ISREG(info.st_mode)) return Status::invalid_argument(path + ": not a regular file");
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes > bytes_max) {
    return Status::invalid_argument(path + ": " + std::to_string(bytes) + " bytes, more than the " + std::to_string(bytes_max) +
                                    " allowed");
  }
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) return Status::io_error(path + ": " + std::strerror(errno));
  std::string text(bytes, '\0');
  const size_t got = std::fread(text.data(), 1, bytes, file.get());
  if (got != bytes) {
    return Status::io_error(path + ": read " + std::to_string(got) + " of " + std::to_string(bytes) + " bytes");
  }
  return text;
}

bool file_exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

}  // namespace fovea
