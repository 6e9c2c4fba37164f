// How well a model foretells a text: exp of the mean of -ln p over its tokens.
#pragma once

#include <fovea/engine.h>

#include <cstdint>
#include <functional>
#include <string_view>

namespace fovea {

struct Perplexity {
  double value = 0;
  int64_t tokens = 0;  // that were foretold
};

// The text is cut into prompts of `window` tokens, one after the other (the last may be shorter); every token is foretold from those
// before it in its window, the first of each from none and not counted. `progress`: windows' tokens done, of all.
// Errors: those of the engine; invalid_argument where the text has fewer than 2 tokens.
Result<Perplexity> measure_perplexity(Engine& engine, std::string_view text, int32_t window,
                                      const std::function<void(int64_t, int64_t)>& progress = nullptr);

}  // namespace fovea
