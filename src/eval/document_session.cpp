#include "eval/document_session.h"

#include "model/tokenizer/utf8.h"

#include <algorithm>
#include <map>

namespace fovea {

Result<std::vector<TokenId>> chat_prompt(const Engine& engine, const std::string& user_text) {
  // Before the template is put around it, so that the offset is the user's own.
  if (const auto bad = utf8::first_invalid(user_text))
    return Status::invalid_argument("not valid UTF-8 at byte offset " + std::to_string(*bad));
  if (!engine.model().has_chat_template) return engine.tokenize(user_text);
  const ChatMessage turn{"user", user_text};
  FOVEA_ASSIGN(const std::string text, engine.apply_chat_template({&turn, 1}));
  return engine.tokenize(text);
}

Result<std::unique_ptr<DocumentSession>> DocumentSession::open(Engine& engine, std::string document, const Progress& progress,
                                                               std::string prefill_method) {
  std::unique_ptr<DocumentSession> session(new DocumentSession(engine, std::move(document), std::move(prefill_method)));
  FOVEA_TRY(session->prefill(progress));
  return session;
}

DocumentSession::~DocumentSession() {
  if (!holding_) return;
  engine_.release(request_);
  std::vector<Output> outputs;
  (void)engine_.step(&outputs).ok();  // takes the release over
}

Status DocumentSession::prefill(const Progress& progress) {
  // The boundary is where prompts with and without a question part: a tokenizer may join the document's last characters
  // with the line breaks that follow.
  FOVEA_ASSIGN(const std::vector<TokenId> alone, chat_prompt(engine_, document_));
  FOVEA_ASSIGN(const std::vector<TokenId> asked, chat_prompt(engine_, document_ + "\n\nQ"));
  const auto common = std::mismatch(alone.begin(), alone.end(), asked.begin(), asked.end()).first - alone.begin();
  held_.assign(alone.begin(), alone.begin() + common);
  if (held_.empty()) return {};

  Request r;
  r.prompt = held_;
  r.prefill_method = prefill_method_;
  r.sampling.max_tokens = 0;
  r.hold = true;
  FOVEA_ASSIGN(request_, engine_.submit(std::move(r)));
  holding_ = true;
  std::vector<Output> outputs;
  for (bool done = false; !done;) {
    outputs.clear();
    FOVEA_ASSIGN(const bool more, engine_.step(&outputs));
    for (const Output& out : outputs) {
      if (!(out.request == request_) || !out.finished) continue;
      if (!out.error.ok()) return out.error;
      prefill_stats_ = out.stats;
      done = true;
    }
    if (progress) progress(done ? document_tokens() : engine_.computed_tokens(request_), document_tokens());
    if (!more && !done) return Status::internal("the engine stopped before the document was read");
  }
  return {};
}

Result<std::vector<Answer>> DocumentSession::ask(const std::vector<Question>& questions, const SamplingParams& sampling,
                                                 const Stream& stream) {
  std::vector<Answer> answers(questions.size());
  std::map<RequestId, size_t> open;
  for (size_t i = 0; i < questions.size(); ++i) {
    FOVEA_ASSIGN(std::vector<TokenId> prompt, chat_prompt(engine_, document_ + "\n\n" + questions[i].text));
    Request r;
    const bool continues = holding_ && prompt.size() > held_.size() && std::equal(held_.begin(), held_.end(), prompt.begin());
    if (continues) {
      r.fork_of = request_;
      prompt.erase(prompt.begin(), prompt.begin() + static_cast<int64_t>(held_.size()));
    }
    answers[i].prompt = prompt;
    r.prompt = std::move(prompt);
    r.sampling = sampling;
    r.prefill_method = prefill_method_;
    r.decode_method = questions[i].decode_method;
    r.budget_tokens = questions[i].budget_tokens;
    r.trace = questions[i].trace;
    FOVEA_ASSIGN(const RequestId id, engine_.submit(std::move(r)));
    open.emplace(id, i);
  }
  std::vector<Output> outputs;
  while (!open.empty()) {
    outputs.clear();
    FOVEA_ASSIGN(const bool more, engine_.step(&outputs));
    for (Output& out : outputs) {
      const auto it = open.find(out.request);
      if (it == open.end()) continue;
      if (stream) stream(it->second, out);
      Answer& a = answers[it->second];
      a.text += out.text;
      a.tokens.insert(a.tokens.end(), out.tokens.begin(), out.tokens.end());
      if (!out.finished) continue;
      a.reason = out.reason;
      a.error = out.error;
      a.stats = out.stats;
      open.erase(it);
    }
    if (!more && !open.empty()) return Status::internal("the engine stopped before every question was answered");
  }
  return answers;
}

}  // namespace fovea
