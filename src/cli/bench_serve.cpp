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
      "serve", "Load on any server of OpenAI's API: throughput, and percentiles of TTFT, TPOT, ITL and E2EL");
  const auto option = [&](const char* name, auto& target, const char* help) {
    return cmd->add_option(name, target, help)->capture_default_str();
  };
  option("--url", o.url, "The server, http://HOST:PORT, with or without /v1");
  option("--endpoint", o.endpoint, "chat or completions")->check(CLI::IsMember({"chat", "completions"}));
  cmd->add_option("--model", o.model, "The model that requests name; the first of /v1/models, unless given");
  // Not with its default: help should never print a key that the environment holds.
  cmd->add_option("--api-key", o.api_key, "Key that requests carry")->envname("OPENAI_API_KEY");
  option("--num-prompts", o.prompts, "Requests in all")->check(CLI::Range(1, 10000000));
  option("--request-rate", o.request_rate, "Requests that begin each second; inf: all at once")->check(CLI::PositiveNumber);
  option("--burstiness", o.burstiness, "How they arrive: 1 as a Poisson process, below it in bursts, inf evenly")
      ->check(CLI::PositiveNumber);
  option("--max-concurrency", o.concurrency_max, "Most requests under way; others wait, timed from their sending. 0: no limit")
      ->check(CLI::NonNegativeNumber);
  option("--input-len", o.input_tokens, "Tokens of a prompt behind its prefix, the chat template's included (about)")
      ->check(CLI::Range(1, 1 << 24));
  option("--output-len", o.output_tokens, "Most tokens of an answer; all of them with --ignore-eos")->check(CLI::Range(1, 1 << 24));
  option("--prefix-tokens", o.prefix_tokens, "Tokens that prompts begin with in common (about)")->check(CLI::Range(0, 1 << 24));
  option("--num-prefixes", o.prefixes, "How many such beginnings there are, taken in turn")->check(CLI::Range(1, 1000000));
  cmd->add_flag("--ignore-eos", o.ignore_eos, "Ask for answers of the full length (vLLM's and this program's servers)");
  cmd->add_option("--extra-body", o.extra_body,
                  "A JSON object that joins each request: '{\"fovea\": {\"decode_method\": \"gsa_on_device\"}}'");
  option("--seed", o.seed, "Of words and arrivals");
  option("--timeout", o.timeout_s, "Seconds that a request may take")->check(CLI::Range(0.001, 1e6));
  cmd->add_flag("--json", f->json, "JSON on stdout, by the names of vLLM's --save-result, instead of a table");
  return [f] {
    const Result<ServeBenchReport> r = bench_serve(f->serve);
    if (!r.ok()) return report(r.status());
    std::cout << (f->json ? r->json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n" : r->table);
    return r->completed > 0 ? 0 : kFailure;
  };
}

}  // namespace fovea::cli
