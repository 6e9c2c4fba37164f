#include "eval/drawing.h"

#include "eval/html.h"

#include <cmath>
#include <cstdio>

namespace fovea {
namespace {

// A tenth of a pixel is finer than anyone sees.
std::string num(double v) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", v);
  std::string s = text;
  if (s.ends_with(".0")) s.resize(s.size() - 2);
  return s == "-0" ? "0" : s;
}

std::string hex(Rgb c) {
  char text[8];
  std::snprintf(text, sizeof(text), "#%02x%02x%02x", c.r, c.g, c.b);
  return text;
}

std::string path_of(const std::vector<std::pair<double, double>>& points, bool closed) {
  std::string d;
  for (const auto& [x, y] : points) d += (d.empty() ? "M" : "L") + num(x) + " " + num(y);
  return closed ? d + "Z" : d;
}

std::string mark_svg(const Drawing::Mark& m) {
  const std::string item = m.item < 0 ? "" : " data-item=\"" + std::to_string(m.item) + "\"";
  const std::string paint = " fill=\"" + hex(m.color) + "\" stroke=\"#fff\"" + item + "/>\n";
  if (m.shape == Drawing::Shape::circle)
    return "<circle cx=\"" + num(m.x) + "\" cy=\"" + num(m.y) + "\" r=\"" + num(m.radius) + "\"" + paint;
  return "<path d=\"" + path_of(mark_outline(m), true) + "\"" + paint;
}

}  // namespace

Rgb mix(Rgb a, Rgb b, double f) {
  const auto channel = [f](uint8_t from, uint8_t to) { return static_cast<uint8_t>(std::lround(from + (to - from) * f)); };
  return {channel(a.r, b.r), channel(a.g, b.g), channel(a.b, b.b)};
}

double text_width(std::string_view text, double size) {
  double em = 0;  // of DejaVu Sans, the widest face a page is likely to be shown in
  for (char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0) == 0x80) continue;  // inside a character
    em += c == ' ' || c == ',' || c == '.' || c == 'i' || c == 'l' || c == 'j' || c == 't' || c == '[' || c == ']' ? 0.37
          : c == 'm' || c == 'w' || c == '%'                                                                       ? 0.93
                                                                                                                   : 0.635;
  }
  return em * size;
}

std::vector<std::pair<double, double>> mark_outline(const Drawing::Mark& m) {
  const double r = m.radius;
  switch (m.shape) {
    case Drawing::Shape::circle:
      return {};
    case Drawing::Shape::square:
      return {{m.x - .88 * r, m.y - .88 * r},
              {m.x + .88 * r, m.y - .88 * r},
              {m.x + .88 * r, m.y + .88 * r},
              {m.x - .88 * r, m.y + .88 * r}};
    case Drawing::Shape::diamond:
      return {{m.x, m.y - 1.25 * r}, {m.x + 1.25 * r, m.y}, {m.x, m.y + 1.25 * r}, {m.x - 1.25 * r, m.y}};
    case Drawing::Shape::triangle:
      return {{m.x, m.y - 1.2 * r}, {m.x + 1.1 * r, m.y + .8 * r}, {m.x - 1.1 * r, m.y + .8 * r}};
    case Drawing::Shape::cross: {
      const double a = 1.1 * r, b = .4 * r;
      return {{m.x - b, m.y - a}, {m.x + b, m.y - a}, {m.x + b, m.y - b}, {m.x + a, m.y - b},
              {m.x + a, m.y + b}, {m.x + b, m.y + b}, {m.x + b, m.y + a}, {m.x - b, m.y + a},
              {m.x - b, m.y + b}, {m.x - a, m.y + b}, {m.x - a, m.y - b}, {m.x - b, m.y - b}};
    }
  }
  return {};
}

std::string drawing_svg(const Drawing& d) {
  std::string out =
      "<svg viewBox=\"0 0 " + num(d.width) + " " + num(d.height) + "\" width=\"" + num(d.width) + "\" role=\"img\">\n";
  for (const Drawing::Rect& r : d.rects)
    out += "<rect x=\"" + num(r.x) + "\" y=\"" + num(r.y) + "\" width=\"" + num(r.w) + "\" height=\"" + num(r.h) + "\" fill=\"" +
           hex(r.fill) + "\"/>\n";
  for (const Drawing::Line& l : d.lines)
    out += "<path d=\"" + path_of(l.points, false) + "\" fill=\"none\" stroke=\"" + hex(l.color) + "\" stroke-width=\"" +
           num(l.width) + "\"" + (l.dashed ? " stroke-dasharray=\"4 4\"" : "") + "/>\n";
  for (const Drawing::Mark& m : d.marks) out += mark_svg(m);
  for (const Drawing::Text& t : d.texts) {
    const char* anchor = t.align == Drawing::Align::left ? "start" : t.align == Drawing::Align::center ? "middle" : "end";
    out += "<text x=\"" + num(t.x) + "\" y=\"" + num(t.y) + "\" font-size=\"" + num(t.size) + "\" fill=\"" + hex(t.color) +
           "\" text-anchor=\"" + anchor + "\"" + (t.bold ? " font-weight=\"600\"" : "") +
           (t.turn != 0 ? " transform=\"rotate(" + num(-t.turn) + " " + num(t.x) + " " + num(t.y) + ")\"" : "") + ">" +
           html_escaped(t.text) + "</text>\n";
  }
  return out + "</svg>\n";
}

}  // namespace fovea
