#include <fovea/session.h>

#include "text/tokenizer/utf8.h"

#include <algorithm>

namespace fovea {

namespace {

Result<std::vector<TokenId>> prompt_of(const Engine& engine, const ChatInput& input) {
  if (!engine.model().has_chat_template) return engine.tokenize(input.messages.back().content);
  FOVEA_ASSIGN(const std::string text, engine.apply_chat_template(input));
  return engine.tokenize(text);
}

ChatInput user_turn(const std::string& text) {
  ChatInput input;
  input.messages.push_back({.role = "user", .content = text});
  return input;
}

// Before the template is put around it, so that the offset is the user's own.
Status check_text(const std::string& text) {
  const auto bad = utf8::first_invalid(text);
  return bad ? Status::invalid_argument("not valid UTF-8 at byte offset " + std::to_string(*bad)) : Status();
}

// The engine's trace callback, for a scope. Without a sink it stays what it is.
class Traced {
 public:
  Traced(Engine& engine, std::function<void(const SelectionTrace&)> sink) : engine_(engine), set_(sink != nullptr) {
    if (set_) engine_.set_trace(std::move(sink));
  }
  ~Traced() {
    if (set_) engine_.set_trace(nullptr);
  }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

 private:
  Engine& engine_;
  const bool set_;
};

}  // namespace

Result<std::vector<TokenId>> chat_prompt(const Engine& engine, const std::string& user_text) {
  FOVEA_TRY(check_text(user_text));
  return prompt_of(engine, user_turn(user_text));
}

Result<std::vector<TokenId>> document_prefix(const Engine& engine, ChatInput conversation) {
  // The boundary is where prompts with and without a question part: a tokenizer may join the document's last characters
  // with the line breaks that follow.
  FOVEA_ASSIGN(std::vector<TokenId> alone, prompt_of(engine, conversation));
  conversation.messages.back().content += "\n\nQ";
  FOVEA_ASSIGN(const std::vector<TokenId> asked, prompt_of(engine, conversation));
  alone.erase(std::mismatch(alone.begin(), alone.end(), asked.begin(), asked.end()).first, alone.end());
  return alone;
}

Result<std::unique_ptr<DocumentSession>> DocumentSession::open(Engine& engine, std::string document, const Progress& progress,
                                                               std::string prefill_method, const PrefillTraceSink& trace) {
  std::unique_ptr<DocumentSession> session(new DocumentSession(engine, std::move(document), std::move(prefill_method)));
  FOVEA_TRY(session->prefill(progress, trace));
  return session;
}

DocumentSession::~DocumentSession() {
  if (!holding_) return;
  if (!read_) engine_.abort(request_);
  engine_.release(request_);  // no step: its outputs belong to others, and it may fail again
}

Status DocumentSession::prefill(const Progress& progress, const PrefillTraceSink& trace) {
  FOVEA_TRY(check_text(document_));
  FOVEA_ASSIGN(held_, document_prefix(engine_, user_turn(document_)));
  if (held_.empty()) return {};

  Request r;
  r.prompt = held_;
  r.prefill_method = prefill_method_;
  r.sampling.max_tokens = 0;
  r.hold = true;
  r.trace = trace != nullptr;
  const Traced traced(engine_, trace);
  FOVEA_ASSIGN(request_, engine_.submit(std::move(r)));
  holding_ = true;
  return finish_prefill(progress);
}

Status DocumentSession::finish_prefill(const Progress& progress) {
  std::vector<Output> outputs;
  for (bool done = false; !done;) {
    outputs.clear();
    FOVEA_ASSIGN(const bool more, engine_.step(&outputs));
    for (const Output& out : outputs) {
      if (!(out.request == request_) || !out.finished) continue;
      if (!out.error.ok()) return out.error;
      prefill_stats_ = out.stats;
      done = read_ = true;
    }
    if (progress) progress(done ? document_tokens() : engine_.computed_tokens(request_), document_tokens());
    if (!more && !done) return Status::internal("the engine stopped before the document was read");
  }
  return {};
}

// The held document is forked where the question's prompt begins with it.
Result<Request> DocumentSession::request_of(const Question& question) const {
  Request r;
  FOVEA_ASSIGN(r.prompt, chat_prompt(engine_, document_ + "\n\n" + question.text));
  if (holding_ && r.prompt.size() > held_.size() && std::equal(held_.begin(), held_.end(), r.prompt.begin())) {
    r.fork_of = request_;
    r.prompt.erase(r.prompt.begin(), r.prompt.begin() + static_cast<int64_t>(held_.size()));
  }
  r.prefill_method = prefill_method_;
  r.decode_method = question.decode_method;
  r.budget_tokens = question.budget_tokens;
  r.trace = question.trace;
  r.trace_mass = question.trace_mass;
  r.given_answer = question.given_answer;
  return r;
}

Result<std::vector<Answer>> DocumentSession::ask(const std::vector<Question>& questions, const SamplingParams& sampling,
                                                 const Stream& stream, const TraceSink& trace, const LogitsSink& logits) {
  std::vector<Answer> answers(questions.size());
  Open open;
  std::function<void(const SelectionTrace&)> sink;
  if (trace) {
    sink = [&](const SelectionTrace& t) {
      const auto q = open.find(t.request);
      if (q != open.end()) trace(q->second, t);
    };
  }
  const Traced traced(engine_, std::move(sink));
  if (logits) {
    engine_.set_logits_tap([&](RequestId id, int32_t, std::span<const float> row) {
      const auto q = open.find(id);
      if (q != open.end()) logits(q->second, row);
    });
  }
  Status s = submit(questions, sampling, &answers, &open);
  if (s.ok()) s = collect(stream, &answers, &open);
  for (const auto& [id, question] : open) engine_.abort(id);
  if (logits) engine_.set_logits_tap(nullptr);
  FOVEA_TRY(s);
  return answers;
}

Status DocumentSession::submit(const std::vector<Question>& questions, const SamplingParams& sampling, std::vector<Answer>* answers,
                               Open* open) {
  for (size_t i = 0; i < questions.size(); ++i) {
    FOVEA_ASSIGN(Request r, request_of(questions[i]));
    r.sampling = sampling;
    (*answers)[i].first_position = (r.fork_of ? document_tokens() : 0) + static_cast<int64_t>(r.prompt.size()) - 1;
    FOVEA_ASSIGN(const RequestId id, engine_.submit(std::move(r)));
    open->emplace(id, i);
  }
  return {};
}

Status DocumentSession::collect(const Stream& stream, std::vector<Answer>* answers, Open* open) {
  std::vector<Output> outputs;
  while (!open->empty()) {
    outputs.clear();
    FOVEA_ASSIGN(const bool more, engine_.step(&outputs));
    for (Output& out : outputs) {
      const auto it = open->find(out.request);
      if (it == open->end()) continue;
      if (stream) stream(it->second, out);
      Answer& a = (*answers)[it->second];
      a.text += out.text;
      a.tokens.insert(a.tokens.end(), out.tokens.begin(), out.tokens.end());
      if (!out.finished) continue;
      a.reason = out.reason;
      a.error = out.error;
      a.stats = out.stats;
      open->erase(it);
    }
    if (!more && !open->empty()) return Status::internal("the engine stopped before every question was answered");
  }
  return {};
}

}  // namespace fovea
