// What an answer may say, token by token: constrained decoding. Engine::json_grammar makes grammars of JSON; others implement
// these two classes.
#pragma once

#include <fovea/request.h>
#include <fovea/status.h>

#include <cstdint>
#include <memory>
#include <span>

namespace fovea {

// Where one answer stands. Called by the thread that steps, inside step(): it should be quick.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets bit t % 32 of mask[t / 32] for each token t that may come next, where the answer may end the model's end tokens too;
  // mask: [(vocab + 31) / 32], all zero. No bit at all, or an error, ends the answer (FinishReason::failed).
  virtual Status allow(std::span<uint32_t> mask) = 0;
  // The answer goes on by this token, which was allowed. An error ends it.
  virtual Status accept(TokenId token) = 0;
  // Nothing may follow: the answer ends (FinishReason::stop) with the token that was accepted last.
  virtual bool done() const = 0;
};

// A grammar, which requests share: immutable.
class TokenGrammar {
 public:
  virtual ~TokenGrammar() = default;
  // For a new answer, which the grammar outlives. From the thread that steps.
  virtual std::unique_ptr<TokenConstraint> begin() const = 0;
};

}  // namespace fovea
