#include "eval/drawing.h"

#include <cairo.h>

#include <memory>
#include <numbers>

namespace fovea {
namespace {

void set_color(cairo_t* cr, Rgb c) { cairo_set_source_rgb(cr, c.r / 255.0, c.g / 255.0, c.b / 255.0); }

void trace_path(cairo_t* cr, const std::vector<std::pair<double, double>>& points) {
  cairo_new_path(cr);
  for (const auto& [x, y] : points) cairo_line_to(cr, x, y);
}

void draw_line(cairo_t* cr, const Drawing::Line& l) {
  const double dash = 4;
  set_color(cr, l.color);
  cairo_set_line_width(cr, l.width);
  cairo_set_dash(cr, &dash, l.dashed ? 1 : 0, 0);
  trace_path(cr, l.points);
  cairo_stroke(cr);
}

void draw_mark(cairo_t* cr, const Drawing::Mark& m) {
  if (m.shape == Drawing::Shape::circle) {
    cairo_new_path(cr);
    cairo_arc(cr, m.x, m.y, m.radius, 0, 2 * std::numbers::pi);
  } else {
    trace_path(cr, mark_outline(m));
  }
  cairo_close_path(cr);
  set_color(cr, m.color);
  cairo_fill_preserve(cr);
  set_color(cr, {255, 255, 255});
  cairo_set_line_width(cr, 1);
  cairo_stroke(cr);
}

void draw_text(cairo_t* cr, const Drawing::Text& t) {
  cairo_select_font_face(cr, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL, t.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(cr, t.size);
  cairo_text_extents_t e;
  cairo_text_extents(cr, t.text.c_str(), &e);
  const double back = t.align == Drawing::Align::left ? 0 : t.align == Drawing::Align::center ? e.x_advance / 2 : e.x_advance;
  set_color(cr, t.color);
  cairo_save(cr);
  cairo_translate(cr, t.x, t.y);
  cairo_rotate(cr, -t.turn * std::numbers::pi / 180);
  cairo_move_to(cr, -back, 0);
  cairo_show_text(cr, t.text.c_str());
  cairo_restore(cr);
}

}  // namespace

Status write_drawing_png(const Drawing& d, const std::string& path, double scale) {
  const std::unique_ptr<cairo_surface_t, void (*)(cairo_surface_t*)> surface(
      cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(d.width * scale), static_cast<int>(d.height * scale)),
      cairo_surface_destroy);
  const std::unique_ptr<cairo_t, void (*)(cairo_t*)> context(cairo_create(surface.get()), cairo_destroy);
  cairo_t* cr = context.get();
  cairo_scale(cr, scale, scale);
  set_color(cr, {255, 255, 255});
  cairo_paint(cr);
  for (const Drawing::Rect& r : d.rects) {
    set_color(cr, r.fill);
    cairo_rectangle(cr, r.x, r.y, r.w, r.h);
    cairo_fill(cr);
  }
  for (const Drawing::Line& l : d.lines) draw_line(cr, l);
  cairo_set_dash(cr, nullptr, 0, 0);
  for (const Drawing::Mark& m : d.marks) draw_mark(cr, m);
  for (const Drawing::Text& t : d.texts) draw_text(cr, t);
  const cairo_status_t s = cairo_surface_write_to_png(surface.get(), path.c_str());
  return s == CAIRO_STATUS_SUCCESS ? Status() : Status::io_error(path + ": " + cairo_status_to_string(s));
}

}  // namespace fovea
