// Prefetcher: reads from a store, while a step computes, what its methods say that the next steps will want (Method::take_wants),
// and puts it into columns before attention looks there. Host memory; the stepping thread alone.
//
// A choice for the next step (overlap) is wanted for one step, a guess for the steps it was made for; what has not come by then is
// cancelled, so the queue holds only what may still be of use. Guesses are made in every step while at least one extent in nine of
// them is read, else in one step of 16.
#pragma once

#include "base/clock.h"
#include "kv/extent_cache.h"
#include "model/forward.h"
#include "prefetch/engine.h"
#include "prefetch/plan.h"

#include <fovea/options.h>
#include <fovea/request.h>

#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace fovea {

// How far prefetch may go, without its landings: the largest of what methods that prefetch are told; nullopt: none does.
std::optional<prefetch::CoreLimits> prefetch_limits(std::span<const GsaOptions* const> methods, int32_t units_per_block);

class Prefetcher final : public ReadAhead {
 public:
  // `store`, `cache` and `homes` outlive it. Its engine is what `cache` reads through.
  Prefetcher(BlockStore& store, ExtentCache& cache, const BlockHomes& homes, const prefetch::CoreLimits& limits, const Clock& clock,
             bool threaded = true);

  prefetch::Engine& engine() { return engine_; }
  void begin_step();
  void end_step();
  void collect() override;
  double deadline_s(double share) override;
  void late(const RowGroup& group, LayerIdx layer, std::span<const ExtentCache::Late> late) override;
  void skipped(SequenceId sequence, int32_t units) override;
  void tell(const RowGroup& group, LayerIdx layer) override;
  // The sequence has ended, or was preempted.
  void cancel(SequenceId sequence);

  PrefetchState state(SequenceId sequence) const;
  // Of all, and of one sequence, which begins anew.
  PrefetchStats stats() const;
  PrefetchStats take_stats(SequenceId sequence);

 private:
  // A ticket that is not collected.
  struct Live {
    prefetch::Ticket ticket;
    SequenceId sequence;
    int32_t layer;
    bool guess;
    int64_t until_step;            // cancelled when it begins
    std::vector<int32_t> of_head;  // [heads] extents
  };

  PrefetchStats stats_of(const prefetch::Counters& counters, int64_t skipped) const;
  static constexpr int64_t kGuessesOnTrial = 64;
  bool guesses() const { return step_ % 16 == 0 || guesses_used_ * 8 + kGuessesOnTrial >= guesses_wasted_; }
  std::span<const prefetch::Wanted> wanted(const RowGroup& group, LayerIdx layer);
  void submit(const prefetch::PlannedTicket& planned);

  ExtentCache& cache_;
  const BlockHomes& homes_;
  const Clock& clock_;
  const int32_t layers_, heads_;
  prefetch::Engine engine_;
  std::vector<Live> live_;
  int64_t step_ = 0;
  double step_began_s_ = 0, step_s_ = 0;  // this step's beginning, and how long steps take lately
  int64_t left_out_ = 0, skipped_ = 0;
  int64_t guesses_used_ = 0, guesses_wasted_ = 0;  // lately
  std::unordered_map<SequenceId, int64_t> skipped_of_;
  std::unordered_map<SequenceId, int64_t> ready_step_;  // in which extents of the sequence have come last
  // Scratch.
  std::unordered_map<const Method*, std::vector<Want>> wants_;  // of the layer that chose last
  std::vector<prefetch::Wanted> wanted_;
  std::vector<int32_t> unused_;
  std::vector<prefetch::Extent> extents_;
};

}  // namespace fovea
