#include "engine/route.h"

#include <algorithm>

namespace fovea {
namespace {

int64_t blocks_for(const RequestMethods& m, int64_t keys) { return (keys + m.block_size - 1) / m.block_size; }

// The first tiles of a prompt are short contexts, which are read whole.
Route prefill_route(const RequestMethods& m, int64_t position) {
  if (!m.prefill) return {};
  const int64_t tile = m.prefill->prefill_alignment(), tile_end = (position / tile + 1) * tile;
  return tile_end > m.prefill->prefill_min_context() ? m.prefill_route : Route{};
}

// A row that would keep every block is read densely, exactly; a trained choice is made by every row that it can leave
// something out for.
Route decode_route(const RequestMethods& m, int64_t keys) {
  if (!m.decode) return {};
  const bool chooses = m.decode->trained()
                           ? keys > m.decode->prefill_min_context()
                           : keys >= m.min_context && m.decode->estimate_blocks(keys, m.budget_tokens) < blocks_for(m, keys);
  return chooses ? m.decode_route : Route{};
}

}  // namespace

Route route(const RequestMethods& m, Phase phase, int64_t position) {
  return phase == Phase::prefill ? prefill_route(m, position) : decode_route(m, position + 1);
}

bool repeatable(const RequestMethods& m, int64_t position) {
  const Route again = prefill_route(m, position);
  return again == decode_route(m, position + 1) && (again == Route{} || m.prefill->trained());
}

bool extends(const RequestMethods& m, int64_t context) {
  if (context == 0 || repeatable(m, context - 1)) return false;
  return (m.decode && m.decode->trained()) || context >= m.min_context;
}

int64_t blocks_read(const RequestMethods& m, int64_t position) {
  const int64_t keys = position + 1, all = blocks_for(m, keys);
  return decode_route(m, keys) == Route{} ? all : std::min(all, m.decode->estimate_blocks(keys, m.budget_tokens));
}

}  // namespace fovea
