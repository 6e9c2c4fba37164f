#include "bench/serve_bench.h"

#include "bench/load_client.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

// Words that tokenizers of English text have as a token each, or nearly.
constexpr const char* kWords[] = {"the",  "and",   "that",  "with",  "from",  "this",  "have",  "they", "which", "were",  "there",
                                  "been", "their", "would", "when",  "time",  "water", "people", "other", "first", "house", "river",
                                  "day",  "year",  "hand",  "light", "night", "world", "under", "after", "place", "again"};

// Random words; equal for equal arguments.
std::string random_words(uint64_t seed, uint64_t stream, int64_t count) {
  std::seed_seq sequence{uint32_t(seed), uint32_t(seed >> 32), uint32_t(stream), uint32_t(stream >> 32)};
  std::mt19937_64 random(sequence);
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    text += i ? " " : "";
    text += kWords[random() % std::size(kWords)];
  }
  return text;
}

// What prompts of this server's tokenizer and template cost: tokens = fixed + words * per_word.
struct PromptCost {
  double fixed = 0, per_word = 1;
  int64_t words(double tokens) const { return std::max<int64_t>(1, std::llround(tokens / per_word)); }
};

Result<std::string> first_model(const HttpTarget& target) {
  FOVEA_ASSIGN(const std::string text, http_get(target, "/models"));
  const auto list = Json::parse(text, nullptr, false);
  if (list.is_object() && list.contains("data") && list["data"].is_array() && !list["data"].empty()) {
    const Json& first = list["data"][0];
    if (first.is_object() && first.contains("id") && first["id"].is_string()) return first["id"].get<std::string>();
  }
  return Status::invalid_argument("--url: /v1/models names no model: give --model");
}

std::string body_of(const ServeBenchOptions& o, const Json& extra, const std::string& prompt, int64_t output_tokens) {
  Json body = {{"model", o.model},
               {"max_tokens", output_tokens},
               {"temperature", 0},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (o.endpoint == "chat") {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
  } else {
    body["prompt"] = prompt;
  }
  if (o.ignore_eos) body["ignore_eos"] = true;
  body.update(extra);
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Two small requests, one after the other: whether the server answers at all, and how it counts words.
Result<PromptCost> measure_prompts(const HttpTarget& target, const ServeBenchOptions& o, const Json& extra, LoadPlan plan) {
  constexpr int64_t kFew = 16, kMany = 144;
  plan.start_s = {0, 0};
  plan.concurrency_max = 1;
  plan.body = [&](size_t i) { return body_of(o, extra, random_words(o.seed, ~uint64_t{i}, i ? kMany : kFew), 1); };
  FOVEA_ASSIGN(const LoadResult probes, run_load(target, plan));
  for (const CompletionOutcome& p : probes.outcomes) {
    if (!p.error.empty()) return Status::io_error("--url " + o.url + ": the first request failed: " + p.error + ": " + p.detail);
  }
  PromptCost cost;
  const int64_t few = probes.outcomes[0].input_tokens, many = probes.outcomes[1].input_tokens;
  if (few < 0 || many <= few) return cost;  // it does not tell: a token each
  cost.per_word = static_cast<double>(many - few) / (kMany - kFew);
  cost.fixed = std::max(0.0, static_cast<double>(few) - kFew * cost.per_word);
  return cost;
}

std::vector<double> arrivals(const ServeBenchOptions& o) {
  std::vector<double> start_s(static_cast<size_t>(o.prompts), 0);
  if (std::isinf(o.request_rate)) return start_s;
  std::mt19937_64 random(o.seed);
  const double mean = 1 / o.request_rate;
  const bool even = std::isinf(o.burstiness);
  std::gamma_distribution<double> between(even ? 1 : o.burstiness, even ? mean : mean / o.burstiness);
  for (size_t i = 1; i < start_s.size(); ++i) start_s[i] = start_s[i - 1] + (even ? mean : between(random));
  return start_s;
}

struct Measured {
  const char* name;
  const char* key;
  std::vector<double> ms;  // ascending
};

// Between the two nearest values, as numpy has it. 0: there are none.
double percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double at = share * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(at), above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::string line_of(const std::string& name, double value, int digits) {
  char text[96];
  std::snprintf(text, sizeof(text), "%-34s %12.*f\n", name.c_str(), digits, value);
  return text;
}

ServeBenchReport report_of(const ServeBenchOptions& o, const LoadResult& load) {
  ServeBenchReport r;
  Measured measured[] = {{"TTFT", "ttft", {}}, {"TPOT", "tpot", {}}, {"ITL", "itl", {}}, {"E2EL", "e2el", {}}};
  std::map<std::string, std::pair<int64_t, std::string>> errors;  // how many, and what the first said
  int64_t input = 0, output = 0;
  for (const CompletionOutcome& c : load.outcomes) {
    if (!c.error.empty()) {
      auto& [count, detail] = errors[c.error];
      if (count++ == 0) detail = c.detail;
      continue;
    }
    ++r.completed;
    const int64_t tokens = c.output_tokens >= 0 ? c.output_tokens : c.events;
    input += std::max<int64_t>(c.input_tokens, 0);
    output += tokens;
    measured[0].ms.push_back(1e3 * (c.first_s - c.sent_s));
    if (tokens > 1) measured[1].ms.push_back(1e3 * (c.last_s - c.first_s) / static_cast<double>(tokens - 1));
    for (const float gap : c.gaps_s) measured[2].ms.push_back(1e3 * gap);
    measured[3].ms.push_back(1e3 * (c.last_s - c.sent_s));
  }
  const int64_t failed = static_cast<int64_t>(load.outcomes.size()) - r.completed;
  const auto per_second = [&](int64_t n) { return load.duration_s > 0 ? static_cast<double>(n) / load.duration_s : 0; };
  r.json = {{"model_id", o.model},
            {"endpoint", o.endpoint},
            {"num_prompts", o.prompts},
            {"request_rate", std::isinf(o.request_rate) ? Json("inf") : Json(o.request_rate)},
            {"burstiness", std::isinf(o.burstiness) ? Json("inf") : Json(o.burstiness)},
            {"max_concurrency", o.concurrency_max ? Json(o.concurrency_max) : Json()},
            {"duration", load.duration_s},
            {"completed", r.completed},
            {"failed", failed},
            {"max_concurrent_requests", load.open_max},
            {"total_input_tokens", input},
            {"total_output_tokens", output},
            {"request_throughput", per_second(r.completed)},
            {"output_throughput", per_second(output)},
            {"total_token_throughput", per_second(input + output)}};
  r.table = line_of("Successful requests", static_cast<double>(r.completed), 0) +
            line_of("Failed requests", static_cast<double>(failed), 0) +
            line_of("Most requests at once", static_cast<double>(load.open_max), 0) +
            line_of("Duration (s)", load.duration_s, 2) + line_of("Total input tokens", static_cast<double>(input), 0) +
            line_of("Total generated tokens", static_cast<double>(output), 0) +
            line_of("Request throughput (req/s)", per_second(r.completed), 2) +
            line_of("Output token throughput (tok/s)", per_second(output), 2) +
            line_of("Total token throughput (tok/s)", per_second(input + output), 2);
  char text[128];
  std::snprintf(text, sizeof(text), "%-8s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99");
  r.table += text;
  for (Measured& m : measured) {
    std::sort(m.ms.begin(), m.ms.end());
    const double mean = m.ms.empty() ? 0 : std::accumulate(m.ms.begin(), m.ms.end(), 0.0) / static_cast<double>(m.ms.size());
    const double p[] = {percentile(m.ms, 0.5), percentile(m.ms, 0.9), percentile(m.ms, 0.99)};
    const std::string unit = std::string(m.key) + "_ms";
    r.json["mean_" + unit] = mean;
    r.json["median_" + unit] = r.json["p50_" + unit] = p[0];
    r.json["p90_" + unit] = p[1];
    r.json["p99_" + unit] = p[2];
    std::snprintf(text, sizeof(text), "%-8s %10.2f %10.2f %10.2f %10.2f\n", m.name, mean, p[0], p[1], p[2]);
    r.table += text;
  }
  r.json["errors"] = Json::object();
  for (const auto& [kind, what] : errors) {
    r.json["errors"][kind] = what.first;
    r.table += "Error: " + kind + ": " + std::to_string(what.first) + " (" + what.second + ")\n";
  }
  return r;
}

}  // namespace

Result<ServeBenchReport> bench_serve(const ServeBenchOptions& options) {
  ServeBenchOptions o = options;
  FOVEA_ASSIGN(HttpTarget target, parse_target(o.url));
  target.api_key = o.api_key;
  const Json extra = o.extra_body.empty() ? Json::object() : Json::parse(o.extra_body, nullptr, false);
  if (!extra.is_object()) return Status::invalid_argument("--extra-body: must be a JSON object");
  if (o.model.empty()) {
    FOVEA_ASSIGN(o.model, first_model(target));
  }
  LoadPlan plan;
  plan.endpoint = o.endpoint == "chat" ? "/chat/completions" : "/completions";
  plan.timeout_s = o.timeout_s;
  FOVEA_ASSIGN(const PromptCost cost, measure_prompts(target, o, extra, plan));
  std::vector<std::string> prefixes;
  for (int64_t i = 0; o.prefix_tokens > 0 && i < o.prefixes; ++i)
    prefixes.push_back(random_words(o.seed, uint64_t(o.prompts + i), cost.words(static_cast<double>(o.prefix_tokens))) + " ");
  plan.start_s = arrivals(o);
  plan.concurrency_max = static_cast<size_t>(o.concurrency_max);
  plan.body = [&](size_t i) {
    const std::string own = random_words(o.seed, i, cost.words(static_cast<double>(o.input_tokens) - cost.fixed));
    return body_of(o, extra, prefixes.empty() ? own : prefixes[i % prefixes.size()] + own, o.output_tokens);
  };
  FOVEA_ASSIGN(const LoadResult load, run_load(target, plan));
  return report_of(o, load);
}

}  // namespace fovea
