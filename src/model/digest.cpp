#include "model/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "model/gguf.h"
#include "model/json_reader.h"
#include "model/tensor_source.h"

namespace fovea {
namespace {

constexpr size_t kEndBytes = 64 << 10;
constexpr size_t kPieces = 4096;
constexpr size_t kPieceBytes = 64;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    FOVEA_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void raw(std::string_view bytes) { FOVEA_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1); }
  void number(uint64_t x) {
    char le[8];
    for (int i = 0; i < 8; ++i) le[i] = static_cast<char>(x >> (8 * i));
    raw({le, sizeof le});
  }
  // Length first, so that no two lists of fields have one encoding.
  void field(std::string_view bytes) {
    number(bytes.size());
    raw(bytes);
  }
  Digest finish() {
    Digest out{};
    unsigned size = 0;
    FOVEA_CHECK(EVP_DigestFinal_ex(context_.get(), out.data(), &size) == 1 && size == out.size());
    return out;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

void add_sample(std::string_view data, Sha256* sha) {
  sha->number(data.size());
  if (data.size() <= 2 * kEndBytes + kPieces * kPieceBytes) {
    sha->raw(data);
    return;
  }
  sha->raw(data.substr(0, kEndBytes));
  const size_t stride = (data.size() - kPieceBytes) / kPieces;
  for (size_t i = 0; i < kPieces; ++i) sha->raw(data.substr(i * stride, kPieceBytes));
  sha->raw(data.substr(data.size() - kEndBytes));
}

// Of a GGUF file its front, which is what says how it computes.
Result<std::string> config_bytes(const std::string& model) {
  if (!is_gguf(model)) return read_file(model + "/config.json");
  FOVEA_ASSIGN(const std::unique_ptr<GgufSource> source, GgufSource::open(model));
  return std::string(source->files().front().header);
}

}  // namespace

std::string digest_hex(const Digest& digest) {
  std::string out;
  for (const uint8_t byte : digest) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

Digest bytes_digest(std::string_view bytes) {
  Sha256 sha;
  sha.raw(bytes);
  return sha.finish();
}

Result<Digest> file_digest(const std::string& path) {
  FOVEA_ASSIGN(const std::string bytes, read_file(path));
  return bytes_digest(bytes);
}

Result<Digest> model_digest(const std::string& model) {
  FOVEA_ASSIGN(const std::string config, config_bytes(model));
  FOVEA_ASSIGN(const std::unique_ptr<TensorSource> source, open_tensors(model));
  Sha256 sha;
  sha.field("fovea model 1");
  sha.field(config);
  const std::vector<TensorSource::File> files = source->files();
  sha.number(files.size());
  for (const TensorSource::File& file : files) {
    sha.field(file.name);
    sha.field(file.header);
    add_sample(file.data, &sha);
  }
  return sha.finish();
}

Result<Digest> dummy_model_digest(const std::string& model, uint64_t seed, WeightType type) {
  FOVEA_ASSIGN(const std::string config, config_bytes(model));
  Sha256 sha;
  sha.field("fovea dummy model 1");
  sha.field(config);
  sha.number(seed);
  if (type != WeightType::bf16) sha.field(weight_type_name(type));
  return sha.finish();
}

}  // namespace fovea
