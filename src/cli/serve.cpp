// fovea serve: an OpenAI-compatible server.
#include "cli/commands.h"
#include "cli/flags.h"

#include "server/server.h"

#include <fovea/method_specs.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

namespace fovea::cli {
namespace {

struct ServeFlags {
  EngineFlags engine;
  server::ServeOptions serve;
  std::vector<std::string> methods;
  std::string isolate_by = "none", log_format = "text", log_level = "info", template_kwargs;
  uint64_t body_bytes = 32u << 20, outbox_bytes = 1u << 20;
};

Status execute(ServeFlags f) {
  FOVEA_ASSIGN(f.serve.engine, f.engine.options());
  EngineOptions& engine = f.serve.engine;
  engine.chat_template_kwargs = f.template_kwargs;
  print_notes(notes_of_specs(f.methods));
  for (const std::string& method : f.methods) {
    if (hold_method("--serve-method", method, /*prefill=*/true, &engine).ok()) continue;
    FOVEA_TRY(hold_method("--serve-method", method, /*prefill=*/false, &engine));
  }
  server::ServiceOptions& service = f.serve.service;
  if (service.model_names.empty()) {
    std::filesystem::path dir = std::filesystem::path(engine.model_dir).lexically_normal();
    if (!dir.has_filename()) dir = dir.parent_path();
    service.model_names.push_back(dir.has_filename() ? dir.filename().string() : engine.model_dir);
  }
  service.version = FOVEA_VERSION;
  service.isolate_by_key = f.isolate_by == "key";
  service.access_log = f.log_level == "info" || f.log_level == "debug" || f.log_level == "trace";
  service.log_json = f.log_format == "json";
  f.serve.http.body_bytes_max = f.body_bytes;
  f.serve.http.outbox_bytes_max = f.outbox_bytes;
  return server::serve(std::move(f.serve));
}

}  // namespace

Run add_serve(CLI::App& app) {
  auto f = std::make_shared<ServeFlags>();
  CLI::App* cmd = app.add_subcommand("serve", "Serve OpenAI's API over HTTP");
  f->engine.add_to(*cmd);
  f->engine.add_store_to(*cmd);
  server::HttpOptions& http = f->serve.http;
  server::ServiceOptions& service = f->serve.service;
  const std::string group = "Server", limits = "Limits";
  const auto option = [&](const char* name, auto& target, const char* help, const std::string& in, const char* env) {
    return cmd->add_option(name, target, help)->group(in)->envname(env)->capture_default_str();
  };
  option("--host", http.host, "Address to listen on; 0.0.0.0: all", group, "FOVEA_HOST");
  option("--port", http.port, "Port to listen on; 0: any that is free, told on stderr", group, "FOVEA_PORT");
  option("--served-model-name", service.model_names,
         "Names of the model in requests and replies; the model directory's, unless given", group, "FOVEA_SERVED_MODEL_NAME");
  // Not with its default: help should never print a key that the environment holds.
  cmd->add_option(
         "--api-key", service.api_keys,
         "Key that requests must carry (Authorization: Bearer KEY); may be given many times. None: all requests are served")
      ->group(group)
      ->envname("FOVEA_API_KEY");
  cmd->add_option(
         "--serve-method", f->methods,
         "A method that requests may name beside --decode-method and --prefill-method, with options likewise; may be given "
         "many times")
      ->group(group)
      ->envname("FOVEA_SERVE_METHOD");
  option("--isolate-by", f->isolate_by, "key: requests of one API key never reuse, or notice, cached prefixes of another's", group,
         "FOVEA_ISOLATE_BY")
      ->check(CLI::IsMember({"none", "key"}));
  option("--allowed-origins", service.allowed_origins, "Origins of web pages that may call, or *; none, unless given", group,
         "FOVEA_ALLOWED_ORIGINS");
  option("--root-path", service.root_path, "Path that a proxy puts before all others", group, "FOVEA_ROOT_PATH");
  option("--log-level", f->log_level, "info: a line for each request on stderr; warning and above: none", group, "FOVEA_LOG_LEVEL")
      ->check(CLI::IsMember({"critical", "error", "warning", "info", "debug", "trace"}));
  option("--log-format", f->log_format, "text or json", group, "FOVEA_LOG_FORMAT")->check(CLI::IsMember({"text", "json"}));
  option("--template-kwargs", f->template_kwargs, "Variables of the chat template for all requests, a JSON object", group,
         "FOVEA_TEMPLATE_KWARGS");
  option("--max-requests", service.requests_max, "Answers that are computed or wait; requests beyond get 429", limits,
         "FOVEA_MAX_REQUESTS")
      ->check(CLI::PositiveNumber);
  option("--max-connections", http.connections_max, "Open connections; more are closed at once", limits, "FOVEA_MAX_CONNECTIONS")
      ->check(CLI::PositiveNumber);
  option("--max-body-size", f->body_bytes, "Most bytes of a request's body, e.g. 32M", limits, "FOVEA_MAX_BODY_SIZE")
      ->transform(CLI::AsSizeValue(false));
  option("--max-outbox-size", f->outbox_bytes, "Most bytes that a stream keeps for a slow reader before it is cut off", limits,
         "FOVEA_MAX_OUTBOX_SIZE")
      ->transform(CLI::AsSizeValue(false));
  option("--request-timeout", service.request_timeout_s, "Seconds that a request may take in all", limits, "FOVEA_REQUEST_TIMEOUT")
      ->check(CLI::PositiveNumber);
  option("--header-timeout", http.header_timeout_s, "Seconds for a request's headers to arrive", limits, "FOVEA_HEADER_TIMEOUT")
      ->check(CLI::PositiveNumber);
  option("--body-timeout", http.body_timeout_s, "Seconds for its body", limits, "FOVEA_BODY_TIMEOUT")->check(CLI::PositiveNumber);
  option("--idle-timeout", http.idle_timeout_s, "Seconds that a connection may be idle between requests", limits,
         "FOVEA_IDLE_TIMEOUT")
      ->check(CLI::PositiveNumber);
  option("--write-timeout", http.write_timeout_s, "Seconds after which a reader that takes nothing is cut off", limits,
         "FOVEA_WRITE_TIMEOUT")
      ->check(CLI::PositiveNumber);
  return [f] {
    const Status s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
