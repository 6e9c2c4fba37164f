// A document read once and asked many times: its blocks are held, each question forks them.
#pragma once

#include <fovea/engine.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fovea {

struct Question {
  std::string text;
  std::string decode_method;  // empty: the engine's
  int32_t budget_tokens = 0;  // 0: the method's own
  bool trace = false;
  bool trace_mass = false;            // with it, the true attention mass of blocks
  std::vector<TokenId> given_answer;  // Request::given_answer
};

struct Answer {
  std::string text;
  std::vector<TokenId> tokens;
  int64_t first_position = 0;  // of the row that produced tokens[0]
  FinishReason reason = FinishReason::none;
  Status error;
  RequestStats stats;
};

// The message is document + "\n\n" + question, one user turn of the model's chat template. The tokens that every such
// prompt begins with are prefilled once and held; what follows (the question, the template's end) goes with the question.
//
// While open() or ask() runs, the engine is the session's: it steps until its own requests are over, and outputs of requests that
// others have submitted are lost.
class DocumentSession {
 public:
  using Progress = std::function<void(int64_t done, int64_t total)>;
  using Stream = std::function<void(size_t question, const Output&)>;
  // Rows of the document (in open), or those of traced questions and their answers. For that time it stands in the place of the
  // engine's own trace callback, and afterwards there is none; null: the engine's stays.
  using PrefillTraceSink = std::function<void(const SelectionTrace&)>;
  using TraceSink = std::function<void(size_t question, const SelectionTrace&)>;
  // The logits that each token of an answer was taken from, [vocab], in the order of its tokens (Engine::set_logits_tap).
  using LogitsSink = std::function<void(size_t question, std::span<const float>)>;

  // Prefills the document; the engine outlives the session. Its questions continue it by the same method. `progress` (may be null)
  // is called after every step. `prefill_method` empty: the engine's.
  static Result<std::unique_ptr<DocumentSession>> open(Engine& engine, std::string document, const Progress& progress,
                                                       std::string prefill_method = {}, const PrefillTraceSink& trace = nullptr);
  ~DocumentSession();  // the document's blocks go back with the engine's next step
  DocumentSession(const DocumentSession&) = delete;
  DocumentSession& operator=(const DocumentSession&) = delete;

  // Asks all questions at once, in one batch; `stream` (may be null) sees every event. An error of one question is in its
  // Answer. A Status: a question was refused, or the engine itself failed; whatever was queued by then is aborted.
  Result<std::vector<Answer>> ask(const std::vector<Question>& questions, const SamplingParams& sampling, const Stream& stream,
                                  const TraceSink& trace = nullptr, const LogitsSink& logits = nullptr);

  int64_t document_tokens() const { return static_cast<int64_t>(held_.size()); }
  const std::vector<TokenId>& held_tokens() const { return held_; }
  const RequestStats& prefill_stats() const { return prefill_stats_; }

 private:
  using Open = std::map<RequestId, size_t>;  // questions without their whole answer

  DocumentSession(Engine& engine, std::string document, std::string prefill_method)
      : engine_(engine), document_(std::move(document)), prefill_method_(std::move(prefill_method)) {}
  Status prefill(const Progress& progress, const PrefillTraceSink& trace);
  Status finish_prefill(const Progress& progress);
  Result<Request> request_of(const Question& question) const;
  Status submit(const std::vector<Question>& questions, const SamplingParams& sampling, std::vector<Answer>* answers, Open* open);
  Status collect(const Stream& stream, std::vector<Answer>* answers, Open* open);

  Engine& engine_;
  const std::string document_, prefill_method_;
  std::vector<TokenId> held_;
  RequestId request_;
  bool holding_ = false;  // request_ was submitted
  bool read_ = false;     // and is finished
  RequestStats prefill_stats_;
};

// Tokens of one user turn in the model's chat template; of the bare text where the model has none.
Result<std::vector<TokenId>> chat_prompt(const Engine& engine, const std::string& user_text);

// The document is the content of the conversation's last message. The tokens that every prompt begins with in which "\n\n" and a
// question follow it there; what a question's prompt has beyond them belongs to the question. Perhaps none.
Result<std::vector<TokenId>> document_prefix(const Engine& engine, ChatInput conversation);

}  // namespace fovea
