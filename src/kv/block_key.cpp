#include "kv/block_key.h"

#include "base/check.h"

#include <openssl/evp.h>

#include <bit>
#include <initializer_list>

namespace fovea {
namespace {

enum class Field : uint8_t {
  format_version = 1,
  model_digest = 2,
  tokenizer_digest = 3,
  rope_kind = 4,
  rope_shape = 5,    // dim, interleaved, truncate
  rope_numbers = 6,  // theta, factor, low_freq, high_freq, original, beta_fast, beta_slow, attention, mscale_all_dim
  attention = 7,     // head_dim, kv_heads, window
  latent = 8,        // rank, index_heads, index_dim, index_topk, index_interleaved; empty: no latent
  kv_dtype = 9,
  block_size = 10,
  tenant_salt = 11,
  lineage = 12,
  parent = 13,
  tokens = 14,
  kv_scales = 15,   // behind kv_dtype; no field where there are none
  cache_salt = 16,  // behind tenant_salt; likewise
};

void put_int(std::vector<uint8_t>& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

void put_header(std::vector<uint8_t>& out, Field field, uint64_t bytes) {
  out.push_back(static_cast<uint8_t>(field));
  put_int(out, bytes, 8);
}

template <typename Bytes>
void put_bytes(std::vector<uint8_t>& out, Field field, const Bytes& bytes) {
  put_header(out, field, bytes.size());
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void put_ints(std::vector<uint8_t>& out, Field field, std::span<const int32_t> values) {
  put_header(out, field, 4 * values.size());
  for (int32_t v : values) put_int(out, static_cast<uint32_t>(v), 4);
}

void put_reals(std::vector<uint8_t>& out, Field field, std::initializer_list<double> values) {
  put_header(out, field, 8 * values.size());
  for (double v : values) put_int(out, std::bit_cast<uint64_t>(v), 8);
}

void put_context(std::vector<uint8_t>& out, const KeyContext& c) {
  const auto ints = [&](Field field, std::initializer_list<int32_t> values) {
    put_ints(out, field, {values.begin(), values.size()});
  };
  ints(Field::format_version, {BlockHasher::kFormatVersion});
  put_bytes(out, Field::model_digest, c.model_digest);
  put_bytes(out, Field::tokenizer_digest, c.tokenizer_digest);
  const RopeKey& r = c.rope;
  put_bytes(out, Field::rope_kind, r.kind);
  ints(Field::rope_shape, {r.dim, r.interleaved, r.truncate});
  put_reals(out, Field::rope_numbers,
            {r.theta, r.factor, r.low_freq_factor, r.high_freq_factor, r.original_max_position, r.beta_fast, r.beta_slow,
             r.attention_factor, r.mscale_all_dim});
  ints(Field::attention, {c.head_dim, c.kv_heads, c.window});
  if (const auto& l = c.latent) {
    ints(Field::latent, {l->rank, l->index_heads, l->index_dim, l->index_topk, l->index_interleaved});
  } else {
    ints(Field::latent, {});
  }
  put_bytes(out, Field::kv_dtype, dtype_name(c.kv_dtype));
  if (!c.kv_scales.empty()) put_bytes(out, Field::kv_scales, c.kv_scales);
  ints(Field::block_size, {c.block_size});
  put_bytes(out, Field::tenant_salt, c.tenant_salt);
  if (!c.cache_salt.empty()) put_bytes(out, Field::cache_salt, c.cache_salt);
  put_bytes(out, Field::lineage, c.lineage);
}

}  // namespace

struct BlockHasher::HashState {
  EVP_MD* sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~HashState() {
    EVP_MD_CTX_free(context);
    EVP_MD_free(sha256);
  }
};

BlockHasher::BlockHasher(const KeyContext& context) : state_(std::make_unique<HashState>()), block_size_(context.block_size) {
  FOVEA_CHECK(state_->sha256 != nullptr && state_->context != nullptr);
  FOVEA_CHECK(block_size_ > 0);
  put_context(message_, context);
  prefix_bytes_ = message_.size();
  message_.reserve(prefix_bytes_ + 2 * 9 + 32 + 4 * static_cast<size_t>(block_size_));
}

BlockHasher::~BlockHasher() = default;

BlockKey BlockHasher::key(const BlockKey* parent, std::span<const int32_t> tokens) {
  FOVEA_CHECK(!tokens.empty() && tokens.size() <= static_cast<size_t>(block_size_));
  message_.resize(prefix_bytes_);
  if (parent) {
    put_bytes(message_, Field::parent, parent->bytes);
  } else {
    put_header(message_, Field::parent, 0);
  }
  put_ints(message_, Field::tokens, tokens);

  BlockKey key;
  unsigned int written = 0;
  FOVEA_CHECK(EVP_DigestInit_ex(state_->context, state_->sha256, nullptr) == 1);
  FOVEA_CHECK(EVP_DigestUpdate(state_->context, message_.data(), message_.size()) == 1);
  FOVEA_CHECK(EVP_DigestFinal_ex(state_->context, key.bytes.data(), &written) == 1);
  FOVEA_CHECK(written == key.bytes.size());
  return key;
}

}  // namespace fovea
