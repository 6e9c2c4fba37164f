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

std::string sources_text(const RequestStats& s) {
  return std::to_string(s.computed_tokens()) + " computed, " + std::to_string(s.cached_tokens) + " from memory, " +
         std::to_string(s.loaded_tokens) + " from the store";
}

void tell_answer(const RequestStats& s, const std::string& method) {
  const double rate = s.decode_s > 0 ? static_cast<double>(s.output_tokens - 1) / s.decode_s : 0;
  std::fprintf(stderr, "   first token %s · %.1f tok/s · %s read %.1f %% of the KV bytes (of %lld tokens %s)\n",
               duration_text(s.ttft_s).c_str(), rate, method.c_str(), 100.0 * s.kv_bytes_share(),
               static_cast<long long>(s.prompt_tokens), sources_text(s).c_str());
  const int64_t wanted = s.offload_hits + s.offload_misses;
  if (wanted == 0) return;
  std::fprintf(stderr, "   of what it read %.1f %% lay in the KV pool; %s came from below it in %s\n",
               100.0 * static_cast<double>(s.offload_hits) / static_cast<double>(wanted),
               bytes_text(static_cast<double>(s.offload_bytes)).c_str(), duration_text(s.offload_s).c_str());
}

}  // namespace fovea::cli
