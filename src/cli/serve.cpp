// fovea serve: an OpenAI-compatible server.
#include "cli/commands.h"
#include "cli/config_file.h"
#include "cli/flags.h"

#include "server/server.h"

#include <fovea/method_specs.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <utility>

namespace fovea::cli {
namespace {

struct ServeFlags {
  EngineFlags engine;
  server::ServeOptions serve;
  std::vector<std::string> methods;
  std::string isolate_by = "none", log_format = "text", log_level = "info", template_kwargs;
  uint64_t header_bytes = 16u << 10, body_bytes = 32u << 20, bodies_bytes = 512u << 20, outbox_bytes = 1u << 20;
  uint64_t prompt_bytes = 16u << 20, documents_bytes = 256u << 20;
};

// What requests may name where nobody said: a model that reads everything can be asked to read sparsely, its own page asks so. Its
// codes take 3 % of the cache.
Status add_default_method(const EngineOptions& engine, std::vector<std::string>* methods) {
  const bool held =
      std::any_of(engine.methods.begin(), engine.methods.end(), [](const MethodOptions& m) { return m.name != "dense"; });
  if (held || !methods->empty() || engine.decode_method != "auto") return {};
  FOVEA_ASSIGN(const std::string trained, trained_method(engine.model_dir));
  if (trained == "dense") methods->push_back("gsa_on_device");
  return {};
}

// FOVEA_MAX_NUM_SEQS of --max-num-seqs.
std::string variable_of(const CLI::Option& option) {
  std::string name = "FOVEA_" + option.get_lnames().front();
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// Command line, environment, file: the first that names a flag counts.
Status complete(ServeFlags* f, CLI::App& command) {
  if (!f->engine.config().empty()) {
    FOVEA_ASSIGN(std::string methods, read_config_file(f->engine.config(), command));
    f->engine.set_method_yaml(std::move(methods));
  }
  return command.count("--model") > 0 ? Status() : Status::invalid_argument("--model is required");
}

Status execute(ServeFlags f) {
  FOVEA_ASSIGN(f.serve.engine, f.engine.options());
  EngineOptions& engine = f.serve.engine;
  engine.chat_template_kwargs = f.template_kwargs;
  FOVEA_TRY(add_default_method(engine, &f.methods));
  print_notes(notes_of_specs(f.methods));
  for (const std::string& method : f.methods) {
    if (hold_method("--serve-method", method, /*prefill=*/true, &engine).ok()) continue;
    FOVEA_TRY(hold_method("--serve-method", method, /*prefill=*/false, &engine));
  }
  server::ServiceOptions& service = f.serve.service;
  if (service.model_names.empty()) {
    std::filesystem::path dir = std::filesystem::path(engine.model_dir).lexically_normal();
    if (!dir.has_filename()) dir = dir.parent_path();
    const bool file = dir.extension() == ".gguf";
    service.model_names.push_back(file ? dir.stem().string() : dir.has_filename() ? dir.filename().string() : engine.model_dir);
  }
  service.version = FOVEA_VERSION;
  service.isolate_by_key = f.isolate_by == "key";
  for (const std::string& key : service.api_keys) {
    if (key.empty()) return Status::invalid_argument("--api-key: a key is empty");
  }
  if (service.isolate_by_key && service.api_keys.empty()) return Status::invalid_argument("--isolate-by key: needs --api-key");
  service.access_log = f.log_level == "info" || f.log_level == "debug" || f.log_level == "trace";
  service.log_json = f.log_format == "json";
  f.serve.http.header_bytes_max = f.header_bytes;
  f.serve.http.body_bytes_max = f.body_bytes;
  f.serve.http.bodies_bytes_max = f.bodies_bytes;
  f.serve.http.outbox_bytes_max = f.outbox_bytes;
  service.prepare.limits.prompt_bytes = f.prompt_bytes;
  service.documents_bytes_max = f.documents_bytes;
  if (service.prepare.log_prompts && !service.access_log)
    return Status::invalid_argument("--enable-log-requests: needs --log-level info");
  return server::serve(std::move(f.serve));
}

}  // namespace

Run add_serve(CLI::App& app) {
  auto f = std::make_shared<ServeFlags>();
  CLI::App* cmd = app.add_subcommand("serve", "Serve an OpenAI-compatible API over HTTP");
  f->engine.add_to(*cmd);
  f->engine.add_store_to(*cmd);
  server::HttpOptions& http = f->serve.http;
  server::ServiceOptions& service = f->serve.service;
  const std::string group = "Server", limits = "Limits";
  const auto option = [&](const char* name, auto& target, const char* help, const std::string& in) {
    return cmd->add_option(name, target, help)->group(in)->capture_default_str();
  };
  option("--host", http.host, "Address to listen on; 0.0.0.0: all interfaces", group);
  option("--port", http.port, "Port to listen on; 0: any free port, printed on stderr", group);
  option("--served-model-name", service.model_names, "Model names in requests and replies; default: the model directory's name",
         group);
  option("--ssl-certfile", http.tls_certificate_file, "TLS certificate and its chain, PEM; without it, plain HTTP", group);
  option("--ssl-keyfile", http.tls_key_file, "TLS private key, PEM; default: read it from the certificate file", group);
  // Not with its default: help should never print a key that the environment holds.
  cmd->add_option(
         "--api-key", service.api_keys,
         "API key that requests must send (Authorization: Bearer KEY); may be repeated. Without one, all requests are accepted")
      ->group(group);
  cmd->add_option(
         "--serve-method", f->methods,
         "Method that requests may choose besides --decode-method and --prefill-method, with options in brackets; may be repeated. "
         "If neither these three flags nor --config is given: gsa_on_device, for models without a method of their own")
      ->group(group);
  option("--isolate-by", f->isolate_by, "key: requests with one API key never reuse, or detect, prefixes cached for another key",
         group)
      ->check(CLI::IsMember({"none", "key"}));
  option("--allowed-origins", service.allowed_origins, "Origins of web pages that may call the API, or * for all (default: none)",
         group);
  option("--root-path", service.root_path, "Path prefix that a reverse proxy adds", group);
  option("--log-level,--uvicorn-log-level", f->log_level, "info: log one line per request to stderr; warning and above: none",
         group)
      ->check(CLI::IsMember({"critical", "error", "warning", "info", "debug", "trace"}));
  option("--log-format", f->log_format, "Log format: text or json", group)->check(CLI::IsMember({"text", "json"}));
  cmd->add_flag("--enable-log-requests", service.prepare.log_prompts, "Also log the prompts of requests (never logged otherwise)")
      ->group(group);
  option("--template-kwargs", f->template_kwargs, "Chat template variables for all requests, a JSON object", group);
  const auto count = [&](const char* name, auto& target, const char* help) {
    option(name, target, help, limits)->check(CLI::PositiveNumber);
  };
  const auto size = [&](const char* name, uint64_t& target, uint64_t most, const char* help) {
    option(name, target, help, limits)->transform(CLI::AsSizeValue(false))->check(CLI::Range(uint64_t{64}, most));
  };
  constexpr uint64_t kAny = uint64_t{1} << 48;
  server::DecodeLimits& decode = service.prepare.limits;
  count("--max-requests", service.requests_max, "Maximum answers that are running or queued; further requests get 429");
  count("--max-connections", http.connections_max,
        "Maximum open connections; another one replaces a connection that has sent no request, or is closed at once");
  size("--max-header-size", f->header_bytes, 1u << 20, "Maximum size of a request's headers");
  size("--max-body-size", f->body_bytes, kAny, "Maximum size of a request's body, e.g. 32M");
  size("--max-bodies-size", f->bodies_bytes, kAny, "Maximum total size of the bodies that were received and not yet decoded");
  count("--max-json-depth", decode.json_depth, "Maximum nesting depth of a body's JSON");
  count("--max-messages", decode.messages, "Maximum messages in a chat");
  count("--max-prompts", decode.prompts, "Maximum prompts in a completion");
  count("--max-answers", decode.answers, "Maximum answers per request: its prompts times n");
  size("--max-prompt-size", f->prompt_bytes, kAny, "Maximum total size of a request's messages or prompts");
  count("--max-prompt-tokens", decode.prompt_tokens, "Maximum tokens of prompts that are given as ids");
  size("--max-outbox-size", f->outbox_bytes, kAny,
       "Maximum data that a stream buffers for a slow client before it is disconnected");
  count("--request-timeout", service.request_timeout_s, "Seconds until a request times out");
  count("--header-timeout", http.header_timeout_s, "Seconds for a request's headers to arrive, or it gets 408");
  count("--body-timeout", http.body_timeout_s, "Seconds for a request's body to arrive, or it gets 408");
  count("--idle-timeout", http.idle_timeout_s, "Seconds that a connection may stay idle between requests");
  count("--write-timeout", http.write_timeout_s, "Seconds until a client that reads nothing is disconnected");
  const std::string documents = "Documents";
  option("--max-documents", service.documents_max, "Maximum documents in /v1/documents; more are rejected with 429", documents)
      ->check(CLI::PositiveNumber);
  option("--max-documents-size", f->documents_bytes, "Maximum total size of the documents' texts and tokens", documents)
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t{64}, kAny));
  option("--document-ttl", service.prepare.document_ttl_s, "Seconds until a document expires if its request does not say; 0: never",
         documents)
      ->check(CLI::NonNegativeNumber);
  for (CLI::Option* o : cmd->get_options()) {
    if (o != cmd->get_help_ptr()) o->envname(variable_of(*o));
  }
  cmd->get_option("--model")->required(false);  // --config may name it
  cmd->get_option("--config")
      ->description("YAML file with flags (`max-num-seqs: 16`) and method options (ucm_sparse_config; docs/server.md)");
  return [f, cmd] {
    Status s = complete(f.get(), *cmd);
    if (s.ok()) s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
