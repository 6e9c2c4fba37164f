// Random lives of sequences on a BlockManager beside a naive model that gives every sequence memory of its own. Each slot holds a
// hash of the token history that was written there, so a wrong page table, a missing copy on write, a stale prefix hit or a
// misplaced move reads back wrong. Where slots lie and how moves are carried out is the test's.
#pragma once

#include "kv/block_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace fovea::testing {

class NaiveSequences {
 public:
  static constexpr int32_t kBlockSize = 4;
  int64_t hits = 0, tails = 0, refusals = 0;

 protected:
  struct Naive {
    std::vector<int32_t> tokens;
    std::vector<uint64_t> content;  // what the slot of each position has to hold
    int64_t prefilled = 0;          // leading tokens written by prefill
    bool swapped = false;
  };

  NaiveSequences(uint32_t seed, const BlockManagerConfig& config, size_t most_sequences)
      : random_(seed), hasher_(context()), blocks_(config), most_sequences_(most_sequences) {}
  virtual ~NaiveSequences() = default;

  // append_slots(), with the moves it asks for carried out and checked.
  virtual Status grow(SequenceId seq, int64_t n) = 0;
  // Where the content of a position lies that grow() gave.
  virtual uint64_t& slot(SequenceId seq, int64_t position) = 0;

  uint32_t pick(uint32_t n) { return random_() % n; }
  // Some sequence, swapped out or not. Null: there is none.
  Naive* any(uint64_t* id, bool swapped) {
    std::vector<uint64_t> ids;
    for (const auto& [i, naive] : model_) {
      if (naive.swapped == swapped) ids.push_back(i);
    }
    if (ids.empty()) return nullptr;
    *id = ids[pick(static_cast<uint32_t>(ids.size()))];
    return &model_[*id];
  }

  void create() {
    if (model_.size() >= most_sequences_) return;
    const uint64_t id = next_id_++;
    Naive naive;
    std::vector<int32_t> prompt;  // of few documents, so that prefixes meet
    const auto document = static_cast<int32_t>(pick(3));
    for (uint32_t i = 0, n = 1 + pick(35); i < n; ++i) prompt.push_back(pick(40) == 0 ? 7 : document);
    blocks_.create_sequence(SequenceId{id}, &hasher_);
    const int64_t hit = blocks_.match_prefix(SequenceId{id}, prompt);
    ASSERT_LE(hit, static_cast<int64_t>(prompt.size()));
    hits += hit > 0;
    tails += hit % kBlockSize != 0;
    for (int64_t p = 0; p < hit; ++p) extend(naive, prompt[static_cast<size_t>(p)], true);
    naive.prefilled = hit;
    model_[id] = naive;
  }

  void append(bool prefill) {
    uint64_t id = 0;
    Naive* naive = any(&id, false);
    if (naive == nullptr) return;
    const SequenceId seq{id};
    const int64_t n = prefill ? pick(14) : 1;
    const Status s = grow(seq, n);
    refusals += !s.ok();
    if (!s.ok() || ::testing::Test::HasFatalFailure()) return;
    const auto first = static_cast<int64_t>(naive->tokens.size());
    for (int64_t i = 0; i < n; ++i) {
      extend(*naive, naive->tokens.empty() ? static_cast<int32_t>(pick(3)) : naive->tokens[0], prefill);
      slot(seq, first + i) = naive->content.back();
    }
    if (prefill && naive->prefilled == first) naive->prefilled = first + n;
    const bool all = naive->prefilled == static_cast<int64_t>(naive->tokens.size());
    blocks_.publish(seq, naive->tokens, naive->prefilled, all && pick(2) == 0);
  }

  void fork() {
    uint64_t id = 0;
    Naive* naive = any(&id, false);
    if (naive == nullptr || model_.size() >= most_sequences_) return;
    const auto size = static_cast<uint32_t>(naive->tokens.size());
    const uint32_t at = pick(2) == 0 ? size : pick(size + 1);
    const uint64_t child = next_id_++;
    blocks_.fork(SequenceId{id}, SequenceId{child}, at);
    Naive copy = *naive;
    copy.tokens.resize(at);
    copy.content.resize(at);
    copy.prefilled = std::min<int64_t>(copy.prefilled, at);
    model_[child] = copy;
  }

  void free() {
    uint64_t id = 0;
    if (any(&id, pick(4) == 0) == nullptr) return;
    blocks_.free(SequenceId{id});
    model_.erase(id);
  }

  void free_all() {
    for (const auto& [id, naive] : model_) blocks_.free(SequenceId{id});
    model_.clear();
  }

  std::mt19937 random_;
  BlockHasher hasher_;
  BlockManager blocks_;
  std::vector<CacheOp> ops_;
  std::map<uint64_t, Naive> model_;

 private:
  static KeyContext context() {
    KeyContext c;
    c.block_size = kBlockSize;
    return c;
  }
  // The content of a prefilled slot is a function of the tokens alone, so that a hit must find it; a decoded slot's is not.
  void extend(Naive& naive, int32_t token, bool prefill) {
    const uint64_t before = naive.content.empty() ? 1469598103934665603u : naive.content.back();
    naive.tokens.push_back(token);
    naive.content.push_back((before ^ static_cast<uint64_t>(token + 1)) * 1099511628211u + (prefill ? 0 : random_()));
  }

  const size_t most_sequences_;
  uint64_t next_id_ = 1;
};

}  // namespace fovea::testing
