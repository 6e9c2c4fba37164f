// One streamed answer of an OpenAI-compatible server, as its bytes come: when text came, how many tokens, how it ended. Pure: no
// socket, no clock. Whatever a server sends is an outcome, never a crash.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

struct CompletionOutcome {
  std::string error;   // its kind, few and short: errors are counted by it; empty: a whole answer
  std::string detail;  // what the server said, or what could not be read
  double sent_s = 0;
  double first_s = 0;           // the first event with text; of an answer without text, its end
  double last_s = 0;            // the last event of an answer
  std::vector<float> gaps_s;    // between events with text
  int64_t events = 0;           // with text
  int64_t input_tokens = -1;    // as the server counts them; -1: it does not tell
  int64_t output_tokens = -1;   // likewise
};

class CompletionStream {
 public:
  explicit CompletionStream(CompletionOutcome* outcome) : out_(outcome) {}  // with sent_s

  // Bytes of a body of text/event-stream. false: no more of them is wanted, for the answer is over or cannot be read.
  bool add(std::string_view bytes, double now_s);
  // The body has ended, or the connection was lost: `how` is the kind of error if the answer is not whole.
  void end(const std::string& how);
  bool whole() const { return done_ && out_->error.empty(); }

 private:
  void event(const std::string& data, double now_s);
  void fail(const char* kind, std::string_view detail);

  CompletionOutcome* out_;
  std::string line_, data_;  // that have begun
  bool done_ = false;        // [DONE] has come
  bool finished_ = false;    // a finish_reason has: some servers say no more
};

}  // namespace fovea
