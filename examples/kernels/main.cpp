// One decode step of one layer, by hand: K and V of a context go into a paged cache together with the hash codes of the keys, the
// codes choose a quarter of the blocks for each KV head, and attention reads those. Checked against plain loops.
#include <fovea/kernels.h>
#include <fovea/kernels/hash_rotation.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "memory.h"

namespace {

constexpr int kHeads = 8, kKvHeads = 2, kDim = 64, kBlockSize = 16, kBlocks = 32, kChosen = 8;
constexpr int kTokens = kBlocks * kBlockSize - 5;  // the last block is not full

std::vector<float> noise(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(size);
  for (float& v : x) v = normal(random);
  return x;
}

// softmax(q K^T / sqrt(d)) V of one head over the tokens of some blocks.
std::vector<float> attend(const float* q, const std::vector<float>& k, const std::vector<float>& v, int kv_head, const int32_t* blocks,
                          int count) {
  std::vector<double> out(kDim);
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    for (int t = blocks[i] * kBlockSize; t < std::min((blocks[i] + 1) * kBlockSize, kTokens); ++t) {
      const size_t at = (size_t(t) * kKvHeads + kv_head) * kDim;
      double score = 0;
      for (int d = 0; d < kDim; ++d) score += double(q[d]) * k[at + d];
      const double weight = std::exp(score / std::sqrt(double(kDim)));
      sum += weight;
      for (int d = 0; d < kDim; ++d) out[d] += weight * v[at + d];
    }
  }
  std::vector<float> result(kDim);
  for (int d = 0; d < kDim; ++d) result[d] = static_cast<float>(out[d] / sum);
  return result;
}

// The greatest difference from plain loops.
fovea::Result<double> run(const std::string& device) {
  fovea::KernelOptions options;
  options.device = device;
  FOVEA_ASSIGN(fovea::Kernels kernels, fovea::Kernels::create(options));
  fovea::OpsLimits limits;
  limits.max_rows = limits.max_len = kTokens;
  limits.num_heads = kHeads;
  limits.kv_heads = kKvHeads;
  limits.head_dim = kDim;
  limits.block_size = kBlockSize;
  FOVEA_TRY(kernels.prepare(limits));
  const bool gpu = device != "cpu";

  // The cache: blocks of a sequence lie anywhere; here in reverse order.
  std::vector<int32_t> block_table(kBlocks);
  std::vector<int64_t> slot_mapping(kTokens);
  for (int b = 0; b < kBlocks; ++b) block_table[b] = kBlocks - 1 - b;
  for (int t = 0; t < kTokens; ++t) slot_mapping[t] = int64_t{block_table[t / kBlockSize]} * kBlockSize + t % kBlockSize;
  const std::vector<float> key_values = noise(size_t{kTokens} * kKvHeads * kDim, 1), value_values = noise(key_values.size(), 2);
  const std::vector<float> query_values = noise(size_t{kHeads} * kDim, 3);
  Array<float> k(gpu, key_values), v(gpu, value_values), q(gpu, query_values);
  const std::vector<float> no_keys(size_t{kBlocks} * kKvHeads * kBlockSize * kDim);
  Array<float> k_cache(gpu, no_keys), v_cache(gpu, no_keys);
  Array<int32_t> table(gpu, block_table);
  Array<int64_t> slots(gpu, slot_mapping);
  fovea::KvView kv;
  kv.k = k_cache.data();
  kv.v = v_cache.data();
  kv.dtype = fovea::DType::f32;
  kv.block_size = kBlockSize;
  kv.kv_heads = kKvHeads;
  kv.head_dim = kDim;
  kv.head_stride = kBlockSize * kDim;
  kv.block_stride = kKvHeads * kv.head_stride;
  kv.table = {table.data(), kBlocks, 0};

  // Codes of 128 bits a key and KV head, in blocks as K and V are.
  FOVEA_ASSIGN(const auto rotation, fovea::HashRotation::make(kDim, 128));
  fovea::CodesView codes;
  codes.codec = rotation.codec();
  Array<float> signs(gpu, std::vector<float>(codes.codec.signs, codes.codec.signs + codes.codec.rotations * 3 * codes.codec.n));
  codes.codec.signs = signs.data();
  codes.head_stride = fovea::head_code_words(codes.codec, kBlockSize);
  codes.block_stride = kKvHeads * codes.head_stride;
  Array<uint64_t> code_memory(gpu, std::vector<uint64_t>(kBlocks * codes.block_stride));
  codes.codes = code_memory.data();

  fovea::KvWriteParams write;
  write.tokens = kTokens;
  write.k = k.data();
  write.v = v.data();
  write.slot_mapping = slots.data();
  write.kv = kv;
  write.codes = &codes;
  FOVEA_TRY(kernels.kv_write(write));

  Array<int32_t> len(gpu, {kTokens}), budget(gpu, {kChosen}), row_seq(gpu, {0}), q_indptr(gpu, {0, 1});
  Array<int32_t> units(gpu, std::vector<int32_t>(kKvHeads * kChosen)), counts(gpu, std::vector<int32_t>(kKvHeads));
  fovea::HashSelectParams select;
  select.rows = 1;
  select.num_heads = kHeads;
  select.kv_heads = kKvHeads;
  select.block_size = kBlockSize;
  select.q = q.data();
  select.row_seq = row_seq.data();
  select.row_len = len.data();
  select.k = budget.data();
  select.table = kv.table;
  select.codes = codes;
  select.max_len = kTokens;
  select.units = units.data();
  select.counts = counts.data();
  select.capacity = kChosen;
  FOVEA_TRY(kernels.hash_select(select));

  fovea::Selection selection;
  selection.kind = fovea::Selection::Kind::list;
  selection.heads = fovea::HeadGroups::per_kv_head;
  selection.tokens_per_unit = kBlockSize;
  selection.rows = 1;
  selection.groups = kKvHeads;
  selection.capacity = kChosen;
  selection.units = units.data();
  selection.counts = counts.data();
  Array<float> out(gpu, std::vector<float>(query_values.size()));
  fovea::AttentionParams attention;
  attention.q = q.data();
  attention.out = out.data();
  attention.num_heads = kHeads;
  attention.rows = attention.num_seqs = 1;
  attention.q_indptr = q_indptr.data();
  attention.seq_len = len.data();
  attention.kv = kv;
  attention.scale = 1.0f / std::sqrt(float{kDim});
  attention.selection = &selection;
  FOVEA_TRY(kernels.paged_decode(attention));

  double worst = 0;
  for (int h = 0; h < kHeads; ++h) {
    const int kv_head = h / (kHeads / kKvHeads);
    if (counts.read()[kv_head] != kChosen) return fovea::Status::internal("a head chose another number of blocks");
    const std::vector<float> wanted =
        attend(&query_values[size_t(h) * kDim], key_values, value_values, kv_head, &units.read()[kv_head * kChosen], kChosen);
    for (int d = 0; d < kDim; ++d) worst = std::max(worst, std::abs(double(out.read()[h * kDim + d]) - wanted[d]));
  }
  std::printf("%s: %d of %d blocks read, greatest difference %.1e\n", kernels.description().c_str(), kChosen, kBlocks, worst);
  return worst;
}

bool right(const std::string& device) {
  const auto worst = run(device);
  if (worst.ok()) return *worst < 1e-4;
  std::printf("%s\n", worst.status().message().c_str());
  return worst.status().code() == fovea::StatusCode::unsupported && device != "cpu";  // no GPU here
}

}  // namespace

int main() {
  const bool cpu = right("cpu");
#ifdef WITH_CUDA
  return cpu && right("cuda") ? 0 : 1;
#else
  return cpu ? 0 : 1;
#endif
}
