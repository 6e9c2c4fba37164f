// Reads a Selection on the host: kind, head groups, row_indptr and units are decoded here and nowhere else above the kernels.
//
// A query row reads one row of lists; a KV head reads one of its lists or, where every query head has its own, several. Token
// ranges end at the length that the query sees, so a caller never gets a position beyond it.
#pragma once

#include <fovea/selection.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fovea {

class SelectionReader {
 public:
  // The arrays lie in host memory and outlive the reader.
  explicit SelectionReader(const Selection& selection) : s_(selection) {}

  // Row of lists that query row `row` of the group reads.
  int32_t list_of(int32_t row) const;
  // Lists in a row; 1 where everything is read.
  int32_t groups() const { return s_.kind == Selection::Kind::all ? 1 : s_.groups; }
  struct Groups {
    int32_t first, end;
  };
  // Those that the query heads of a KV head read.
  Groups groups_of(int32_t kv_head, int32_t kv_heads) const;

  // Calls visit(first, end) for each unit or range: token positions, not empty, ascending. `len`: keys that the query sees.
  template <typename Visit>
  void for_each_range(int32_t list, int32_t group, int64_t len, Visit&& visit) const {
    if (s_.kind == Selection::Kind::all) return visit_cut(0, len, len, visit);
    const int64_t unit = s_.tokens_per_unit, cell = int64_t{list} * s_.groups + group;
    if (s_.kind == Selection::Kind::range) return visit_cut(s_.begins[cell] * unit, s_.ends[cell] * unit, len, visit);
    const int32_t* units = s_.units + cell * s_.capacity;
    for (int32_t i = 0; i < s_.counts[cell]; ++i) visit_cut(units[i] * unit, (units[i] + 1) * unit, len, visit);
  }

  // Tokens that a query with `len` keys reads through one list. Looks at the last units of a list alone.
  int64_t tokens(int32_t list, int32_t group, int64_t len) const;
  // Blocks that the query heads of a KV head touch, ascending.
  std::vector<int32_t> blocks(int32_t list, int32_t kv_head, int32_t kv_heads, int64_t len, int32_t block_size) const;

 private:
  template <typename Visit>
  static void visit_cut(int64_t first, int64_t end, int64_t len, Visit&& visit) {
    if (first < std::min(end, len)) visit(first, std::min(end, len));
  }

  const Selection& s_;
};

}  // namespace fovea
