// What traced questions of one run read, and where the true attention lay: the figures behind the score of a method.
#pragma once

#include "eval/eval_score.h"

#include <fovea/engine.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fovea {

// Sums over traced rows of one layer and KV head.
struct HeadTrace {
  double mass = 0;    // share of the true attention on the blocks that were read
  double recall = 0;  // of the k blocks read, the share that are among the k of most mass (ties to the lower index)
  int64_t rows = 0;
};

// One question: which blocks each token of its answer read, and where its attention lay.
struct AnswerTrace {
  struct Token {
    int64_t position = 0;  // of the row that produced it
    std::string text;
    std::vector<float> read;  // [blocks] share of layers and heads that read the block
    std::vector<float> mass;  // [blocks] mean share of the attention over layers and heads; empty where it was not asked for
  };
  std::string task, question, answer, wanted;
  bool right = false;
  std::string fact;                                     // the planted sentence; empty: none is known
  int32_t fact_first_block = -1, fact_last_block = -1;  // -1: no fact is known
  RequestStats stats;
  std::vector<Token> tokens;
  std::vector<std::vector<float>> heads_read;  // [layers * kv_heads][blocks] tokens that read the block
};

// One document's prefill: which key blocks each query block read, by layer.
struct PrefillTrace {
  struct Layer {
    std::vector<double> density;  // [lists of a row: heads or KV heads] units read of the causal ones
    std::vector<float> chosen;    // [units, units] share of those lists; row: query unit, column: key unit
  };
  int32_t tokens_per_unit = 0;  // 0: nothing was traced
  int64_t units = 0;
  std::vector<Layer> layers;
};

// A run at one length.
struct RunTrace {
  EvalRun run;
  int64_t length = 0;
  int32_t layers = 0, kv_heads = 0;
  std::vector<HeadTrace> heads;  // [layers, kv_heads]
  std::vector<AnswerTrace> answers;
  PrefillTrace prefill;

  TraceScore score() const;  // means over all rows, layers and heads
};

// Takes Selections into a RunTrace.
class TraceRecorder {
 public:
  TraceRecorder(const ModelShape& shape, RunTrace* trace);
  // One row that produced a token of the answer.
  void on_answer_row(const SelectionTrace& row, AnswerTrace* answer);
  // One row of a prompt, in ascending order; rows of one query unit count once. Only lists of units of more than one token
  // (XAttention's); query units between them that have none took the dense path.
  void on_prefill_row(const SelectionTrace& row);
  // The prompt is over: the layers that no list came from are left dense.
  void finish_prefill();

 private:
  static void add_dense_unit(int64_t unit, PrefillTrace::Layer* layer);
  void score_head(const SelectionTrace& row, int32_t head, const std::vector<int32_t>& blocks);

  const ModelShape shape_;
  RunTrace* trace_;
  std::vector<int64_t> next_unit_;  // [layers] of query rows, not seen yet
};

}  // namespace fovea
