// Problems for the tests of XAttention's estimate: a paged cache full of poison (attention_cases.h), its rows cut into
// tiles, and room for what is chosen.
#pragma once

#include "kernels/attention_cases.h"

#include <string>
#include <vector>

namespace fovea::testing {

struct XCase {
  std::string name;
  AttentionCase shape;
  int32_t stride = 16;
  int32_t block_size = 128;
  float scale = 0.5f;  // of attention: larger than d^-0.5, so that sums differ much
  float norm = 1.0f;
  bool causal = true;
  float threshold = 0.9f;  // of head 0; each next head's is smaller
  int32_t sink_blocks = 1;
  bool group_vote = false;
  int32_t top_k = 0;
  int32_t recent_blocks = 1;
};

// Memory and Params. Not movable: params point into it.
class XProblem {
 public:
  explicit XProblem(const XCase& c, uint64_t seed = 1) : memory_(c.shape, seed) {
    const AttentionParams& a = memory_.params();
    p_.q = static_cast<const float*>(a.q);
    p_.num_heads = a.num_heads;
    p_.num_seqs = a.num_seqs;
    p_.q_indptr = a.q_indptr;
    p_.seq_len = a.seq_len;
    p_.kv = a.kv;
    p_.scale = c.scale;
    p_.stride = c.stride;
    p_.block_size = c.block_size;
    p_.norm = c.norm;
    p_.causal = c.causal;
    p_.sink_blocks = c.sink_blocks;
    p_.top_k = c.top_k;
    p_.recent_blocks = c.recent_blocks;
    p_.group_vote = c.group_vote;
    for (int32_t h = 0; h < a.num_heads; ++h) threshold_.push_back(c.threshold * (1.0f - 0.02f * h));
    p_.threshold = threshold_.data();
    cut();
  }
  XProblem(const XProblem&) = delete;

  AttentionProblem& memory() { return memory_; }
  XAttentionParams& params() { return p_; }
  int32_t groups() const { return p_.group_vote ? p_.kv.kv_heads : p_.num_heads; }

  // The tiles of the rows as params() has them now, and clean room for the results.
  void cut() {
    const int32_t rows = p_.q_indptr[p_.num_seqs] - p_.q_indptr[0];
    tile_seq_.assign(rows + 1, -1);
    tile_indptr_.assign(rows + 2, -1);
    p_.tiles = xattention_tiles(p_.q_indptr, p_.seq_len, p_.num_seqs, p_.block_size, tile_seq_.data(), tile_indptr_.data());
    p_.tile_seq = tile_seq_.data();
    p_.tile_indptr = tile_indptr_.data();
    p_.capacity = 1;
    for (int32_t s = 0; s < p_.num_seqs; ++s) p_.capacity = std::max(p_.capacity, p_.seq_len[s] / p_.block_size + 2);
    units_.assign(static_cast<size_t>(p_.tiles) * groups() * p_.capacity, -1);
    counts_.assign(static_cast<size_t>(p_.tiles) * groups(), -1);
    sums_.assign(static_cast<size_t>(p_.tiles) * p_.num_heads * p_.capacity, -1.0f);
    p_.units = units_.data();
    p_.counts = counts_.data();
    p_.sums = sums_.data();
  }

  std::vector<int32_t> list(int32_t tile, int32_t group) const {
    const int64_t at = int64_t{tile} * groups() + group;
    return {units_.begin() + at * p_.capacity, units_.begin() + at * p_.capacity + counts_[at]};
  }
  std::vector<float> sums(int32_t tile, int32_t head) const {
    const int64_t at = (int64_t{tile} * p_.num_heads + head) * p_.capacity;
    return {sums_.begin() + at, sums_.begin() + at + p_.capacity};
  }
  const std::vector<int32_t>& units() const { return units_; }
  const std::vector<int32_t>& counts() const { return counts_; }
  const std::vector<float>& sums() const { return sums_; }

 private:
  AttentionProblem memory_;
  XAttentionParams p_;
  std::vector<float> threshold_, sums_;
  std::vector<int32_t> tile_seq_, tile_indptr_, units_, counts_;
};

// Every stride and block size; offsets and lengths on both sides of cells and blocks; groups; layouts; types.
inline std::vector<XCase> xattention_cases() {
  const std::vector<SeqShape> odd = {{200, 333}, {1, 1}, {0, 9}, {70, 70}, {3, 259}, {129, 256}, {17, 512}};
  const std::vector<SeqShape> one = {{150, 390}};
  std::vector<XCase> cases;
  for (int32_t stride : {4, 8, 16, 32, 64}) {
    for (int32_t block : {64, 128}) {
      const std::string name = "s" + std::to_string(stride) + "_b" + std::to_string(block);
      cases.push_back({.name = name, .shape = {.seqs = odd}, .stride = stride, .block_size = block});
      cases.push_back({.name = name + "_all_keys", .shape = {.seqs = odd}, .stride = stride, .block_size = block, .causal = false});
    }
  }
  for (DType t : {DType::bf16, DType::f16, DType::f32, DType::fp8_e4m3, DType::fp8_e5m2}) {
    const std::string dtype(dtype_name(t));
    cases.push_back({.name = "hnd_" + dtype, .shape = {.head_dim = 128, .seqs = one, .dtype = t}});
    cases.push_back({.name = "classic_" + dtype,
                     .shape = {.head_dim = 80, .block_size = 32, .seqs = one, .dtype = t, .layout = KvLayout::classic}});
  }
  cases.push_back({.name = "lone_heads", .shape = {.heads = 3, .kv_heads = 3, .seqs = one}});
  cases.push_back({.name = "group_7", .shape = {.heads = 7, .kv_heads = 1, .seqs = one}});
  cases.push_back({.name = "group_50", .shape = {.heads = 50, .kv_heads = 1, .head_dim = 16, .seqs = {{140, 270}}}, .stride = 8});
  cases.push_back({.name = "pages_8", .shape = {.block_size = 8, .seqs = one}});
  cases.push_back({.name = "pages_256", .shape = {.block_size = 256, .seqs = one}});
  cases.push_back({.name = "pool_per_head", .shape = {.seqs = one, .table_per_head = true, .head_major = true}});
  cases.push_back({.name = "deep", .shape = {.head_dim = 32, .seqs = {{130, 3000}}}, .stride = 8});
  cases.push_back({.name = "d256", .shape = {.heads = 2, .kv_heads = 1, .head_dim = 256, .seqs = one}, .stride = 64});
  cases.push_back({.name = "flat", .shape = {.seqs = one}, .scale = 1e-3f, .norm = 2.0f});
  cases.push_back({.name = "peaked", .shape = {.seqs = one}, .scale = 40.0f, .threshold = 0.99f});
  cases.push_back({.name = "no_sink", .shape = {.seqs = one}, .threshold = 0.3f, .sink_blocks = 0});
  cases.push_back({.name = "two_sinks", .shape = {.seqs = one}, .threshold = 0.01f, .sink_blocks = 2});
  cases.push_back({.name = "whole", .shape = {.seqs = odd}, .threshold = 1.5f});
  cases.push_back({.name = "vote", .shape = {.heads = 8, .seqs = odd}, .threshold = 0.6f, .group_vote = true});
  cases.push_back({.name = "vote_3", .shape = {.heads = 6, .seqs = one}, .block_size = 64, .threshold = 0.5f, .group_vote = true});
  cases.push_back({.name = "top_2", .shape = {.seqs = odd}, .block_size = 64, .threshold = 1.5f, .top_k = 2});
  cases.push_back({.name = "recent_3", .shape = {.seqs = odd}, .block_size = 64, .threshold = 0.3f, .recent_blocks = 3});
  cases.push_back({.name = "vote_top_3", .shape = {.heads = 6, .seqs = one}, .group_vote = true, .top_k = 3, .recent_blocks = 2});
#ifdef FOVEA_SANITIZED
  size_t kept = 0;  // ten times slower: a third of the table, every stride among it
  for (size_t i = 0; i < cases.size(); i += 3) cases[kept++] = cases[i];
  cases.resize(kept);
#endif
  return cases;
}

// Sums of blocks, and what a threshold or a count chooses of them.
struct XChoiceCase {
  const char* name;
  std::vector<float> sums;
  int32_t sink, diagonal_begin, diagonal_end;
  float threshold;
  std::vector<int32_t> units;
  int32_t top_k = 0;
};

inline const XChoiceCase kXChoiceCases[] = {
    {"5 of 10 reaches half", {1, 5, 3, 0, 1}, 0, 0, 0, 0.5f, {1}},
    {"the one that crosses is in", {1, 5, 3, 0, 1}, 0, 0, 0, 0.51f, {1, 2}},
    {"forced blocks count: 1 + 1 + 5 reaches 7", {1, 5, 3, 0, 1}, 1, 4, 5, 0.7f, {0, 1, 4}},
    {"forced blocks count, not enough", {1, 5, 3, 0, 1}, 1, 4, 5, 0.71f, {0, 1, 2, 4}},
    {"a diagonal that crosses two blocks; enough as it is", {1, 5, 3, 0, 1}, 1, 3, 5, 0.1f, {0, 3, 4}},
    {"more sinks than blocks", {1, 5, 3, 0, 1}, 9, 4, 5, 0.1f, {0, 1, 2, 3, 4}},
    {"ties go to the lower index", {2, 2, 2, 2, 2}, 0, 4, 5, 0.5f, {0, 1, 4}},
    {"the last block holds all", {0, 0, 0, 7}, 0, 0, 0, 0.9f, {3}},
    {"a threshold of 1: everything", {0, 9, 0}, 0, 2, 3, 1.0f, {0, 1, 2}},
    {"a threshold above 1: everything", {0, 9, 0}, 0, 2, 3, 7.0f, {0, 1, 2}},
    {"a row without cells: what is forced", {0, 0, 0}, 1, 2, 3, 0.9f, {0, 2}},
    {"not a number: everything", {1, NAN, 1, 1}, 1, 3, 4, 0.1f, {0, 1, 2, 3}},
    {"two blocks, whatever they hold", {1, 5, 3, 0, 1}, 0, 0, 0, 0.1f, {1, 2}, 2},
    {"three blocks with what is forced", {1, 5, 3, 0, 1}, 1, 4, 5, 1.0f, {0, 1, 4}, 3},
    {"fewer than what is forced", {1, 5, 3, 0, 1}, 1, 3, 5, 0.9f, {0, 3, 4}, 2},
    {"more than there are", {1, 5, 3}, 1, 2, 3, 0.9f, {0, 1, 2}, 7},
    {"blocks of nothing count too", {0, 0, 0, 0}, 0, 3, 4, 0.9f, {0, 3}, 2},
    {"not a number: everything, not two", {1, NAN, 1, 1}, 1, 3, 4, 0.1f, {0, 1, 2, 3}, 2},
};

}  // namespace fovea::testing
