// How often the blocks that attention reads lie in the pool already, if the pool holds fewer than the context has: recorded lists
// through a simulated cache, for each layer and KV head on its own.
#pragma once

#include "sparse/recorded_lists.h"

#include <fovea/status.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fovea {

// The cache of one layer and KV head: C columns, each holds one block. Blocks of a wave never evict each other: what is there stays,
// and what is missing takes the columns that were read longest ago, of equals the lower one. What comes in counts as read `fresh_age`
// waves ago (ResolveParams::fresh_age).
class LruColumns {
 public:
  LruColumns(int32_t columns, int32_t blocks, int32_t fresh_age = 0);
  // One wave, of at most as many different blocks as there are columns; a block may come more than once. *missed: [blocks] whether
  // it had to be fetched, true for the first of equals alone.
  void read(std::span<const int32_t> blocks, std::vector<bool>* missed);

 private:
  int32_t take_column(int32_t block);

  const int32_t fresh_age_;
  int32_t wave_ = 0;
  std::vector<int32_t> column_of_;  // [blocks] -1: not there
  std::vector<int32_t> owner_;      // [columns] -1: none
  std::vector<int32_t> stamp_;      // [columns] the last wave that read it
};

struct LocalityCounts {
  int64_t rows = 0;
  int64_t reads = 0;   // blocks that lists named
  int64_t misses = 0;  // of them, those that had to be fetched: a block counts once in a wave

  double hit_rate() const { return reads == 0 ? 0 : 1 - static_cast<double>(misses) / static_cast<double>(reads); }
};

struct Locality {
  int32_t columns = 0;
  LocalityCounts question, answer;            // rows of all questions: the first one finds an empty cache
  LocalityCounts warm_question, warm_answer;  // of the questions of the second half
};

// Blocks beyond the document are their question's own and never leave: reads of them are hits. The rows of a step are read in waves
// of as many as fit the columns. columns >= lists.k.
Locality simulate_locality(const RecordedLists& lists, int32_t columns);

struct RunnersUp {
  int64_t misses = 0;   // of answer rows, without prediction
  int64_t left = 0;     // of them with it
  int64_t fetched = 0;  // predicted and not there: what was brought for it
};

// What the blocks behind the k-th are worth as a guess at the next step: after each answer row, those that `wider` (the same
// questions with a larger budget) read at that place and `lists` did not are brought in.
RunnersUp simulate_runners_up(const RecordedLists& lists, const RecordedLists& wider, int32_t columns);

// Of the blocks that an answer's row reads, the share that the row before it read too.
double repeated_share(const RecordedLists& lists);

// Columns that are left of a pool for decoding while prefill's staging area of such a context is set aside; 0: there is no room for
// both. As the engine does it on a CPU with files below the pool: a strip is one layer's and head's blocks of the context; staging
// holds as many as would fit a quarter of the pool twice over, at least one.
int32_t columns_after_staging(int32_t pool_columns, int32_t context_blocks, int32_t layers, int32_t kv_heads);

struct LocalityTable {
  std::string name;  // of the file
  const RecordedLists* lists = nullptr;
  std::vector<Locality> rows;
  std::vector<RunnersUp> runners_up;  // [rows], or empty
};
// The sizes worth a line: k and its doublings below the context, an eighth of the context and that after staging. `wider` (may be
// null): also what runners-up are worth; invalid_argument if it is of another model or context.
Result<LocalityTable> locality_table(const std::string& name, const RecordedLists& lists, const RecordedLists* wider);
std::string locality_text(const LocalityTable& table);
nlohmann::ordered_json locality_json(const LocalityTable& table);

}  // namespace fovea
