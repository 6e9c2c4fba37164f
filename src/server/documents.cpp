#include "server/documents.h"

#include "server/hex_digest.h"
#include "server/json_fields.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace fovea::server {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;

size_t bytes_of(const Document& d) {
  return sizeof(d) + d.text.size() + d.system.size() + d.name.size() + d.salt.size() + d.tokens.size() * sizeof(TokenId);
}

bool is_over(const Document& d, int64_t now_s) { return d.expires_s != 0 && d.expires_s <= now_s; }

Status os_error(const std::string& path) { return Status::io_error(path + ": " + std::strerror(errno)); }

// All of `bytes`, on the disk.
Status write_file(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_error(path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return ::fsync(fd) == 0 ? Status() : os_error(path);
}

Result<std::string> read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in) return Status::io_error("cannot be read");
  return text.str();
}

}  // namespace

std::string document_id(const Document& d) {
  std::string content;
  for (const std::string* part : {&d.owner, &d.salt, &d.system, &d.prefill_method, &d.text})
    content += std::to_string(part->size()) + ":" + *part;  // no two lists of parts make the same bytes
  return "doc-" + hex_digest(content).substr(0, 32);
}

std::string document_json(const Document& d) {
  const Json json = {{"format", kFormat},
                     {"id", d.id},
                     {"name", d.name},
                     {"owner", d.owner},
                     {"cache_salt", d.salt},
                     {"system", d.system},
                     {"prefill_method", d.prefill_method},
                     {"created_at", d.created_s},
                     {"expires_at", d.expires_s},
                     {"token_ids", d.tokens},
                     {"text", d.text}};
  return json.dump() + "\n";
}

Result<Document> parse_document(std::string_view text) {
  FOVEA_ASSIGN(const Json root, parse_object(text, /*depth_max=*/3));
  constexpr size_t kAny = std::numeric_limits<size_t>::max();
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  JsonFields fields(root, "");
  Document d;
  std::optional<int64_t> format, created, expires;
  fields.integer("format", kFormat, kFormat, &format);
  fields.text("id", kAny, &d.id);
  fields.text("name", kAny, &d.name);
  fields.text("owner", kAny, &d.owner);
  fields.text("cache_salt", kAny, &d.salt);
  fields.text("system", kAny, &d.system);
  fields.text("prefill_method", kAny, &d.prefill_method);
  fields.text("text", kAny, &d.text);
  fields.integer("created_at", 0, kLast, &created);
  fields.integer("expires_at", 0, kLast, &expires);
  fields.token_ids("token_ids", kAny, &d.tokens);
  if (!format) fields.fail("format", "is missing");
  FOVEA_TRY(fields.status());
  if (d.id != document_id(d)) return Status::corrupt("id: not that of the content");
  d.created_s = created.value_or(0);
  d.expires_s = expires.value_or(0);
  return d;
}

Status Documents::open(std::string dir, bool readonly, int64_t now_s, std::vector<std::string>* notes) {
  dir_ = std::move(dir);
  readonly_ = readonly;
  std::error_code error;
  if (!fs::exists(dir_, error)) return {};
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_, error)) {
    const fs::path& path = entry.path();
    // A crash between writing and renaming leaves these.
    if (path.extension() == ".tmp" && !readonly) fs::remove(path, error);
    if (path.extension() != ".json") continue;
    const Result<std::string> text = read_file(path);
    Result<Document> d = text.ok() ? parse_document(*text) : text.status();
    if (d.ok() && d->id + ".json" != path.filename()) d = Status::corrupt("id: not that of the file's name");
    if (!d.ok()) {
      notes->push_back(path.string() + ": " + d.status().message());
    } else if (is_over(*d, now_s)) {
      if (!readonly) fs::remove(path, error);
    } else if (const Status s = check_room(*d); !s.ok()) {
      notes->push_back(path.string() + ": " + s.message());
    } else {
      bytes_ += bytes_of(*d);
      const std::string id = d->id;
      documents_[id] = std::make_shared<const Document>(*std::move(d));
    }
  }
  return error ? Status::io_error(dir_ + ": " + error.message()) : Status();
}

Status Documents::check_room(const Document& d) const {
  const auto old = documents_.find(d.id);
  const size_t replaced = old == documents_.end() ? 0 : bytes_of(*old->second);
  if (old == documents_.end() && documents_.size() >= documents_max_)
    return Status::busy("there are " + std::to_string(documents_max_) + " documents (--max-documents): delete some");
  if (bytes_ - replaced + bytes_of(d) > bytes_max_)
    return Status::busy("all documents would have more than " + std::to_string(bytes_max_) +
                        " bytes (--max-documents-size): delete some");
  return {};
}

// To a file that only its owner reads, under a name of its own.
Status Documents::write(const Document& d, std::string* temporary) {
  if (::mkdir(dir_.c_str(), 0700) != 0 && errno != EEXIST) return os_error(dir_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    *temporary = dir_ + "/" + std::to_string(++written_) + ".tmp";
  }
  const int fd = ::open(temporary->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return os_error(*temporary);
  const Status s = write_file(fd, document_json(d), *temporary);
  if (::close(fd) != 0 && s.ok()) return os_error(*temporary);
  return s;
}

Result<std::shared_ptr<const Document>> Documents::put(Document document, int64_t now_s) {
  document.id = document_id(document);
  document.created_s = now_s;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    FOVEA_TRY(check_room(document));
    if (const auto old = documents_.find(document.id); old != documents_.end()) document.created_s = old->second->created_s;
  }
  // Without the lock: disks may take their time.
  std::string temporary;
  const bool in_file = !dir_.empty() && !readonly_;
  if (in_file) {
    if (Status s = write(document, &temporary); !s.ok()) {
      ::unlink(temporary.c_str());
      return s;
    }
  }
  const auto made = std::make_shared<const Document>(std::move(document));
  std::lock_guard<std::mutex> lock(mutex_);
  Status s = check_room(*made);
  if (s.ok() && in_file && ::rename(temporary.c_str(), path_of(made->id).c_str()) != 0) s = os_error(path_of(made->id));
  if (!s.ok()) {
    if (in_file) ::unlink(temporary.c_str());
    return s;
  }
  std::shared_ptr<const Document>& place = documents_[made->id];
  if (place) bytes_ -= bytes_of(*place);
  bytes_ += bytes_of(*made);
  place = made;
  return made;
}

std::shared_ptr<const Document> Documents::find(const std::string& id, const std::string& owner, int64_t now_s) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = documents_.find(id);
  return it == documents_.end() || it->second->owner != owner || is_over(*it->second, now_s) ? nullptr : it->second;
}

std::vector<std::shared_ptr<const Document>> Documents::list(const std::string& owner, const std::string& salt,
                                                             int64_t now_s) const {
  std::vector<std::shared_ptr<const Document>> found;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, d] : documents_) {
      if (d->owner == owner && d->salt == salt && !is_over(*d, now_s)) found.push_back(d);
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a->created_s < b->created_s; });
  return found;
}

Status Documents::remove(const std::string& id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = documents_.find(id);
  if (it == documents_.end()) return {};
  bytes_ -= bytes_of(*it->second);
  documents_.erase(it);
  if (dir_.empty() || readonly_) return {};
  return ::unlink(path_of(id).c_str()) == 0 || errno == ENOENT ? Status() : os_error(path_of(id));
}

std::vector<std::string> Documents::expire(int64_t now_s) {
  std::vector<std::string> over;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, d] : documents_) {
      if (is_over(*d, now_s)) over.push_back(id);
    }
  }
  for (const std::string& id : over) (void)remove(id);  // a file that stays is removed when it is read again
  return over;
}

size_t Documents::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return documents_.size();
}

}  // namespace fovea::server
