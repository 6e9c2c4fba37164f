// fovea inspect: what a model holds and what fits in memory.
#include "cli/commands.h"
#include "cli/flags.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <iostream>
#include <memory>

namespace fovea::cli {
namespace {

struct InspectFlags {
  EngineFlags engine;
  std::string render;  // a file with a conversation
  bool json = false;
};

// The prompt of a conversation and its tokens; no weights are loaded.
Status render(const InspectFlags& f, const EngineOptions& options) {
  FOVEA_ASSIGN(const std::string text, read_file(f.render));
  FOVEA_ASSIGN(const ChatInput input, parse_chat_input(text, f.render));
  FOVEA_ASSIGN(const ChatPrompt prompt, render_chat(options.model_dir, input));
  if (f.json) {
    std::cout << nlohmann::ordered_json{{"prompt", prompt.text}, {"token_ids", prompt.token_ids}}.dump(2) << "\n";
    return {};
  }
  std::cout << prompt.text << "\n";
  for (size_t i = 0; i < prompt.token_ids.size(); ++i) std::cout << (i > 0 ? " " : "") << prompt.token_ids[i];
  std::cout << "\n";
  return {};
}

double bits(int64_t bytes, int64_t parameters) { return 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters); }

// "850.1 MB, 4.85 bits a weight: q4_k 80 % at 4.50, q6_k 20 % at 6.56"
std::string weights_text(const ModelInfo& m) {
  int64_t all = 0;
  for (const WeightShare& w : m.weights) all += w.parameters;
  char text[128];
  std::snprintf(text, sizeof text, ", %.2f bits a weight: ", bits(m.weight_bytes, all));
  std::string out = bytes_text(static_cast<double>(m.weight_bytes)) + text;
  for (const WeightShare& w : m.weights) {
    const double percent = 100.0 * static_cast<double>(w.parameters) / static_cast<double>(all);
    std::snprintf(text, sizeof text, "%s%s %.1f %% at %.2f", &w == m.weights.data() ? "" : ", ", w.type.c_str(), percent,
                  bits(w.bytes, w.parameters));
    out += text;
  }
  return out;
}

std::string indexer_text(const ModelShape& s) {
  if (s.index_heads == 0) return "no indexer";
  return "indexer of " + std::to_string(s.index_heads) + " heads of " + std::to_string(s.index_dim) + ", " +
         std::to_string(s.index_topk) + " tokens chosen";
}

nlohmann::ordered_json weight_types(const ModelInfo& m) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const WeightShare& w : m.weights)
    list.push_back({{"type", w.type}, {"parameters", w.parameters}, {"bytes", w.bytes}, {"bits", bits(w.bytes, w.parameters)}});
  return list;
}

Status execute(const InspectFlags& f) {
  FOVEA_ASSIGN(EngineOptions options, f.engine.options());
  if (!f.render.empty()) return render(f, options);
  FOVEA_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(std::move(options)));
  const ModelInfo& m = engine->model();
  const EngineStats s = engine->stats();
  const int64_t block_tokens = engine->options().block_size;
  const double kv_token = static_cast<double>(m.shape.kv_bytes_per_token_head) * m.shape.kv_heads * m.shape.num_layers;
  const double all_token = static_cast<double>(s.block_bytes) / static_cast<double>(block_tokens);
  const int64_t fits = s.blocks_total * block_tokens;
  const double fits_bytes =
      kv_token * static_cast<double>(s.pool_blocks * block_tokens) + (all_token - kv_token) * static_cast<double>(fits);
  if (f.json) {
    std::cout << nlohmann::ordered_json{{"architecture", m.architecture},
                                        {"parameters", m.parameters},
                                        {"weight_bytes", m.weight_bytes},
                                        {"weight_types", weight_types(m)},
                                        {"widened_parameters", m.widened_parameters},
                                        {"layers", m.shape.num_layers},
                                        {"hidden_size", m.hidden_size},
                                        {"heads", m.shape.num_heads},
                                        {"kv_heads", m.shape.kv_heads},
                                        {"head_dim", m.shape.head_dim},
                                        {"kv_lora_rank", m.shape.kv_lora_rank},
                                        {"index_topk", m.shape.index_topk},
                                        {"vocab_size", m.vocab_size},
                                        {"rope", m.rope},
                                        {"max_position_embeddings", m.max_position_embeddings},
                                        {"max_model_len", m.max_model_len},
                                        {"has_tokenizer", m.has_tokenizer},
                                        {"has_chat_template", m.has_chat_template},
                                        {"kv_bytes_per_token", kv_token},
                                        {"summary_bytes_per_token", all_token - kv_token},
                                        {"kv_blocks", s.blocks_total},
                                        {"kv_tokens", fits},
                                        {"kv_pool_blocks", s.pool_blocks},
                                        {"kv_staging_blocks", s.staging_blocks},
                                        {"backend", engine->backend()}}
                     .dump(2)
              << "\n";
    return {};
  }
  std::printf("model      %s, %.1f M parameters\n", m.architecture.c_str(), static_cast<double>(m.parameters) / 1e6);
  std::printf("weights    %s\n", weights_text(m).c_str());
  if (m.widened_parameters > 0)
    std::printf("widened    %.1f M parameters of kv_b and of what decides, from fewer bits to f32\n",
                static_cast<double>(m.widened_parameters) / 1e6);
  std::printf("shape      %d layers, hidden %d, ffn %d, %d query heads, %d KV heads of %d, vocabulary %d\n", m.shape.num_layers,
              m.hidden_size, m.intermediate_size, m.shape.num_heads, m.shape.kv_heads, m.shape.head_dim, m.vocab_size);
  if (m.shape.kv_lora_rank > 0)
    std::printf("latents    %d + %d for the position; %s\n", m.shape.kv_lora_rank, m.shape.rope_dim, indexer_text(m.shape).c_str());
  std::printf("positions  %lld, rope %s\n", static_cast<long long>(m.max_position_embeddings), m.rope.c_str());
  std::printf("text       tokenizer %s, chat template %s\n", m.has_tokenizer ? "yes" : "no", m.has_chat_template ? "yes" : "no");
  std::printf("KV         %s a token (%s), %s a token of summaries\n", bytes_text(kv_token).c_str(),
              m.shape.kv_lora_rank > 0 ? "latents" : "K and V", bytes_text(all_token - kv_token).c_str());
  std::printf("fits       %lld tokens in %lld blocks of %lld (%s); one sequence may have %lld\n", static_cast<long long>(fits),
              static_cast<long long>(s.blocks_total), static_cast<long long>(block_tokens), bytes_text(fits_bytes).c_str(),
              static_cast<long long>(m.max_model_len));
  if (s.pool_blocks < s.blocks_total) {
    std::printf("pool       K and V of %lld blocks", static_cast<long long>(s.pool_blocks));
    if (s.staging_blocks > 0)
      std::printf(", %lld of them staging while a prompt is read", static_cast<long long>(s.staging_blocks));
    std::printf("\n");
  }
  std::printf("backend    %s\n", engine->backend().c_str());
  return {};
}

}  // namespace

Run add_inspect(CLI::App& app) {
  auto f = std::make_shared<InspectFlags>();
  CLI::App* cmd = app.add_subcommand("inspect", "Show a model, its KV bytes per token, and how many tokens fit in memory");
  f->engine.add_to(*cmd);
  cmd->add_option("--render", f->render,
                  "Print this conversation's prompt and token ids without loading weights. JSON: a list of messages, or {messages, "
                  "tools, documents, add_generation_prompt, chat_template_kwargs}");
  cmd->add_flag("--json", f->json, "Print JSON instead of text");
  return [f] {
    const Status s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
