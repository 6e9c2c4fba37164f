#include "runner/cache_plan.h"

#include "kv/device_extent_cache.h"
#include "kv/extent_cache.h"
#include "kv/extent_windows.h"

#include <algorithm>

namespace fovea {
namespace {

// A tail that is written, one that is copied on write, and a block of the chunk.
constexpr int64_t kColumnsBesideRow = 3;

std::string text(int64_t v) { return std::to_string(v); }

// Bytes for each column and each block.
struct Bytes {
  int64_t column = 0, column_tables = 0;
  int64_t lent_tables = 0;  // of a column that is lent to staging
  int64_t resident = 0;     // tables included
  int64_t fixed = 0;        // whatever the pool
};

Bytes bytes_of(const CachePlanInputs& in) {
  const int32_t layers = in.cache.num_layers, heads = in.cache.kv_heads;
  KvCacheConfig pooled = in.cache;
  pooled.extra_planes.clear();
  const int64_t column = column_bytes(pooled), planes = column_bytes(in.cache) - column;
  if (in.host_bytes > 0)
    return {.column = column,
            .column_tables = DeviceExtentCache::bytes_per_column(layers, heads),
            .lent_tables = DeviceExtentCache::bytes_per_lent_column(layers, heads),
            .resident = planes + DeviceExtentCache::bytes_per_block(layers, heads),
            .fixed = DeviceExtentCache::fixed_bytes(heads)};
  const int64_t tables = ExtentCache::bytes_per_column(layers, heads);
  return {.column = column,
          .column_tables = tables,
          .lent_tables = tables,
          .resident = planes + ExtentCache::bytes_per_block(layers, heads, kTablesPerSequence * in.max_num_seqs)};
}

Result<CachePlan> plan_whole(const CachePlanInputs& in) {
  const int64_t column = column_bytes(in.cache), bs = in.cache.block_size;
  const int64_t wanted = (in.max_model_len + bs - 1) / bs * in.max_num_seqs;
  const int64_t blocks = std::min(wanted, in.bytes / column);
  if (blocks < 1)
    return Status::resource_exhausted("--kv-cache-memory " + text(in.bytes) + ": one block of " + text(bs) + " tokens needs " +
                                      text(column) + " bytes");
  return CachePlan{.num_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, INT32_MAX / 2)),
                   .max_num_seqs = in.max_num_seqs,
                   .max_num_batched_tokens = in.max_num_batched_tokens,
                   .column_bytes = column};
}

constexpr int64_t kPage = 4096;  // an extent that is read ahead begins at one

int64_t landing_bytes(int64_t extent) { return (extent + kPage - 1) / kPage * kPage; }

// A 33rd of the memory: a 32nd of the pool.
int64_t read_ahead(const CachePlanInputs& in, int64_t extent) {
  constexpr int64_t kShare = 33, kLeast = 4, kMost = 1024;
  return in.reads_ahead ? std::clamp(in.bytes / kShare / landing_bytes(extent), kLeast, kMost) : 0;
}

// Columns that come before longer contexts: for whole chunks and four rows where half of the memory holds so many.
int64_t kind_columns(const CachePlanInputs& in, int64_t all, int64_t column, int64_t least) {
  const int64_t wanted = 4 * in.row_blocks + 2 * (in.max_num_batched_tokens / in.cache.block_size) + kColumnsBesideRow;
  return std::max(least, std::min(wanted, all / 2 / column));
}

// Of the longest context that a pool of so many bytes serves: what is resident of it, one KV head of it in three quarters of the
// pool where it is staged, and beside that some columns.
int64_t most_blocks(const CachePlanInputs& in, int64_t all, const Bytes& bytes, int64_t some_columns) {
  const int64_t heads = int64_t{in.cache.num_layers} * in.cache.kv_heads, extent = bytes.column / heads;
  const int64_t columns = (some_columns + 1) * (bytes.column + bytes.column_tables);  // staging ends inside one
  const int64_t staged = in.tier_in_place ? 0 : extent + bytes.lent_tables / heads;
  const int64_t by_staging = in.tier_in_place ? INT64_MAX : 3 * all / (4 * extent + 3 * bytes.resident) - 1;
  const int64_t by_columns = (all - columns) / (staged + bytes.resident);
  const bool all_in_host = in.host_bytes > 0 && !in.store_below_host;
  const int64_t by_host = all_in_host ? in.host_bytes / bytes.column : by_columns;
  return std::max<int64_t>(1, std::min({by_staging, by_columns, by_host}));
}

// Of a device: one head after the other where the pool is small; else as many as a quarter of it holds twice over.
int64_t staged_heads(int64_t strip, int64_t pool, int32_t heads) { return std::clamp<int64_t>(pool / 4 / (2 * strip), 1, heads); }

// How a pool is divided of which so many columns are staging, and so many are not.
void divide(const CachePlanInputs& in, int64_t staging, int64_t columns, CachePlan* plan) {
  plan->num_columns = static_cast<int32_t>(std::min<int64_t>(columns, INT32_MAX / 2));
  plan->staging_columns = static_cast<int32_t>(staging);
  const int64_t growing = std::min({in.growing_row_blocks, columns / 2, columns - kColumnsBesideRow});
  plan->reserve_columns = static_cast<int32_t>(std::max(in.row_blocks, growing));
  const int64_t free = plan->num_columns - plan->reserve_columns;
  plan->max_num_seqs = static_cast<int32_t>(std::clamp<int64_t>(free / 4, 1, in.max_num_seqs));
  // A device computes a chunk while the one before goes below. A host waits for that: a chunk is written in less time than half of
  // one takes longer to be computed in two, each over the whole context.
  const int64_t chunk = std::max<int64_t>(1, (free - plan->max_num_seqs) / (in.host_bytes > 0 ? 2 : 1)) * in.cache.block_size;
  plan->max_num_batched_tokens = static_cast<int32_t>(std::min<int64_t>(chunk, in.max_num_batched_tokens));
  plan->max_num_seqs = std::min(plan->max_num_seqs, plan->max_num_batched_tokens);
}

// Of a host attention over one KV head is short, and all threads wait where it begins and ends; and what is read ahead of it lies
// beside it. So staging takes what whole chunks and some sequences leave, up to two strips of all heads. columns(staging): those
// that are left.
template <typename Columns>
void widen_staging(const CachePlanInputs& in, int64_t all_heads_twice, Columns&& columns, CachePlan* plan) {
  constexpr int32_t kSequences = 8;
  const CachePlan least = *plan;
  int64_t yes = least.staging_columns, no = std::min(all_heads_twice, 3 * (yes + columns(yes)) / 4) + 1;
  while (no - yes > 1) {
    const int64_t middle = yes + (no - yes) / 2;
    CachePlan wide = least;
    divide(in, middle, columns(middle), &wide);
    const bool serves = wide.reserve_columns == least.reserve_columns && wide.num_columns >= in.row_blocks + kColumnsBesideRow &&
                        wide.max_num_batched_tokens == least.max_num_batched_tokens &&
                        wide.max_num_seqs >= std::min(kSequences, least.max_num_seqs);
    (serves ? yes : no) = middle;
    if (serves) *plan = wide;
  }
}

// Host memory below a device's pool holds K and V of all blocks, or they come through it from a store.
Status plan_host(const CachePlanInputs& in, CachePlan* plan) {
  const int64_t whole = plan->num_blocks * plan->column_bytes,
                extent = plan->column_bytes / in.cache.num_layers / in.cache.kv_heads;
  if (in.host_bytes == 0 || whole <= in.host_bytes) return {};
  const std::string given = "--kv-host-memory " + text(in.host_bytes) + ": ";
  const std::string all = "K and V of " + text(plan->num_blocks * in.cache.block_size) + " tokens take " + text(whole) + " bytes";
  if (!in.store_below_host)
    return Status::resource_exhausted(given + all + " (a smaller --kv-tokens or --max-model-len needs less, and with --kv-store " +
                                      "below it may be smaller)");
  if (const int64_t least = ExtentWindows::least_bytes(extent, in.cache.kv_heads); in.host_bytes < least)
    return Status::resource_exhausted(given + all + "; to come from the store through less, they need " + text(least));
  plan->window_extents = ExtentWindows::extents_for(in.host_bytes, extent);
  return {};
}

// With tables for in.max_num_seqs sequences.
Result<CachePlan> plan_with_tables(const CachePlanInputs& in) {
  const KvCacheConfig& c = in.cache;
  const Bytes bytes = bytes_of(in);
  const int64_t bs = c.block_size, heads = int64_t{c.num_layers} * c.kv_heads;
  const int64_t least = in.row_blocks + kColumnsBesideRow;
  const int64_t wanted = ((in.kv_tokens ? in.kv_tokens : in.max_model_len) + bs - 1) / bs;
  const int64_t extent = bytes.column / heads, ahead = read_ahead(in, extent);
  const int64_t all = in.bytes - ahead * landing_bytes(extent) - bytes.fixed;
  const int64_t longest = most_blocks(in, all, bytes, kind_columns(in, all, bytes.column, least));
  const int64_t blocks = in.kv_tokens ? wanted : std::min(wanted, longest);
  const int64_t context = std::min(in.max_model_len, blocks * bs);
  CachePlan plan;
  plan.own_columns = true;
  plan.column_bytes = bytes.column;
  plan.num_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, INT32_MAX / 2));
  plan.read_ahead = static_cast<int32_t>(ahead);
  FOVEA_TRY(plan_host(in, &plan));
  const int64_t pool = all - blocks * bytes.resident;
  const int64_t context_blocks = (context + bs - 1) / bs, strip = context_blocks * extent;
  const std::string where = "--kv-cache-memory " + text(in.bytes) + ", of which " + text(std::max<int64_t>(pool, 0)) +
                            " bytes are left beside what is resident of " + text(blocks) + " blocks: ";
  if (strip > pool / 4 * 3 && !in.tier_in_place)
    return Status::resource_exhausted(
        where + "prefill lays out a KV head of " + text(context) + " tokens, " + text(strip) +
        " bytes, in at most three quarters of it (a smaller --max-model-len or --kv-tokens needs less)");
  // A device fills one while it reads another, both in a seventh of the pool: no block is ever pinned there.
  const bool device = in.host_bytes > 0;
  const int64_t staged = device ? staged_heads(strip, pool / 7 * 4, c.kv_heads) : 1;
  const int64_t buffers = device && 2 * staged * strip <= pool / 4 ? 2 : 1;
  const auto staging_of = [&](int64_t strips) { return in.tier_in_place ? 0 : (context_blocks * strips + heads - 1) / heads; };
  const auto columns_beside = [&](int64_t staging) {
    return std::min(blocks, (pool - staging * (bytes.column + bytes.lent_tables)) / (bytes.column + bytes.column_tables));
  };
  const int64_t staging = staging_of(staged * buffers), columns = columns_beside(staging);
  if (columns < least)
    return Status::resource_exhausted(where + "beside the staging of a prompt they hold " + text(std::max<int64_t>(0, columns)) +
                                      " blocks of K and V; a row reads up to " + text(in.row_blocks) + ", so " + text(least) +
                                      " are needed (a method's budget_tokens bounds what a row reads)");
  divide(in, staging, columns, &plan);
  if (!device && staging > 0) widen_staging(in, staging_of(2 * c.kv_heads), columns_beside, &plan);
  return plan;
}

// As many sequences as the pool serves beside their tables, which take a 32nd of the memory at most.
Result<CachePlan> plan_columns(CachePlanInputs in) {
  const int32_t layers = in.cache.num_layers, heads = in.cache.kv_heads;
  const auto with_tables_for = [&](int32_t sequences) {
    in.max_num_seqs = sequences;
    return plan_with_tables(in);
  };
  const auto serves = [&](int32_t sequences) {
    const Result<CachePlan> plan = with_tables_for(sequences);
    if (!plan.ok() || plan->max_num_seqs < sequences) return false;
    const int64_t of_block = ExtentCache::bytes_per_block(layers, heads, kTablesPerSequence * sequences);
    return in.host_bytes > 0 || plan->num_blocks * (of_block - ExtentCache::bytes_per_block(layers, heads, 0)) <= in.bytes / 32;
  };
  int32_t yes = 1, no = in.max_num_seqs + 1;
  while (no - yes > 1) {
    const int32_t middle = yes + (no - yes) / 2;
    (serves(middle) ? yes : no) = middle;
  }
  return with_tables_for(yes);
}

Result<CachePlan> plan_if_possible(const CachePlanInputs& in) {
  std::string note = in.unfit;
  if (note.empty()) {
    Result<CachePlan> plan = plan_columns(in);
    const int64_t whole = in.bytes / column_bytes(in.cache);
    if (plan.ok() && plan->num_blocks > whole) return plan;
    note = plan.ok() ? "in this pool contexts could be no longer than without it" : plan.status().message();
  }
  FOVEA_ASSIGN(CachePlan plan, plan_whole(in));
  plan.note = "--kv-offload auto is off: " + note;
  return plan;
}

}  // namespace

Result<CachePlan> plan_cache(const CachePlanInputs& in) {
  const int64_t bs = in.cache.block_size, context = (in.max_model_len + bs - 1) / bs;
  const bool fits = in.bytes / column_bytes(in.cache) >= context;
  switch (in.offload) {
    case OffloadChoice::off:
      return plan_whole(in);
    case OffloadChoice::automatic:
      return fits || !in.tier ? plan_whole(in) : plan_if_possible(in);
    case OffloadChoice::on:
      break;
  }
  if (!in.tier)
    return Status::invalid_argument(
        "--kv-offload on: nothing lies below the pool that takes what it writes: give --kv-store or --kv-host-memory");
  if (!in.unfit.empty()) return Status::unsupported("--kv-offload on: " + in.unfit);
  return plan_columns(in);
}

}  // namespace fovea
