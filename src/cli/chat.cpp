// fovea chat: a conversation in a terminal.
#include "cli/chat/chat_commands.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/line_editor.h"
#include "cli/progress.h"
#include "cli/tell.h"

#include <fovea/method_specs.h>
#include <fovea/session.h>

#include "base/clock.h"

#include <signal.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <utility>

namespace fovea::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

// Ctrl-C stops an answer; calls that wait for input return.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &action, nullptr);
}

struct ChatFlags {
  EngineFlags engine;
  SamplingOverrides asked;
  std::vector<std::string> methods;
  std::string system, template_kwargs, history;
  std::vector<std::string> files;
};

// The conversation, and how it is answered.
class Talk {
 public:
  Talk(Engine& engine, const ChatFlags& flags)
      : engine_(engine),
        sampling_(flags.asked.over(engine.model().sampling)),
        method_(engine.options().decode_method),
        budget_(flags.engine.budget_tokens) {
    begin(flags.system);
  }

  // An error leaves the conversation as it was.
  Status run(ChatCommand command) {
    switch (command.verb) {
      case ChatVerb::say:
        return say(std::move(command.text));
      case ChatVerb::file:
        return add_file(command.text);
      case ChatVerb::method:
        return set_method(command.text);
      case ChatVerb::budget:
        budget_ = command.budget;
        return {};
      case ChatVerb::system:
        begin(std::move(command.text));
        return {};
      case ChatVerb::retry:
        return retry();
      case ChatVerb::clear:
        begin(system_);
        return {};
      case ChatVerb::help:
        std::fputs(chat_help().c_str(), stderr);
        return {};
      case ChatVerb::quit:
        return {};
    }
    return {};
  }

  Status add_file(const std::string& path) {
    FOVEA_ASSIGN(std::string text, read_file(path));
    const Result<std::vector<TokenId>> tokens = chat_prompt(engine_, text);
    if (!tokens.ok()) return tokens.status().with_context(path);
    std::fprintf(stderr, "%s: %zu tokens; the next message is about it\n", path.c_str(), tokens->size());
    files_ += text + "\n\n";
    return {};
  }

 private:
  void begin(std::string system) {
    system_ = std::move(system);
    chat_.messages.clear();
    files_.clear();
    if (!system_.empty()) chat_.messages.push_back({.role = "system", .content = system_});
  }

  Status set_method(const std::string& name) {
    const std::string before = std::exchange(method_, name);
    Request r;
    r.prompt = {0};
    r.decode_method = method_;
    r.sampling.max_tokens = 0;
    const Result<RequestId> id = engine_.submit(std::move(r));  // says what is wrong with it
    if (id.ok()) engine_.abort(*id);
    if (!id.ok()) method_ = before;
    return id.ok() ? Status() : id.status();
  }

  Status say(std::string text) {
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return {};
    chat_.messages.push_back({.role = "user", .content = files_ + text});
    const Status s = answer();
    if (s.ok()) {
      files_.clear();
    } else {
      chat_.messages.pop_back();
    }
    return s;
  }

  Status retry() {
    if (chat_.messages.empty() || chat_.messages.back().role != "assistant")
      return Status::invalid_argument("/retry: nothing was answered yet");
    const ChatMessage old = std::move(chat_.messages.back());
    chat_.messages.pop_back();
    Status s = answer();
    if (!s.ok()) chat_.messages.push_back(old);
    return s;
  }

  // Streams the answer to stdout and adds it to the conversation, one that was stopped too.
  Status answer() {
    Request r;
    FOVEA_ASSIGN(const std::string prompt, engine_.apply_chat_template(chat_));
    FOVEA_ASSIGN(r.prompt, engine_.tokenize(prompt));
    const int64_t total = static_cast<int64_t>(r.prompt.size());
    r.sampling = sampling_;
    r.decode_method = method_;
    r.budget_tokens = budget_;
    FOVEA_ASSIGN(const RequestId id, engine_.submit(std::move(r)));
    Progress progress("reading");
    std::string text;
    std::vector<Output> outputs;
    for (bool over = false, stopped = false; !over;) {
      if (interrupted && !std::exchange(stopped, true)) engine_.abort(id);
      outputs.clear();
      FOVEA_ASSIGN(const bool more, engine_.step(&outputs));
      if (text.empty() && !stopped) progress.show(engine_.computed_tokens(id), total);
      for (const Output& out : outputs) {
        if (!(out.request == id)) continue;
        progress.clear();
        text += out.text;
        std::fwrite(out.text.data(), 1, out.text.size(), stdout);
        if (!out.finished) continue;
        if (out.reason == FinishReason::failed) return out.error;
        over = true;
        end_line(out);
      }
      std::fflush(stdout);
      if (!more && !over) return Status::internal("the engine stopped before the message was answered");
    }
    chat_.messages.push_back({.role = "assistant", .content = std::move(text)});
    return {};
  }

  void end_line(const Output& last) const {
    std::fputs("\n", stdout);
    std::fflush(stdout);
    if (last.reason == FinishReason::aborted) {
      std::fprintf(stderr, "   stopped\n");
    } else {
      tell_answer(last.stats, method_);
    }
  }

  Engine& engine_;
  const SamplingParams sampling_;
  std::string method_, system_;
  int32_t budget_;
  ChatInput chat_;
  std::string files_;  // that the next message is about
};

// Until the input ends or /quit.
void converse(Talk& talk, LineEditor& editor) {
  MessageLines lines;
  std::string line, message;
  while (true) {
    interrupted = 0;  // from a line's end on an interrupt is its answer's, which may not have begun yet
    const LineEditor::Event event = editor.read(lines.open() ? ". " : "> ", &line);
    if (event == LineEditor::Event::interrupted) {
      lines.drop();
      if (!editor.is_terminal()) return;
      continue;
    }
    if (event == LineEditor::Event::end ? !lines.finish(&message) : !lines.add(line, &message)) {
      if (event == LineEditor::Event::end) return;
      continue;
    }
    Result<ChatCommand> command = parse_chat_command(message);
    if (command.ok() && command->verb == ChatVerb::quit) return;
    const Status s = command.ok() ? talk.run(*std::move(command)) : command.status();
    if (!s.ok()) report(s);
  }
}

Status execute(ChatFlags f) {
  FOVEA_ASSIGN(EngineOptions options, f.engine.options());
  options.chat_template_kwargs = f.template_kwargs;
  print_notes(notes_of_specs(f.methods));
  for (const std::string& method : f.methods) FOVEA_TRY(hold_method("--serve-method", method, /*prefill=*/false, &options));
  const double start = Clock().now_s();
  FOVEA_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(std::move(options)));
  if (!engine->model().has_chat_template)
    return Status::unsupported("--model " + engine->options().model_dir +
                               ": has no chat template: `fovea run --prompt` goes without");
  tell_loaded(*engine, Clock().now_s() - start);
  Talk talk(*engine, f);
  for (const std::string& file : f.files) FOVEA_TRY(talk.add_file(file));
  {
    LineEditor editor(f.history);
    if (editor.is_terminal()) std::fprintf(stderr, "/help lists commands, Ctrl-D ends\n");
    catch_interrupts();
    converse(talk, editor);
  }
  tell_store(*engine);
  return {};
}

}  // namespace

Run add_chat(CLI::App& app) {
  auto f = std::make_shared<ChatFlags>();
  f->asked.rest.max_tokens = 2048;
  CLI::App* cmd = app.add_subcommand("chat", "Chat in the terminal, optionally about files");
  f->engine.add_to(*cmd);
  f->engine.add_store_to(*cmd);
  cmd->add_option("--file", f->files, "File that the first message is about, like /file; may be repeated")->expected(1)->take_all();
  cmd->add_option("--system", f->system, "System message");
  cmd->add_option("--serve-method", f->methods, "Method that /method may choose besides --decode-method; may be repeated")
      ->expected(1)
      ->take_all();
  cmd->add_option("--history", f->history, "File that keeps the input history across sessions (default: none)");
  add_sampling_to(*cmd, &f->asked, &f->template_kwargs);
  return [f] {
    const Status s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
