// fovea bench serve: load on a server.
#include "cli/commands.h"
#include "cli/flags.h"

#include "bench/serve_bench.h"

#include <iostream>
#include <memory>

namespace fovea::cli {

Run add_bench_serve(CLI::App& bench) {
  struct Flags {
    ServeBenchOptions serve;
    bool json = false;
  };
  auto f = std::make_shared<Flags>();
  ServeBenchOptions& o = f->serve;
  CLI::App* cmd = bench.add_subcommand(
      "serve", "Load-test any OpenAI-compatible server: throughput, and percentiles of TTFT, TPOT, ITL and E2EL");
  const auto option = [&](const char* name, auto& target, const char* help) {
    return cmd->add_option(name, target, help)->capture_default_str();
  };
  option("--url", o.url, "Server URL: http://HOST:PORT, with or without /v1");
  option("--endpoint", o.endpoint, "API to call: chat or completions")->check(CLI::IsMember({"chat", "completions"}));
  cmd->add_option("--model", o.model, "Model that requests name (default: the first of /v1/models)");
  // Not with its default: help should never print a key that the environment holds.
  cmd->add_option("--api-key", o.api_key, "API key to send")->envname("OPENAI_API_KEY");
  option("--num-prompts", o.prompts, "Total number of requests")->check(CLI::Range(1, 10000000));
  option("--request-rate", o.request_rate, "Requests started per second; inf: all at once")->check(CLI::PositiveNumber);
  option("--burstiness", o.burstiness, "Arrival pattern: 1: a Poisson process; below 1: bursts; inf: evenly spaced")
      ->check(CLI::PositiveNumber);
  option("--max-concurrency", o.concurrency_max,
         "Maximum requests in flight; the others wait, and are timed from when they are sent. 0: no limit")
      ->check(CLI::NonNegativeNumber);
  option("--input-len", o.input_tokens, "Prompt tokens behind the prefix, including the chat template's (approximate)")
      ->check(CLI::Range(1, 1 << 24));
  option("--output-len", o.output_tokens, "Maximum tokens per answer; with --ignore-eos exactly so many")
      ->check(CLI::Range(1, 1 << 24));
  option("--prefix-tokens", o.prefix_tokens, "Tokens of the prefix that prompts share (approximate)")
      ->check(CLI::Range(0, 1 << 24));
  option("--num-prefixes", o.prefixes, "Number of different prefixes, used in turn")->check(CLI::Range(1, 1000000));
  cmd->add_flag("--ignore-eos", o.ignore_eos, "Request answers of the full length (vLLM's and this program's servers)");
  cmd->add_option("--extra-body", o.extra_body,
                  "JSON object merged into each request: '{\"fovea\": {\"decode_method\": \"gsa_on_device\"}}'");
  option("--seed", o.seed, "Random seed of words and arrival times");
  option("--timeout", o.timeout_s, "Seconds until a request times out")->check(CLI::Range(0.001, 1e6));
  cmd->add_flag("--json", f->json, "Print JSON with the names of vLLM's --save-result instead of a table");
  return [f] {
    const Result<ServeBenchReport> r = bench_serve(f->serve);
    if (!r.ok()) return report(r.status());
    std::cout << (f->json ? r->json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n" : r->table);
    return r->completed > 0 ? 0 : kFailure;
  };
}

}  // namespace fovea::cli
