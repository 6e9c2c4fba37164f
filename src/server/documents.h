// Documents that were put once and are asked by their ids: what the server knows of them, in memory and, where there is a store, in
// a file each beside its slabs. Whether their KV is held is EngineLoop's matter: a document outlives it.
#pragma once

#include <fovea/request.h>
#include <fovea/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::server {

struct Document {
  std::string id;      // document_id() of the next five
  std::string owner;   // name of the API key that it belongs to; empty: everybody's
  std::string salt;    // cache_salt of its request: whoever asks says it too
  std::string system;  // message before it; empty: none
  std::string prefill_method;
  std::string text;
  std::string name;             // as its owner calls it
  std::vector<TokenId> tokens;  // that every prompt about it begins with; another model's if the file is older than the model
  int64_t created_s = 0;        // unix seconds
  int64_t expires_s = 0;        // likewise; 0: never
};

// doc- and 32 hex digits: of content and salt alone, so that putting it again finds it.
std::string document_id(const Document& document);

// A document as its file has it, and back. Errors are one line: what is no such file, or one whose id is not that of its content.
std::string document_json(const Document& document);
Result<Document> parse_document(std::string_view json);

// Thread-safe once it was opened. Reading and writing files takes place in the calling thread; find() and list() touch none.
class Documents {
 public:
  Documents(size_t documents_max, size_t bytes_max) : documents_max_(documents_max), bytes_max_(bytes_max) {}

  // Documents live in `dir` from now on, which is made with the first of them (0700). Reads those that are there: expired ones are
  // removed, damaged ones are left alone and named in *notes. Read-only: changes no file.
  Status open(std::string dir, bool readonly, int64_t now_s, std::vector<std::string>* notes);

  // Adds it, or finds it: then name, tokens and expiry become the new ones. busy: too many, or too large together; I/O.
  Result<std::shared_ptr<const Document>> put(Document document, int64_t now_s);
  // Null: unknown, another owner's, or expired.
  std::shared_ptr<const Document> find(const std::string& id, const std::string& owner, int64_t now_s) const;
  // Those of the owner and the salt, oldest first.
  std::vector<std::shared_ptr<const Document>> list(const std::string& owner, const std::string& salt, int64_t now_s) const;
  Status remove(const std::string& id);
  // Removes what has expired; their ids.
  std::vector<std::string> expire(int64_t now_s);
  size_t size() const;

 private:
  std::string path_of(const std::string& id) const { return dir_ + "/" + id + ".json"; }
  Status write(const Document& document, std::string* temporary);
  Status check_room(const Document& document) const;

  const size_t documents_max_, bytes_max_;
  std::string dir_;  // empty: memory alone. Set by open(), before there is another thread
  bool readonly_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, std::shared_ptr<const Document>> documents_;
  size_t bytes_ = 0;      // of all texts and tokens
  uint64_t written_ = 0;  // names temporary files
};

}  // namespace fovea::server
