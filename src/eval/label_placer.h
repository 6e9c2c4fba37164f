// Places small labels beside marks so that none lies on another or on a mark.
#pragma once

#include "eval/drawing.h"

#include <optional>
#include <vector>

namespace fovea {

struct Box {
  double x0, y0, x1, y1;
  bool meets(const Box& b) const { return x0 < b.x1 && b.x0 < x1 && y0 < b.y1 && b.y0 < y1; }
  bool inside(const Box& b) const { return x0 >= b.x0 && y0 >= b.y0 && x1 <= b.x1 && y1 <= b.y1; }
};

class LabelPlacer {
 public:
  // `frame`: labels stay inside it.
  explicit LabelPlacer(const Box& frame) : frame_(frame) {}
  // What labels never lie on, and what they lie on only where there is no other room.
  void block(const Box& box) { taken_.push_back(box); }
  void avoid(const Box& box) { avoided_.push_back(box); }
  // Where a label of this size may stand beside a mark: above it, below, right, left, then the corners, then farther off.
  // The place is taken from then on. Nothing: there is no room.
  std::optional<Box> place(double x, double y, double radius, double width, double height);

 private:
  const Box frame_;
  std::vector<Box> taken_, avoided_;
};

}  // namespace fovea
