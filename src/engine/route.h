// Which method a row runs with, dense included. Decided here and nowhere else: the scheduler stamps its rows, all others obey.
#pragma once

#include "sparse/method.h"

#include <cstdint>

namespace fovea {

enum class Phase : uint8_t {
  prefill,  // rows of a prompt, cached or not: through the prefill method; their full blocks are published
  extend,   // a short question on a long held document: each row goes through the decode method with its own length
  decode,   // one row of an answer
};

struct Route {
  int32_t method = 0;  // index into the engine's methods; 0: dense
  bool operator==(const Route&) const = default;
};

// The methods of one request, and what their choice depends on.
struct RequestMethods {
  const Method* prefill = nullptr;  // null: dense
  const Method* decode = nullptr;   // likewise
  Route prefill_route;              // theirs
  Route decode_route;
  int32_t budget_tokens = 0;  // 0: the decode method's own
  int64_t min_context = 0;    // fewer visible keys are read whole, unless the decode method is trained
  int32_t block_size = 16;

  // Prefill is cut at multiples of this many tokens.
  int32_t prefill_alignment() const { return prefill ? prefill->prefill_alignment() : 1; }
};

// The row at `position` sees position + 1 keys.
Route route(const RequestMethods& methods, Phase phase, int64_t position);

// Whether prefill computes again, to the bit, what a row of a question or answer wrote at this position.
bool repeatable(const RequestMethods& methods, int64_t position);

// Whether the rows of a question behind `context` tokens of a held document go through the decode method.
bool extends(const RequestMethods& methods, int64_t context);

// Blocks whose K and V the decode row at `position` reads.
int64_t blocks_read(const RequestMethods& methods, int64_t position);

}  // namespace fovea
