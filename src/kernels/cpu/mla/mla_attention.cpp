#include "kernels/cpu/mla/mla_attention.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "kernels/common/checks.h"

namespace fovea::cpu {
namespace {

constexpr int32_t kTasksPerThread = 3;  // enough for the last ones to even out
constexpr int32_t kMinLanes = 16;       // tiles are not made smaller for more tasks: entries would load more often
constexpr int64_t kWaveFloats = int64_t{1} << 20;
constexpr size_t kWavePieces = 4096;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Status MlaAttention::prepare(const OpsLimits& limits, int threads) {
  const MlaShape& shape = limits.mla;
  if (shape.latent == 0) return {};
  if (shape.latent < 16 || shape.latent > 512 || shape.latent % 16 != 0) {
    return Status::unsupported("kv_lora_rank " + std::to_string(shape.latent) +
                               ": latent attention takes multiples of 16 up to 512");
  }
  if (shape.rope < 0 || shape.rope > 128 || shape.rope % 2 != 0) {
    return Status::unsupported("qk_rope_head_dim " + std::to_string(shape.rope) +
                               ": latent attention takes multiples of 2 up to 128");
  }
  FOVEA_CHECK(threads >= 1 && limits.num_heads >= 1 && limits.max_rows >= 1);
  limits_ = limits;
  threads_ = threads;
  const int64_t lanes = std::min<int64_t>(kMlaLanes, int64_t{limits.num_heads} * limits.max_rows);
  const int64_t partitions = ceil_div(std::max<int64_t>(1, limits.max_len), kMlaPartition);
  partial_floats_ = std::max(partitions * mla_partial_floats(lanes, shape.latent), kWaveFloats);
  ScratchCarver counter(nullptr);
  carve_mla_scratch(counter, shape);
  const size_t floats = counter.used() * static_cast<size_t>(threads) + static_cast<size_t>(partial_floats_);
  memory_.reset(static_cast<float*>(std::aligned_alloc(64, floats * sizeof(float))));
  if (memory_ == nullptr) {
    return Status::resource_exhausted("latent attention needs " + std::to_string(floats * sizeof(float)) + " bytes of scratch");
  }
  std::fill_n(memory_.get(), floats, 0.0f);
  ScratchCarver carver(memory_.get());
  workers_.clear();
  for (int i = 0; i < threads; ++i) workers_.push_back(carve_mla_scratch(carver, shape));
  partials_ = carver.floats(partial_floats_);
  tiles_.resize(static_cast<size_t>(limits.max_rows));
  pieces_.assign(std::max<size_t>(kWavePieces, static_cast<size_t>(partitions)), {});
  merges_.assign(kWavePieces, {});
  return {};
}

MlaJob MlaAttention::job_of(const Call& call, int64_t task) const {
  const TileJob tile = prefill_job(call.rows, call.plan, tiles_.data(), task);
  return {call.params, tile.keys, tile.seq, tile.row, tile.rows, tile.head, tile.heads, tile.pos};
}

// Partitions of all tasks, or `enough` if there are more.
int64_t MlaAttention::count_tasks(const Call& call, int64_t enough) const {
  int64_t count = 0;
  for (int64_t task = 0; task < call.plan.tasks && count < enough; ++task) {
    count += std::max<int64_t>(1, job_of(call, task).partitions());
  }
  return std::min(count, enough);
}

void MlaAttention::run(const MlaAttendParams& p, ThreadPool& pool) {
  check_latent_plane(*p.kv, p.latent);
  FOVEA_CHECK(p.latent <= limits_.mla.latent && p.kv->head_dim <= limits_.mla.latent + limits_.mla.rope);
  FOVEA_CHECK(p.rows == p.q_indptr[p.num_seqs] && p.rows <= limits_.max_rows && p.num_heads <= limits_.num_heads);
  FOVEA_CHECK(p.selection == nullptr || p.selection->heads == HeadGroups::all);
  FOVEA_CHECK(pool.size() <= threads_);
  if (p.rows == 0) return;
  Call call;
  call.params = &p;
  call.rows.num_heads = p.num_heads;
  call.rows.num_seqs = p.num_seqs;
  call.rows.q_indptr = p.q_indptr;
  call.rows.seq_len = p.seq_len;
  call.rows.selection = p.selection;
  call.rows.kv.kv_heads = 1;
  const int64_t wanted = kTasksPerThread * pool.size();
  JobLanes lanes{.most = kMlaLanes, .panel = kMlaLanes / 2, .key_tile = 16};
  call.plan = plan_prefill(call.rows, lanes, pool.size(), tiles_.data());
  while (lanes.most > kMinLanes && count_tasks(call, wanted) < wanted) {
    lanes.most /= 2;
    call.plan = plan_prefill(call.rows, lanes, pool.size(), tiles_.data());
  }
  if (call.plan.tasks < wanted) return run_in_pieces(call, pool);
  pool.parallel_for(call.plan.tasks, [&](int64_t task, int worker) { mla_attend_job(job_of(call, task), workers_[worker]); });
}

void MlaAttention::run_in_pieces(const Call& call, ThreadPool& pool) {
  for (int64_t task = 0; task < call.plan.tasks; ++task) {
    Piece piece;
    piece.job = job_of(call, task);
    const int64_t partitions = piece.job.partitions();
    if (partitions <= 1) {
      if (num_pieces_ == pieces_.size()) flush(pool);
      pieces_[num_pieces_++] = piece;
      continue;
    }
    const int64_t floats = mla_partial_floats(piece.job.lanes(), call.params->latent);
    const auto fits = [&] {
      return num_floats_ + partitions * floats <= partial_floats_ &&
             num_pieces_ + static_cast<size_t>(partitions) <= pieces_.size() && num_merges_ < merges_.size();
    };
    if (!fits()) flush(pool);
    FOVEA_CHECK(fits());  // else it is longer than max_len of prepare()
    float* const first = partials_ + num_floats_;
    num_floats_ += partitions * floats;
    merges_[num_merges_] = piece;
    merges_[num_merges_++].partials = first;
    for (piece.partition = 0; piece.partition < partitions; ++piece.partition) {
      piece.partials = first + piece.partition * floats;
      pieces_[num_pieces_++] = piece;
    }
  }
  flush(pool);
}

void MlaAttention::flush(ThreadPool& pool) {
  pool.parallel_for(static_cast<int64_t>(num_pieces_), [&](int64_t i, int worker) {
    const Piece& piece = pieces_[i];
    if (piece.partials == nullptr) return mla_attend_job(piece.job, workers_[worker]);
    mla_attend_partition(piece.job, piece.partition, workers_[worker], piece.partials);
  });
  pool.parallel_for(static_cast<int64_t>(num_merges_), [&](int64_t i, int worker) {
    const MlaJob& job = merges_[i].job;
    mla_merge(job, merges_[i].partials, job.partitions(), workers_[worker]);
  });
  num_pieces_ = num_merges_ = 0;
  num_floats_ = 0;
}

}  // namespace fovea::cpu
