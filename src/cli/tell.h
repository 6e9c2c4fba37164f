// What people are told of an engine, on stderr.
#pragma once

#include <fovea/engine.h>

#include <string>

namespace fovea::cli {

// The model and what runs it.
void tell_loaded(const Engine& engine, double seconds);
// An answer that is over, read by `method`.
void tell_answer(const RequestStats& stats, const std::string& method);
// "9 computed, 331 from memory, 0 from the store"
std::string sources_text(const RequestStats& stats);
// What a store below the pool did not take, and what it lost. Waits for it. Nothing where there is none.
void tell_store(Engine& engine);

}  // namespace fovea::cli
