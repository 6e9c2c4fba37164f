// What callers from outside get wrong, as a Status that names field and value: plain numbers alone, no array is looked at. Backends
// assert the same and more.
#pragma once

#include <fovea/kernels.h>

namespace fovea {

Status check_limits(const OpsLimits& limits);

Status check_params(const AttentionParams& p, const OpsLimits& limits);
Status check_params(const KvWriteParams& p, const OpsLimits& limits);
Status check_params(const PartitionedAttentionParams& p, const OpsLimits& limits);
Status check_params(const MergePartitionsParams& p, const OpsLimits& limits);
Status check_params(const CopyBlocksParams& p, const OpsLimits& limits);
Status check_params(const ConvertParams& p, const OpsLimits& limits);
Status check_params(const PageTableToCsrParams& p, const OpsLimits& limits);
Status check_params(const CsrToPageTableParams& p, const OpsLimits& limits);
Status check_params(const EncodeCodesParams& p, const OpsLimits& limits);
Status check_params(const HashEncodeParams& p, const OpsLimits& limits);
Status check_params(const FlatGroupGemmParams& p, const OpsLimits& limits);
Status check_params(const SoftmaxBlockSumParams& p, const OpsLimits& limits);
Status check_params(const HammingScoresParams& p, const OpsLimits& limits);
Status check_params(const HashSelectParams& p, const OpsLimits& limits);
Status check_params(const BlockTopkParams& p, const OpsLimits& limits);
Status check_params(const XAttentionParams& p, const OpsLimits& limits);
Status check_params(const XAttentionChoiceParams& p, const OpsLimits& limits);
Status check_params(const IndexTopkParams& p, const OpsLimits& limits);

// Of an operation without an overload.
template <typename Params>
Status check_params(const Params&, const OpsLimits&) {
  return {};
}

}  // namespace fovea
