// The reading map: which blocks an answer read, by layer and KV head and by token, as a picture.
#pragma once

#include "eval/attention_trace.h"
#include "eval/drawing.h"

namespace fovea {

// The context from left to right; a strip for each layer and KV head (darker: more tokens read the block), then one for each
// token (darker: more layers and heads). The planted fact is orange: pale where it was not read. Needs an answer with tokens.
Drawing reading_map(const RunTrace& trace, const AnswerTrace& answer);

}  // namespace fovea
