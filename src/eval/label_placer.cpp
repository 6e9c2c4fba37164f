#include "eval/label_placer.h"

#include <algorithm>

namespace fovea {

namespace {

bool meets_any(const Box& box, const std::vector<Box>& others) {
  return std::any_of(others.begin(), others.end(), [&](const Box& o) { return o.meets(box); });
}

}  // namespace

std::optional<Box> LabelPlacer::place(double x, double y, double radius, double width, double height) {
  // Directions of a label's middle from its mark.
  static constexpr struct { double dx, dy; } kSides[] = {{0, -1}, {0, 1}, {1, 0}, {-1, 0}, {1, -1}, {1, 1}, {-1, -1}, {-1, 1}};
  for (const bool choosy : {true, false}) {
    for (const double far : {2.0, 6.0}) {
      for (const auto& side : kSides) {
        const double cx = x + side.dx * (radius + far + width / 2), cy = y + side.dy * (radius + far + height / 2);
        const Box box{cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2};
        if (!box.inside(frame_) || meets_any(box, taken_) || (choosy && meets_any(box, avoided_))) continue;
        taken_.push_back(box);
        return box;
      }
    }
  }
  return {};
}

}  // namespace fovea
