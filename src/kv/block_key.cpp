#include "kv/block_key.h"

#include "base/check.h"

#include <openssl/evp.h>

#include <string_view>

namespace fovea {
namespace {

enum class Field : uint8_t {
  format_version = 1,
  model_digest = 2,
  tokenizer_digest = 3,
  attention_config = 4,
  kv_dtype = 5,
  block_size = 6,
  tenant_salt = 7,
  lineage = 8,
  parent = 9,
  tokens = 10,
};

template <typename Int>
void put_int(std::vector<uint8_t>& out, Int value, int bytes) {
  for (int i = 0; i < bytes; ++i)
    out.push_back(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
}

void put_header(std::vector<uint8_t>& out, Field field, uint64_t bytes) {
  out.push_back(static_cast<uint8_t>(field));
  put_int(out, bytes, 8);
}

void put_string(std::vector<uint8_t>& out, Field field, std::string_view text) {
  put_header(out, field, text.size());
  out.insert(out.end(), text.begin(), text.end());
}

void put_u32(std::vector<uint8_t>& out, Field field, uint32_t value) {
  put_header(out, field, 4);
  put_int(out, value, 4);
}

}  // namespace

std::string BlockKey::hex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(64);
  for (uint8_t b : bytes) {
    text.push_back(kDigits[b >> 4]);
    text.push_back(kDigits[b & 15]);
  }
  return text;
}

struct BlockHasher::HashState {
  EVP_MD* sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~HashState() {
    EVP_MD_CTX_free(context);
    EVP_MD_free(sha256);
  }
};

BlockHasher::BlockHasher(const KeyContext& context)
    : state_(std::make_unique<HashState>()), block_size_(context.block_size) {
  FOVEA_CHECK(state_->sha256 != nullptr && state_->context != nullptr);
  FOVEA_CHECK(block_size_ > 0);
  put_u32(message_, Field::format_version, kFormatVersion);
  put_string(message_, Field::model_digest, context.model_digest);
  put_string(message_, Field::tokenizer_digest, context.tokenizer_digest);
  put_string(message_, Field::attention_config, context.attention_config);
  put_string(message_, Field::kv_dtype, dtype_name(context.kv_dtype));
  put_u32(message_, Field::block_size, static_cast<uint32_t>(context.block_size));
  put_string(message_, Field::tenant_salt, context.tenant_salt);
  put_string(message_, Field::lineage, context.lineage);
  prefix_bytes_ = message_.size();
  message_.reserve(prefix_bytes_ + 2 * 9 + 32 + 4 * static_cast<size_t>(block_size_));
}

BlockHasher::~BlockHasher() = default;

BlockKey BlockHasher::key(const BlockKey* parent, std::span<const int32_t> tokens) {
  FOVEA_CHECK(tokens.size() == static_cast<size_t>(block_size_));
  message_.resize(prefix_bytes_);
  put_header(message_, Field::parent, parent != nullptr ? parent->bytes.size() : 0);
  if (parent != nullptr) message_.insert(message_.end(), parent->bytes.begin(), parent->bytes.end());
  put_header(message_, Field::tokens, 4 * tokens.size());
  for (int32_t t : tokens) put_int(message_, static_cast<uint32_t>(t), 4);

  BlockKey key;
  unsigned int written = 0;
  FOVEA_CHECK(EVP_DigestInit_ex(state_->context, state_->sha256, nullptr) == 1);
  FOVEA_CHECK(EVP_DigestUpdate(state_->context, message_.data(), message_.size()) == 1);
  FOVEA_CHECK(EVP_DigestFinal_ex(state_->context, key.bytes.data(), &written) == 1);
  FOVEA_CHECK(written == key.bytes.size());
  return key;
}

}  // namespace fovea
