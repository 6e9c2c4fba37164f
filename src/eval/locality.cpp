#include "eval/locality.h"

#include "base/check.h"
#include "kv/residency_tables.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

void add(const LocalityCounts& from, LocalityCounts* to) {
  to->rows += from.rows;
  to->reads += from.reads;
  to->misses += from.misses;
}

// A wave of rows through the caches of all layers and heads.
class Waves {
 public:
  Waves(const RecordedLists& lists, int32_t columns)
      : lists_(lists),
        caches_(static_cast<size_t>(lists.layers) * static_cast<size_t>(lists.kv_heads),
                LruColumns(columns, lists.shared_blocks(), kFreshSteps)) {}

  // What each of the rows read, to `counts`.
  void read(std::span<const RecordedRow> wave, std::vector<LocalityCounts>* counts) {
    counts->assign(wave.size(), {.rows = 1});
    for (size_t c = 0; c < caches_.size(); ++c) {
      blocks_.clear();
      row_of_.clear();
      for (size_t r = 0; r < wave.size(); ++r) {
        for (int32_t block : wave[r].lists[c]) {
          ++(*counts)[r].reads;
          if (block >= lists_.shared_blocks()) continue;
          blocks_.push_back(block);
          row_of_.push_back(r);
        }
      }
      caches_[c].read(blocks_, &missed_);
      for (size_t i = 0; i < missed_.size(); ++i) (*counts)[row_of_[i]].misses += missed_[i];
    }
  }

  // Brings in what `wider` names and `row` does not; how many of them were not there.
  int64_t fetch_beyond(const RecordedRow& row, const RecordedRow& wider) {
    int64_t fetched = 0;
    for (size_t c = 0; c < caches_.size(); ++c) {
      blocks_.clear();
      std::set_difference(wider.lists[c].begin(), wider.lists[c].end(), row.lists[c].begin(), row.lists[c].end(),
                          std::back_inserter(blocks_));
      std::erase_if(blocks_, [&](int32_t block) { return block >= lists_.shared_blocks(); });
      caches_[c].read(blocks_, &missed_);
      fetched += std::count(missed_.begin(), missed_.end(), true);
    }
    return fetched;
  }

 private:
  const RecordedLists& lists_;
  std::vector<LruColumns> caches_;
  std::vector<int32_t> blocks_;  // of a wave in one cache
  std::vector<size_t> row_of_;   // [blocks_]
  std::vector<bool> missed_;     // [blocks_]
};

// The rows of each step, in waves of as many as fit the columns.
template <typename Visit>
void for_each_wave(const RecordedLists& lists, int32_t columns, Visit&& visit) {
  FOVEA_CHECK(columns >= lists.k);
  const auto rows_max = static_cast<size_t>(columns / lists.k);
  for (size_t begin = 0, end = 0; begin < lists.rows.size(); begin = end) {
    while (end < lists.rows.size() && end - begin < rows_max && lists.rows[end].step == lists.rows[begin].step) ++end;
    visit(std::span(&lists.rows[begin], end - begin));
  }
}

std::string percent(const LocalityCounts& c) {
  char text[16];
  std::snprintf(text, sizeof(text), "%6.1f %%", 100 * c.hit_rate());
  return c.reads == 0 ? "       -" : text;
}

double misses_per_row(const LocalityCounts& c) {
  return c.rows == 0 ? 0 : static_cast<double>(c.misses) / static_cast<double>(c.rows);
}

}  // namespace

LruColumns::LruColumns(int32_t columns, int32_t blocks, int32_t fresh_age)
    : fresh_age_(fresh_age),
      column_of_(static_cast<size_t>(blocks), -1),
      owner_(static_cast<size_t>(columns), -1),
      stamp_(static_cast<size_t>(columns), 0) {}

void LruColumns::read(std::span<const int32_t> blocks, std::vector<bool>* missed) {
  ++wave_;
  missed->assign(blocks.size(), false);
  for (int32_t block : blocks) {
    if (const int32_t column = column_of_[static_cast<size_t>(block)]; column >= 0) stamp_[static_cast<size_t>(column)] = wave_;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    int32_t& column = column_of_[static_cast<size_t>(blocks[i])];
    (*missed)[i] = column < 0;
    if (column < 0) column = take_column(blocks[i]);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if ((*missed)[i]) stamp_[static_cast<size_t>(column_of_[static_cast<size_t>(blocks[i])])] = std::max(1, wave_ - fresh_age_);
  }
}

int32_t LruColumns::take_column(int32_t block) {
  const auto oldest = std::min_element(stamp_.begin(), stamp_.end());
  FOVEA_CHECK(*oldest < wave_);  // else the wave would evict what it reads
  *oldest = wave_;
  const auto column = oldest - stamp_.begin();
  int32_t& owner = owner_[static_cast<size_t>(column)];
  if (owner >= 0) column_of_[static_cast<size_t>(owner)] = -1;
  owner = block;
  return static_cast<int32_t>(column);
}

Locality simulate_locality(const RecordedLists& lists, int32_t columns) {
  Locality out{.columns = columns};
  Waves waves(lists, columns);
  const int32_t warm = lists.rows.empty() ? 0 : (lists.rows.back().question + 1) / 2;
  std::vector<LocalityCounts> counts;
  for_each_wave(lists, columns, [&](std::span<const RecordedRow> wave) {
    waves.read(wave, &counts);
    for (size_t r = 0; r < wave.size(); ++r) {
      add(counts[r], wave[r].answer ? &out.answer : &out.question);
      if (wave[r].question >= warm) add(counts[r], wave[r].answer ? &out.warm_answer : &out.warm_question);
    }
  });
  return out;
}

RunnersUp simulate_runners_up(const RecordedLists& lists, const RecordedLists& wider, int32_t columns) {
  std::map<std::pair<int32_t, int64_t>, const RecordedRow*> wider_row;
  for (const RecordedRow& row : wider.rows) wider_row[{row.question, row.position}] = &row;
  RunnersUp out{.misses = simulate_locality(lists, columns).answer.misses};
  Waves waves(lists, columns);
  std::vector<LocalityCounts> counts;
  for_each_wave(lists, columns, [&](std::span<const RecordedRow> wave) {
    waves.read(wave, &counts);
    for (size_t r = 0; r < wave.size(); ++r) out.left += wave[r].answer ? counts[r].misses : 0;
    const auto at = wider_row.find({wave.back().question, wave.back().position});
    if (wave.back().answer && at != wider_row.end()) out.fetched += waves.fetch_beyond(wave.back(), *at->second);
  });
  return out;
}

double repeated_share(const RecordedLists& lists) {
  int64_t read = 0, repeated = 0;
  for (size_t r = 1; r < lists.rows.size(); ++r) {
    const RecordedRow &before = lists.rows[r - 1], &row = lists.rows[r];
    if (!row.answer || row.question != before.question) continue;
    for (size_t i = 0; i < row.lists.size(); ++i) {
      read += static_cast<int64_t>(row.lists[i].size());
      for (int32_t b : row.lists[i]) repeated += std::binary_search(before.lists[i].begin(), before.lists[i].end(), b);
    }
  }
  return read == 0 ? 0 : static_cast<double>(repeated) / static_cast<double>(read);
}

int32_t columns_after_staging(int32_t pool_columns, int32_t context_blocks, int32_t layers, int32_t kv_heads) {
  const int64_t all = int64_t{layers} * kv_heads;
  const auto staging = [&](int64_t strips) { return (strips * context_blocks + all - 1) / all; };
  int64_t taken = staging(1);
  for (int64_t heads = 1; heads <= kv_heads && 4 * staging(2 * heads) <= pool_columns; ++heads) taken = staging(heads);
  return 4 * taken > 3 * int64_t{pool_columns} ? 0 : static_cast<int32_t>(pool_columns - taken);
}

Result<LocalityTable> locality_table(const std::string& name, const RecordedLists& lists, const RecordedLists* wider) {
  const auto shape = [](const RecordedLists& l) { return std::tie(l.layers, l.kv_heads, l.block_size, l.context_tokens); };
  if (wider && shape(*wider) != shape(lists))
    return Status::invalid_argument(name + ": the wider lists are of another model, block size or context");
  const auto blocks = static_cast<int32_t>((lists.context_tokens + lists.block_size - 1) / lists.block_size);
  std::set<int32_t> sizes;
  for (int64_t c = lists.k; c < blocks; c *= 2) sizes.insert(static_cast<int32_t>(c));
  for (int32_t c : {blocks / 8, columns_after_staging(blocks / 8, blocks, lists.layers, lists.kv_heads)}) {
    if (c >= lists.k) sizes.insert(c);
  }
  LocalityTable table{name, &lists, {}};
  for (int32_t c : sizes) {
    if (wider && c < wider->k) continue;
    table.rows.push_back(simulate_locality(lists, c));
    if (wider) table.runners_up.push_back(simulate_runners_up(lists, *wider, c));
  }
  return table;
}

std::string locality_text(const LocalityTable& table) {
  const RecordedLists& lists = *table.lists;
  const auto blocks = static_cast<int32_t>((lists.context_tokens + lists.block_size - 1) / lists.block_size);
  char line[320];
  std::snprintf(
      line, sizeof(line),
      "%s: %lld tokens of context in %d blocks, k %d, %d layers, %d KV heads, %d questions; an answer's row reads %.1f %% of "
      "what the row before it read\n",
      table.name.c_str(), static_cast<long long>(lists.context_tokens), blocks, lists.k, lists.layers, lists.kv_heads,
      lists.rows.back().question + 1, 100 * repeated_share(lists));
  std::string text = line;
  text += "                       all questions           second half        fetched by a row of\n";
  text += " columns  of context  question   answer    question   answer     question   answer\n";
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const Locality& l = table.rows[i];
    std::snprintf(line, sizeof(line), "%8d  %7.1f %%   %s %s   %s %s   %8.1f %8.1f\n", l.columns, 100.0 * l.columns / blocks,
                  percent(l.question).c_str(), percent(l.answer).c_str(), percent(l.warm_question).c_str(),
                  percent(l.warm_answer).c_str(), misses_per_row(l.question), misses_per_row(l.answer));
    text += line;
    if (table.runners_up.empty()) continue;
    const RunnersUp& r = table.runners_up[i];
    std::snprintf(line, sizeof(line),
                  "          runners-up: %.1f %% of an answer's misses foreseen, %.1f blocks fetched for each\n",
                  r.misses == 0 ? 0.0 : 100.0 * static_cast<double>(r.misses - r.left) / static_cast<double>(r.misses),
                  r.misses == r.left ? 0.0 : static_cast<double>(r.fetched) / static_cast<double>(r.misses - r.left));
    text += line;
  }
  return text;
}

Json locality_json(const LocalityTable& table) {
  const auto counts = [](const LocalityCounts& c) { return Json{{"rows", c.rows}, {"reads", c.reads}, {"misses", c.misses}}; };
  Json rows = Json::array();
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const Locality& l = table.rows[i];
    rows.push_back({{"columns", l.columns},
                    {"question", counts(l.question)},
                    {"answer", counts(l.answer)},
                    {"warm_question", counts(l.warm_question)},
                    {"warm_answer", counts(l.warm_answer)}});
    if (table.runners_up.empty()) continue;
    const RunnersUp& r = table.runners_up[i];
    rows.back()["runners_up"] = {{"misses", r.misses}, {"left", r.left}, {"fetched", r.fetched}};
  }
  const RecordedLists& lists = *table.lists;
  return {{"lists", table.name},
          {"context_tokens", lists.context_tokens},
          {"block_size", lists.block_size},
          {"k", lists.k},
          {"layers", lists.layers},
          {"kv_heads", lists.kv_heads},
          {"repeated_share", repeated_share(lists)},
          {"rows", std::move(rows)}};
}

}  // namespace fovea
