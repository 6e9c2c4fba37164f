#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>

namespace fovea::server {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// vLLM's buckets, so that its dashboards and alerts fit.
const Buckets kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                             1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const Buckets kInterToken = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                             0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
const Buckets kRequest = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,
                          15,   20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const Buckets kTokens = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                         2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
const Buckets kShare = {0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1};

// Counters only grow: what the engine has counted so far replaces what is shown.
void set(prometheus::Counter& counter, double value) { counter.Increment(std::max(0.0, value - counter.Value())); }
void set(prometheus::Counter& counter, int64_t value) { set(counter, static_cast<double>(value)); }

}  // namespace

Metrics::Metrics(const std::string& model) : labels_{{"model_name", model}} {
  ttft_ = &histogram("time_to_first_token_seconds", "From a request's arrival to its first token", kFirstToken);
  inter_token_ = &histogram("inter_token_latency_seconds", "Between two tokens of an answer", kInterToken);
  e2e_ = &histogram("e2e_request_latency_seconds", "From a request's arrival to its answer's end", kRequest);
  queue_ = &histogram("request_queue_time_seconds", "From a request's arrival to its first step", kRequest);
  prefill_ = &histogram("request_prefill_time_seconds", "From a request's first step to its first token", kRequest);
  inference_ = &histogram("request_inference_time_seconds", "From a request's first step to its last token", kRequest);
  decode_ = &histogram("request_decode_time_seconds", "From a request's first token to its last", kRequest);
  prompt_sizes_ = &histogram("request_prompt_tokens", "Tokens of a prompt", kTokens);
  output_sizes_ = &histogram("request_generation_tokens", "Tokens of an answer", kTokens);
  kv_share_ = &histogram("kv_bytes_share", "Share of the KV cache's bytes that an answer's steps read", kShare);
  kv_read_ = &counter("kv_bytes_read_total", "Bytes of K, V and summaries that answers read");
  kv_dense_ = &counter("kv_bytes_dense_total", "Bytes that dense attention would have read for them");
}

prometheus::Counter& Metrics::counter(const char* name, const char* help, const prometheus::Labels& labels) {
  return prometheus::BuildCounter().Name(std::string("fovea:") + name).Help(help).Labels(labels_).Register(registry_).Add(labels);
}

prometheus::Gauge& Metrics::gauge(const char* name, const char* help) {
  return prometheus::BuildGauge().Name(std::string("fovea:") + name).Help(help).Labels(labels_).Register(registry_).Add({});
}

prometheus::Histogram& Metrics::histogram(const char* name, const char* help, const Buckets& buckets) {
  return prometheus::BuildHistogram()
      .Name(std::string("fovea:") + name)
      .Help(help)
      .Labels(labels_)
      .Register(registry_)
      .Add({}, buckets);
}

void Metrics::answered(const Output& last, double seconds) {
  const RequestStats& s = last.stats;
  e2e_->Observe(seconds);
  if (last.reason == FinishReason::failed || last.reason == FinishReason::aborted) return;
  queue_->Observe(s.queue_s);
  ttft_->Observe(s.ttft_s);
  prefill_->Observe(std::max(0.0, s.ttft_s - s.queue_s));
  decode_->Observe(s.decode_s);
  inference_->Observe(std::max(0.0, s.ttft_s - s.queue_s) + s.decode_s);
  prompt_sizes_->Observe(static_cast<double>(s.prompt_tokens));
  output_sizes_->Observe(static_cast<double>(s.output_tokens));
  kv_share_->Observe(s.kv_bytes_share());
  kv_read_->Increment(static_cast<double>(s.kv_bytes_read + s.summary_bytes_read));
  kv_dense_->Increment(static_cast<double>(s.kv_bytes_dense));
}

void Metrics::replied(int http_status) {
  counter("http_requests_total", "Replies by HTTP status", {{"status", std::to_string(http_status)}}).Increment();
}

std::string Metrics::page(const EngineStats* stats, const ServerCounts& counts) {
  gauge("http_connections", "Open connections").Set(static_cast<double>(counts.connections));
  gauge("http_requests_in_flight", "Requests whose reply is not over").Set(static_cast<double>(counts.requests));
  gauge("documents", "Documents that were put and can be asked by id").Set(static_cast<double>(counts.documents));
  gauge("documents_held", "Of them, those whose KV is held").Set(static_cast<double>(counts.documents_held));
  if (stats) {
    const EngineStats& s = *stats;
    gauge("num_requests_running", "Sequences that are computed").Set(static_cast<double>(s.requests_running));
    gauge("num_requests_waiting", "Sequences that wait").Set(static_cast<double>(s.requests_waiting));
    gauge("kv_cache_blocks", "Blocks of the KV cache").Set(static_cast<double>(s.blocks_total));
    gauge("kv_cache_swapped_bytes", "Bytes of sequences that lie swapped out").Set(static_cast<double>(s.swapped_bytes));
    gauge("kv_cache_usage_perc", "Share of KV blocks in use; 1: all")
        .Set(s.blocks_total == 0 ? 0 : static_cast<double>(s.blocks_in_use) / static_cast<double>(s.blocks_total));
    set(counter("prefix_cache_queries_total", "Tokens looked up in the prefix cache"), s.prefix_query_tokens);
    set(counter("prefix_cache_hits_total", "Tokens found there"), s.prefix_hit_tokens);
    set(counter("prompt_tokens_total", "Tokens of prompts"), s.prompt_tokens);
    set(counter("generation_tokens_total", "Tokens of answers"), s.generation_tokens);
    set(counter("num_preemptions_total", "Sequences that gave up their blocks for others"), s.preemptions);
    set(counter("engine_steps_total", "Steps of the engine"), s.steps);
    set(counter("store_loaded_tokens_total", "Tokens of prompts that the store had"), s.loaded_tokens);
    set(counter("store_loaded_bytes_total", "Bytes read for them"), s.loaded_bytes);
    set(counter("store_load_seconds_total", "Seconds spent reading them, one read after the other"), s.load_s);
    set(counter("store_repaired_blocks_total", "Blocks that it lost or gave back damaged, and that were computed again"),
        s.repaired_blocks);
    set(counter("store_stored_blocks_total", "Blocks given to the store"), s.stored_blocks);
    set(counter("store_unstored_blocks_total", "Blocks that it did not take"), s.unstored_blocks);
    set(counter("prefetch_hits_total", "Extents read before attention wanted them"), s.prefetch.hits);
    set(counter("prefetch_late_total", "Extents that attention waited for"), s.prefetch.late);
    set(counter("prefetch_wasted_total", "Extents read that nothing wanted"), s.prefetch.wasted);
    set(counter("prefetch_cancelled_total", "Extents dropped before they were read"), s.prefetch.cancelled);
    set(counter("prefetch_left_out_total", "Extents that were wanted and not asked for, as a bound was reached"),
        s.prefetch.left_out);
    set(counter("prefetch_skipped_total", "Blocks that attention did without (late_policy best_effort)"), s.prefetch.skipped);
    set(counter("prefetch_bytes_total", "Bytes read ahead of attention"), s.prefetch.bytes);
    for (const FinishReason reason : {FinishReason::stop, FinishReason::length, FinishReason::aborted, FinishReason::failed}) {
      set(counter("request_success_total", "Answers that are over, by how they ended",
                  {{"finished_reason", finish_reason_name(reason)}}),
          s.finished[static_cast<size_t>(reason)]);
    }
  }
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace fovea::server
