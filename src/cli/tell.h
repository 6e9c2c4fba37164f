// What people are told of an engine, on stderr.
#pragma once

#include <fovea/engine.h>

namespace fovea::cli {

// The model and what runs it.
void tell_loaded(const Engine& engine, double seconds);
// What a store below the pool did not take, and what it lost. Waits for it. Nothing where there is none.
void tell_store(Engine& engine);

}  // namespace fovea::cli
