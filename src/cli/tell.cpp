#include "cli/tell.h"

#include "cli/flags.h"

#include <cstdio>
#include <string>

namespace fovea::cli {

void tell_loaded(const Engine& engine, double seconds) {
  const ModelInfo& m = engine.model();
  std::fprintf(stderr, "%s, %.1f M parameters, loaded in %s (%s)\n", m.architecture.c_str(),
               static_cast<double>(m.parameters) / 1e6, duration_text(seconds).c_str(), engine.backend().c_str());
}

void tell_store(Engine& engine) {
  const EngineOptions& o = engine.options();
  if (o.kv_store.dir.empty() && o.kv_host_memory_bytes == 0) return;
  engine.flush_store();
  const EngineStats s = engine.stats();
  const std::string name = o.kv_store.dir.empty() ? "--kv-host-memory" : "--kv-store " + o.kv_store.dir;
  if (s.unstored_blocks > 0) {
    std::fprintf(stderr, "fovea: warning: %s: %lld blocks of %d tokens were not stored: %s\n", name.c_str(),
                 static_cast<long long>(s.unstored_blocks), o.block_size, s.store_error.c_str());
  }
  if (s.repaired_blocks > 0) {
    std::fprintf(stderr, "fovea: warning: %s: %lld blocks of %d tokens were damaged or gone, and computed again\n", name.c_str(),
                 static_cast<long long>(s.repaired_blocks), o.block_size);
  }
}

}  // namespace fovea::cli
