// One step of a runner: its arrays, its moves, the forward pass, sampling, and reading what was sampled.
#include "runner/runner.h"

#include "base/check.h"
#include "runner/simulated_context.h"

#include <algorithm>
#include <utility>

namespace fovea {

Launched Runner::launch(const StepInput& plan) {
  Flight& flight = flights_[next_];
  FOVEA_CHECK(!flight.flying);
  bool moved = false;
  groups_begun_ = 0;
  (void)take_lost();
  Status s = prepare(plan, &moved);
  if (prefetcher_) prefetcher_->begin_step();
  if (s.ok()) s = run_step();
  if (prefetcher_) prefetcher_->end_step();
  if (s.ok()) s = counter_->take_error();
  if (s.ok()) s = download(flight);
  for (size_t i = 0; i < groups_begun_; ++i) {
    if (Method* method = batch_->forward().groups[i].method) method->step_finish(s.ok());
  }
  if (s.ok()) {
    start_flight(&flight);
    next_ ^= 1;
    retries_ = 0;
    return {};
  }
  // What was enqueued of it is over before its blocks are given away.
  const Status drained = stream_->synchronize();
  lose_tables();
  if (!drained.ok() && flights_[next_ ^ 1].flying) lost_ = drained;
  const bool lost = has_lost();
  const bool again = moved && drained.ok() && s.code() == StatusCode::busy && (lost || retries_ < kRetriesMax);
  retries_ = again && !lost ? retries_ + 1 : 0;
  return {again ? Launched::End::retry : Launched::End::failed, std::move(s), !moved || !drained.ok()};
}

Status Runner::prepare(const StepInput& plan, bool* moved) {
  const Status applied = kv_->apply(plan.moves, swap_.get(), *stream_);
  *moved = applied.ok() || has_lost();
  FOVEA_TRY(applied);
  FOVEA_TRY(batch_->build(plan, flights_[next_ ^ 1].targets));
  FOVEA_TRY(samples_->build(plan, *batch_));
  ForwardBatch& forward = batch_->forward();
  const auto streams = [](const RowGroup& g) { return g.blocks == RowGroup::Blocks::streamed; };
  const bool staging = std::any_of(forward.groups.begin(), forward.groups.end(), streams);
  if (extents_) extents_->set_staging(staging);
  if (device_extents_) FOVEA_TRY(device_extents_->set_staging(staging, *stream_));
  for (const RowGroup& g : forward.groups) {
    if (g.method) FOVEA_TRY(g.method->step_begin(g.step));
    ++groups_begun_;
  }
  if (device_extents_) {
    device_extents_->set_stored(plan.stored);
    prepare_waves();
  }
  // Beside one entry a row or a token that is sampled, some arrays have one more a group.
  const int64_t rows = std::max<int64_t>(forward.tokens, static_cast<int64_t>(samples_->targets().size()));
  FOVEA_TRY(staging_->upload(rows + static_cast<int64_t>(forward.groups.size()) + 1, *stream_));
  FOVEA_TRY(batch_->upload_tables(*stream_));
  samples_->upload_history(*stream_);
  FOVEA_TRY(stream_->error());  // with the arrays of another step, operations would write where others read
  forward.previous = samples_->tokens();
  forward.logits = logits_.as<float>();
  forward.scored_at_once = max_logits();
  forward.reader = this;
  forward.keys_read = device_->is_host() ? nullptr : keys_read_.device();
  counter_->begin_step();
  forward.read_ahead = prefetcher_;
  forward.observer = counter_->wants_selections() ? counter_.get() : nullptr;
  return {};
}

std::vector<BlockId> Runner::take_lost() {
  return extents_ ? extents_->take_lost() : device_extents_ ? device_extents_->take_lost() : std::vector<BlockId>();
}

// After a step that failed: nobody knows what the device holds.
void Runner::lose_tables() {
  batch_->forget_tables();
  if (extents_) extents_->drop_strips();
  if (device_extents_) device_extents_->lose_tables();
}

void Runner::prepare_waves() {
  ForwardBatch& forward = batch_->forward();
  *wave_base_.host() = device_extents_->begin_step(forward.tokens);
  forward.fetched = fetched_.device();
  for (RowGroup& g : batch_->groups()) {
    int64_t most = 1;  // blocks that a row of it reads
    for (int32_t r = 0; g.method && r < g.rows; ++r)
      most = std::max(most, g.method->most_blocks(g.step.row_len[r], g.step.row_budget_tokens[r]));
    g.wave_rows = std::min(g.rows, device_extents_->rows_of_wave(most));
  }
}

bool Runner::waits_for_host() const {
  const auto waits = [](const RowGroup& g) { return g.method && g.method->waits(); };
  const auto& groups = batch_->forward().groups;
  return (device_extents_ && device_extents_->waits()) || std::any_of(groups.begin(), groups.end(), waits);
}

// A step of decode rows alone is one captured graph for each shape of batch: the first such step runs eagerly (and warms up
// what is made on first use), the second is captured, later ones replay.
Status Runner::run_step() {
  const ForwardBatch& forward = batch_->forward();
  if (!batch_->is_pure_decode() || forward.observer || samples_->has_penalties() || !options_.cuda_graphs || waits_for_host())
    return enqueue_step();
  GraphKey key;
  for (const RowGroup& g : forward.groups) {
    if (g.blocks == RowGroup::Blocks::streamed) return enqueue_step();  // what is launched depends on how long contexts are
    key.add_group(g.method, g.rows, g.method ? g.method->graph_key() : 0, g.wave_rows);
  }
  std::unique_ptr<Graph>* graph = graphs_.find(key);
  if (!graph) return enqueue_step();
  if (!*graph) {
    FOVEA_ASSIGN(*graph, device_->capture(*stream_, [this] { return enqueue_step(); }));
  }
  return (*graph)->launch(*stream_);
}

Status Runner::enqueue_step() {
  const ForwardBatch& forward = batch_->forward();
  arena_->reset();
  if (simulate_prefill_ && forward.groups.size() == 1 && forward.groups[0].kind == RowGroup::Kind::prefill) {
    FOVEA_TRY(write_random_kv(*batch_, shape_, *kv_, summaries_, *device_, *ops_, *stream_, *arena_));
    device_->fill(logits_.data(), 0, sizeof(float) * static_cast<size_t>(int64_t{forward.num_logit_rows} * config_.vocab_size),
                  *stream_);
  } else {
    FOVEA_TRY(transformer_->forward(forward, *kv_, summaries_, *ops_, *stream_, *arena_));
  }
  if (!samples_->targets().empty()) ops_->sample(samples_->params(logits_.as<float>()), *stream_);
  return {};
}

// Keeps what reading the step's results will need: the batch is built anew before that.
void Runner::start_flight(Flight* flight) {
  flight->flying = true;
  flight->targets.assign(samples_->targets().begin(), samples_->targets().end());
  flight->logit_rows.assign(samples_->logit_rows().begin(), samples_->logit_rows().end());
  counter_->keep_step();
  counter_->note_step(&flight->reads);
  if (flight->done) flight->done->record(*stream_);
}

// What the device knows of the step in the end.
Status Runner::download(const Flight& flight) {
  if (device_->is_host()) return {};
  const size_t counts = sizeof(int64_t) * static_cast<size_t>(batch_->forward().tokens);
  std::array<CopyExtent, 3> extents = {
      {{.to = flight.tokens.data(), .from = samples_->tokens(), .bytes = sizeof(int32_t) * samples_->targets().size()},
       {.to = flight.keys_read.data(), .from = keys_read_.device(), .bytes = counts}}};
  if (plan_.own_columns) extents[2] = {.to = flight.fetched.data(), .from = fetched_.device(), .bytes = 2 * counts};
  return device_->transfer_words(std::span(extents).first(plan_.own_columns ? 3 : 2), CopyKind::to_host, *stream_);
}

Result<StepResult> Runner::collect() {
  Flight& flight = flights_[next_].flying ? flights_[next_] : flights_[next_ ^ 1];
  FOVEA_CHECK(flight.flying);
  Status done = std::exchange(lost_, Status());
  if (done.ok() && flight.done) done = flight.done->wait();
  if (done.ok() && device_extents_) done = device_extents_->take_error();
  if (!done.ok()) {
    (void)stream_->synchronize().ok();  // whatever it says: nothing of it counts
    lose_tables();
    for (Flight& f : flights_) f.flying = false;
    return done;
  }
  flight.flying = false;
  const int32_t* sampled = flight.tokens ? flight.tokens.as<int32_t>() : samples_->tokens();
  tokens_.clear();
  token_rows_.clear();
  row_reads_.clear();
  for (size_t i = 0; i < flight.targets.size(); ++i) {
    if (flight.targets[i].sequence == SequenceId{}) continue;  // padding
    tokens_.push_back({flight.targets[i].sequence, sampled[i]});
    token_rows_.push_back(flight.logit_rows[i]);
  }
  counter_->count_step(flight.reads, flight.keys_read.as<int64_t>(), flight.fetched.as<int64_t>(), &row_reads_);
  return StepResult{tokens_, row_reads_};
}

Result<std::span<const float>> Runner::logits(size_t i) {
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  const float* row = logits_.as<float>() + int64_t{token_rows_[i]} * config_.vocab_size;
  if (!device_->is_host()) {
    read_logits_.resize(vocab);
    device_->copy(read_logits_.data(), row, sizeof(float) * vocab, CopyKind::to_host, *stream_);
    FOVEA_TRY(stream_->synchronize());
    row = read_logits_.data();
  }
  return std::span<const float>(row, vocab);
}

Status Runner::read(int32_t first_row, int32_t rows) {
  std::span<const float> logits(logits_.as<float>(), static_cast<size_t>(int64_t{rows} * config_.vocab_size));
  if (!device_->is_host()) {
    read_logits_.resize(logits.size());
    device_->copy(read_logits_.data(), logits.data(), logits.size_bytes(), CopyKind::to_host, *stream_);
    FOVEA_TRY(stream_->synchronize());
    logits = read_logits_;
  }
  prompt_logits_(*batch_->row_owner(first_row), batch_->row_position(first_row), logits);
  return {};
}

}  // namespace fovea
