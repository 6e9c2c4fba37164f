// An AttentionProblem copied to the GPU: the same Params over device memory, and its results read back.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/attention_cases.h"
#include "kernels/cuda/gpu_test_util.h"

namespace fovea::testing {

class AttentionOnDevice {
 public:
  explicit AttentionOnDevice(AttentionProblem& problem)
      : params_(problem.params()),
        q_(problem.q()),
        slopes_(problem.slopes()),
        k_scales_(problem.k_scales()),
        v_scales_(problem.v_scales()),
        k_(problem.k_memory()),
        v_(problem.v_memory()),
        table_(problem.table()),
        q_indptr_(problem.q_indptr()),
        seq_len_(problem.seq_len()),
        indptr_(problem.lists().indptr()),
        units_(problem.lists().units()),
        counts_(problem.lists().counts()),
        begins_(problem.lists().begins()),
        ends_(problem.lists().ends()),
        keys_read_(std::vector<int64_t>(problem.rows(), 0)),
        out_(std::vector<float>(problem.out().size())),
        lse_(std::vector<float>(problem.lse().size())) {
    poison_results(problem);
    params_.q = q_.data();
    params_.out = out_.data();
    params_.lse = lse_.data();
    params_.q_indptr = q_indptr_.data();
    params_.seq_len = seq_len_.data();
    params_.kv.k = k_.data();
    params_.kv.v = v_.data();
    params_.kv.k_scale = k_scales_.data();
    params_.kv.v_scale = v_scales_.data();
    params_.kv.table.slots = table_.data();
    params_.alibi_slopes = problem.params().alibi_slopes == nullptr ? nullptr : slopes_.data();
    params_.keys_read = keys_read_.data();
    if (params_.selection != nullptr) point_selection();
  }
  AttentionOnDevice(const AttentionOnDevice&) = delete;
  AttentionOnDevice& operator=(const AttentionOnDevice&) = delete;

  // Every pointer in it is device memory; selection() is the host struct it points to. keys_read starts at 0.
  AttentionParams& params() { return params_; }
  const AttentionParams& params() const { return params_; }
  Selection& selection() { return selection_; }
  DeviceArray<float>& q() { return q_; }
  DeviceArray<int32_t>& seq_len() { return seq_len_; }
  DeviceArray<int32_t>& counts() { return counts_; }

  // Results as the device holds them now; out and lse are NaN until written.
  std::vector<float> out() const { return out_.download(); }
  std::vector<float> lse() const { return lse_.download(); }
  std::vector<int64_t> keys_read() const { return keys_read_.download(); }
  void poison_results(const AttentionProblem& problem) {
    const size_t heads = static_cast<size_t>(problem.rows()) * problem.shape().heads;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    out_.upload(std::vector<float>(heads * problem.shape().head_dim, nan));
    lse_.upload(std::vector<float>(heads, nan));
  }

 private:
  void point_selection() {
    selection_ = *params_.selection;
    selection_.row_indptr = selection_.row_indptr == nullptr ? nullptr : indptr_.data();
    selection_.units = selection_.units == nullptr ? nullptr : units_.data();
    selection_.counts = selection_.counts == nullptr ? nullptr : counts_.data();
    selection_.begins = selection_.begins == nullptr ? nullptr : begins_.data();
    selection_.ends = selection_.ends == nullptr ? nullptr : ends_.data();
    params_.selection = &selection_;
  }

  AttentionParams params_;
  Selection selection_;
  DeviceArray<float> q_, slopes_, k_scales_, v_scales_;
  DeviceArray<uint8_t> k_, v_;
  DeviceArray<int32_t> table_, q_indptr_, seq_len_;
  DeviceArray<int32_t> indptr_, units_, counts_, begins_, ends_;
  DeviceArray<int64_t> keys_read_;
  DeviceArray<float> out_, lse_;
};

// The results of `attend` on a problem's q and out in 16 bits.
template <typename Attend>
std::vector<uint16_t> narrow_out(const AttentionOnDevice& on_device, const NarrowActivations& narrow, Attend&& attend) {
  const DeviceArray<uint16_t> q(narrow.q()), out(narrow.out());
  AttentionParams p = on_device.params();
  p.q = q.data();
  p.out = out.data();
  p.dtype = narrow.params().dtype;
  attend(p);
  return out.download();
}

}  // namespace fovea::testing
