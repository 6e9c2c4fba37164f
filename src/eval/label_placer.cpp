#include "eval/label_placer.h"

#include <algorithm>

namespace fovea {

bool LabelPlacer::is_free(const Box& box) const {
  return box.inside(frame_) && std::none_of(taken_.begin(), taken_.end(), [&](const Box& t) { return t.meets(box); });
}

std::optional<Box> LabelPlacer::place(double x, double y, double radius, double width, double height) {
  // Directions of a label's middle from its mark.
  static constexpr struct { double dx, dy; } kSides[] = {{0, -1}, {0, 1}, {1, 0}, {-1, 0}, {1, -1}, {1, 1}, {-1, -1}, {-1, 1}};
  for (const double far : {2.0, 10.0}) {
    for (const auto& side : kSides) {
      const double cx = x + side.dx * (radius + far + width / 2), cy = y + side.dy * (radius + far + height / 2);
      const Box box{cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2};
      if (!is_free(box)) continue;
      taken_.push_back(box);
      return box;
    }
  }
  return {};
}

}  // namespace fovea
