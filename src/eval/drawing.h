// A picture as a list of shapes, so that a PNG (cairo) and a page (SVG) show the same, and a test can look at it.
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fovea {

struct Rgb {
  uint8_t r = 0, g = 0, b = 0;
  bool operator==(const Rgb&) const = default;
};

// `f` of b, the rest of a; f in [0, 1].
Rgb mix(Rgb a, Rgb b, double f);

// Pixels, y downwards. Painted in the order of the members, on white.
struct Drawing {
  enum class Align : uint8_t { left, center, right };
  enum class Shape : uint8_t { circle, square, diamond, triangle, cross };
  struct Rect {
    double x, y, w, h;
    Rgb fill;
  };
  struct Line {
    std::vector<std::pair<double, double>> points;
    Rgb color;
    double width = 1;
    bool dashed = false;
  };
  struct Mark {
    double x, y, radius;
    Shape shape;
    Rgb color;
    int64_t item = -1;  // what it stands for: data-item of the SVG; -1: nothing
  };
  struct Text {
    double x, y;  // of the baseline
    double size;
    std::string text;
    Rgb color;
    Align align = Align::left;
    bool bold = false;
    double turn = 0;  // degrees, counter-clockwise
  };
  double width = 0, height = 0;
  std::vector<Rect> rects;
  std::vector<Line> lines;
  std::vector<Mark> marks;
  std::vector<Text> texts;
};

// Corners of a mark that is no circle.
std::vector<std::pair<double, double>> mark_outline(const Drawing::Mark& mark);

// Width of a text, near enough to place it: the face of the reader is not known here.
double text_width(std::string_view text, double size);

// One <svg> element, sized by its viewBox.
std::string drawing_svg(const Drawing& drawing);
// `scale` pixels for each of the drawing. Errors name the path.
Status write_drawing_png(const Drawing& drawing, const std::string& path, double scale = 2);

}  // namespace fovea
