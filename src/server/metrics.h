// What /metrics tells, through prometheus-cpp: vLLM's names under `fovea:`, and ours.
#pragma once

#include <fovea/engine.h>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>

namespace fovea::server {

// What the server itself has at the moment.
struct ServerCounts {
  size_t connections = 0, requests = 0;  // requests: whose reply is not over
  size_t documents = 0, documents_held = 0;
};

class Metrics {
 public:
  explicit Metrics(const std::string& model);

  void token_interval(double seconds) { inter_token_->Observe(seconds); }  // between two events of one answer
  void answered(const Output& last, double seconds);                       // an answer is over, `seconds` after its request came
  void replied(int http_status);
  // The whole page. `stats` null: no engine yet.
  std::string page(const EngineStats* stats, const ServerCounts& counts);

 private:
  prometheus::Counter& counter(const char* name, const char* help, const prometheus::Labels& labels = {});
  prometheus::Gauge& gauge(const char* name, const char* help);
  prometheus::Histogram& histogram(const char* name, const char* help, const prometheus::Histogram::BucketBoundaries& buckets);

  const prometheus::Labels labels_;
  prometheus::Registry registry_;
  prometheus::Histogram *ttft_, *inter_token_, *e2e_, *queue_, *prefill_, *inference_, *decode_, *prompt_sizes_, *output_sizes_,
      *kv_share_;
  prometheus::Counter *kv_read_, *kv_dense_;
};

}  // namespace fovea::server
