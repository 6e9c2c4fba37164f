#include "kernels/fake/fake_ops_test_util.h"

#include "kernels/common/selection_reader.h"

#include <algorithm>
#include <vector>

namespace fovea::testing {
namespace {

// What attention on a GPU counts as it loads.
template <typename Params>
void count_keys(const Params& p, int32_t kv_heads, const Selection& s, bool prefill) {
  const SelectionReader reader(s);
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    for (int32_t row = p.q_indptr[seq]; row < p.q_indptr[seq + 1]; ++row) {
      const int64_t len = std::max(0, p.seq_len[seq] - (p.q_indptr[seq + 1] - 1 - row));
      if (prefill) {
        const int32_t lists = reader.groups();
        for (int32_t g = 0; g < lists; ++g) p.keys_read[row] += reader.tokens(reader.list_of(row), g, len) * (p.num_heads / lists);
        continue;
      }
      for (int32_t head = 0; head < kv_heads; ++head)
        p.keys_read[row] += reader.tokens(reader.list_of(row), reader.groups_of(head, kv_heads).first, len);
    }
  }
}

}  // namespace

void FakeOps::linear(const LinearParams& p, Stream& stream) {
  std::vector<LinearWeight> weights(p.weights, p.weights + p.count);
  static_cast<FakeStream&>(stream).enqueue(
      "linear",
      [this, p, weights = std::move(weights)] {
        LinearParams now = p;
        now.weights = weights.data();
        inner_->linear(now, host_);
      },
      true);
}

void FakeOps::kv_write(const KvWriteParams& p, Stream& stream) {
  const CodesView codes = p.codes ? *p.codes : CodesView();
  static_cast<FakeStream&>(stream).enqueue(
      "kv_write",
      [this, p, codes] {
        KvWriteParams now = p;
        if (p.codes) now.codes = &codes;
        inner_->kv_write(now, host_);
      },
      true);
}

void FakeOps::resolve(const ResolveParams& p, Stream& stream) {
  static_cast<FakeStream&>(stream).enqueue(
      "resolve",
      [this, p, selection = *p.selection] {
        ResolveParams now = p;
        now.selection = &selection;
        inner_->resolve(now, host_);
      },
      true);
}

void FakeOps::attend(const char* name, Op<AttentionParams> op, const AttentionParams& p, Stream& stream) {
  const Selection selection = p.selection ? *p.selection : Selection();
  static_cast<FakeStream&>(stream).enqueue(
      name,
      [this, op, p, selection] {
        AttentionParams now = p;
        now.selection = &selection;
        (inner_.get()->*op)(now, host_);
        if (p.keys_read) count_keys(p, p.kv.kv_heads, selection, op == &Ops::paged_prefill);
      },
      true);
}

void FakeOps::mla_attend(const MlaAttendParams& p, Stream& stream) {
  const Selection selection = p.selection ? *p.selection : Selection();
  static_cast<FakeStream&>(stream).enqueue(
      "mla_attend",
      [this, p, kv = *p.kv, selection] {
        MlaAttendParams now = p;
        now.kv = &kv;
        now.selection = &selection;
        inner_->mla_attend(now, host_);
        if (p.keys_read) count_keys(p, 1, selection, false);
      },
      true);
}

void FakeOps::moe_experts(const MoeExpertsParams& p, Stream& stream) {
  std::vector<FeedForwardWeights> weights(p.expert_weights, p.expert_weights + p.experts);
  static_cast<FakeStream&>(stream).enqueue(
      "moe_experts",
      [this, p, weights = std::move(weights)] {
        MoeExpertsParams now = p;
        now.expert_weights = weights.data();
        inner_->moe_experts(now, host_);
      },
      true);
}

}  // namespace fovea::testing
