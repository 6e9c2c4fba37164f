#include "kernels/fake/fake_ops_test_util.h"

#include <algorithm>
#include <vector>

namespace fovea::testing {
namespace {

// Tokens of [0, len) that one list of a Selection names.
int64_t tokens_read(const Selection& s, int64_t row, int32_t group, int64_t len) {
  if (s.kind == Selection::Kind::all) return len;
  const int64_t cell = row * s.groups + group;
  const auto up_to = [&](int64_t unit) { return std::min(unit * s.tokens_per_unit, len); };
  if (s.kind == Selection::Kind::range) return std::max<int64_t>(0, up_to(s.ends[cell]) - up_to(s.begins[cell]));
  int64_t tokens = 0;
  for (int32_t i = 0; i < s.counts[cell]; ++i) {
    const int64_t unit = s.units[cell * s.capacity + i];
    tokens += up_to(unit + 1) - up_to(unit);
  }
  return tokens;
}

// What attention on a GPU counts as it loads, of decode rows: a row is a row of the Selection.
void count_keys(const AttentionParams& p, const Selection& s) {
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    for (int32_t row = p.q_indptr[seq]; row < p.q_indptr[seq + 1]; ++row) {
      const int64_t len = std::max(0, p.seq_len[seq] - (p.q_indptr[seq + 1] - 1 - row));
      for (int32_t head = 0; head < p.kv.kv_heads; ++head)
        p.keys_read[row] += tokens_read(s, row, s.heads == HeadGroups::per_kv_head ? head : 0, len);
    }
  }
}

}  // namespace

void FakeOps::linear(const LinearParams& p, Stream& stream) {
  std::vector<LinearWeight> weights(p.weights, p.weights + p.count);
  static_cast<FakeStream&>(stream).enqueue("linear", [this, p, weights = std::move(weights)] {
    LinearParams now = p;
    now.weights = weights.data();
    inner_->linear(now, host_);
  });
}

void FakeOps::kv_write(const KvWriteParams& p, Stream& stream) {
  const CodesView codes = p.codes ? *p.codes : CodesView();
  static_cast<FakeStream&>(stream).enqueue("kv_write", [this, p, codes] {
    KvWriteParams now = p;
    if (p.codes) now.codes = &codes;
    inner_->kv_write(now, host_);
  });
}

void FakeOps::attend(const char* name, Op<AttentionParams> op, const AttentionParams& p, Stream& stream) {
  const Selection selection = p.selection ? *p.selection : Selection();
  static_cast<FakeStream&>(stream).enqueue(name, [this, op, p, selection] {
    AttentionParams now = p;
    now.selection = &selection;
    (inner_.get()->*op)(now, host_);
    if (p.keys_read) count_keys(p, selection);
  });
}

}  // namespace fovea::testing
