// The same picture as a PNG, drawn with cairo.
#include "eval/reading_map.h"

#include <algorithm>
#include <cairo.h>
#include <memory>

namespace fovea {
namespace {

struct Rgb {
  double r, g, b;
};
constexpr Rgb kPaper{0.078, 0.082, 0.102}, kStrip{0.137, 0.149, 0.184}, kInk{0.91, 0.90, 0.88}, kDim{0.55, 0.545, 0.525},
    kFact{1.0, 0.71, 0.28}, kFactDark{0.47, 0.33, 0.13}, kBright{0.75, 0.97, 0.94}, kDeep{0.12, 0.36, 0.35};

constexpr int kWidth = 1400, kLeft = 150, kRight = 40, kTop = 150, kStripHeight = 16, kHeadGap = 2, kLayerGap = 8, kRowHeight = 13;

class Picture {
 public:
  Picture(int width, int height)
      : surface_(cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height), cairo_surface_destroy),
        cr_(cairo_create(surface_.get()), cairo_destroy) {
    color(kPaper);
    cairo_paint(cr_.get());
  }
  void color(Rgb c) { cairo_set_source_rgb(cr_.get(), c.r, c.g, c.b); }
  void rect(double x, double y, double w, double h, Rgb c) {
    color(c);
    cairo_rectangle(cr_.get(), x, y, w, h);
    cairo_fill(cr_.get());
  }
  enum class Align { left, center, right };
  void text(double x, double y, double size, const std::string& s, Rgb c, Align align = Align::left, bool bold = false, bool mono = false) {
    cairo_select_font_face(cr_.get(), mono ? "DejaVu Sans Mono" : "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr_.get(), size);
    cairo_text_extents_t e;
    cairo_text_extents(cr_.get(), s.c_str(), &e);
    if (align != Align::left) x -= align == Align::right ? e.x_advance : e.x_advance / 2;
    color(c);
    cairo_move_to(cr_.get(), x, y);
    cairo_show_text(cr_.get(), s.c_str());
  }
  Status write(const std::string& path) {
    const cairo_status_t s = cairo_surface_write_to_png(surface_.get(), path.c_str());
    return s == CAIRO_STATUS_SUCCESS ? Status() : Status::io_error(path + ": " + cairo_status_to_string(s));
  }

 private:
  std::unique_ptr<cairo_surface_t, void (*)(cairo_surface_t*)> surface_;
  std::unique_ptr<cairo_t, void (*)(cairo_t*)> cr_;
};

Rgb mix(Rgb a, Rgb b, double f) { return {a.r + (b.r - a.r) * f, a.g + (b.g - a.g) * f, a.b + (b.b - a.b) * f}; }

// One strip: `share` of the reads of each block, the context over the whole width.
void draw_strip(Picture& p, const ReadingMap& m, const std::vector<double>& share, double y, double height) {
  const int width = kWidth - kLeft - kRight;
  p.rect(kLeft, y, width, height, kStrip);
  const int64_t blocks = std::max<int64_t>(1, m.context_blocks);
  for (int x = 0; x < width; ++x) {
    const int64_t from = x * blocks / width, to = std::max(from + 1, (x + 1) * blocks / width);
    double most = 0;
    for (int64_t b = from; b < to; ++b) most = std::max(most, share[b]);
    const bool fact = m.fact_first_block >= 0 && to > m.fact_first_block && from <= m.fact_last_block;
    // The fact gets at least three pixels, or nobody would see one block of two thousand.
    if (fact) p.rect(kLeft + x - 1, y, 3, height, most > 0 ? kFact : kFactDark);
    if (!fact && most > 0) p.rect(kLeft + x, y, 1, height, mix(kDeep, kBright, std::min(1.0, most)));
  }
}

std::vector<double> shares(const ReadingMap& m, int32_t layer, int32_t head, const ReadingMap::Row* only) {
  std::vector<double> share(static_cast<size_t>(std::max<int64_t>(1, m.context_blocks)), 0.0);
  double rows = 0;
  for (const ReadingMap::Row& r : m.rows) {
    if (only && &r != only) continue;
    ++rows;
    for (int32_t l = 0; l < m.layers; ++l) {
      for (int32_t h = 0; h < m.kv_heads; ++h) {
        if ((layer >= 0 && l != layer) || (head >= 0 && h != head)) continue;
        const double weight = layer >= 0 ? 1.0 : 1.0 / (m.layers * m.kv_heads);
        for (int32_t b : r.blocks[l][h]) share[b] += weight;
      }
    }
  }
  for (double& s : share) s /= std::max(1.0, rows);
  return share;
}

}  // namespace

Status write_reading_map_png(const ReadingMap& m, const std::string& path) {
  const int answer_rows = static_cast<int>(m.rows.size());
  const int strips = m.layers * (m.kv_heads * (kStripHeight + kHeadGap) + kLayerGap);
  const int height = kTop + strips + 70 + answer_rows * (kRowHeight + 2) + 60;
  Picture p(kWidth, height);
  using A = Picture::Align;
  char line[200];
  p.text(kLeft, 46, 24, m.question, kInk, A::left, true);
  p.text(kLeft, 76, 16, m.answer + (m.right ? "  ✓" : "  ✗ wanted: " + m.wanted), m.right ? kBright : Rgb{1, 0.42, 0.42});
  std::snprintf(line, sizeof(line), "%s read %.1f %% of the KV bytes of %lld tokens", m.method.c_str(), 100 * m.stats.kv_bytes_share(),
                static_cast<long long>(m.context_tokens));
  p.text(kLeft, 102, 13, line, kDim);
  p.text(kWidth - kRight, 102, 13, m.fact.empty() ? "" : "▮ planted: " + m.fact, kFact, A::right);
  double y = kTop;
  p.text(kLeft, y - 12, 12, "Blocks that the answer's tokens read, by layer and KV head (brighter: by more of them)", kDim);
  for (int32_t l = 0; l < m.layers; ++l) {
    for (int32_t h = 0; h < m.kv_heads; ++h) {
      p.text(kLeft - 12, y + kStripHeight - 4, 11, "layer " + std::to_string(l) + " · kv " + std::to_string(h), kDim, A::right);
      draw_strip(p, m, shares(m, l, h, nullptr), y, kStripHeight);
      y += kStripHeight + kHeadGap;
    }
    y += kLayerGap;
  }
  y += 40;
  p.text(kLeft, y - 12, 12, "The same by token of the answer, over all layers and heads", kDim);
  for (const ReadingMap::Row& r : m.rows) {
    std::string token = r.token;
    std::replace(token.begin(), token.end(), '\n', ' ');
    p.text(kLeft - 12, y + kRowHeight - 3, 11, "“" + token + "”", kInk, A::right, false, true);
    std::vector<double> share = shares(m, -1, -1, &r);
    for (double& s : share) s = std::min(1.0, s * 3);  // a block that a third of the heads read is bright
    draw_strip(p, m, share, y, kRowHeight);
    y += kRowHeight + 2;
  }
  for (int i = 0; i <= 4; ++i) {
    const double x = kLeft + (kWidth - kLeft - kRight) * i / 4.0;
    p.text(x, y + 18, 11, std::to_string(m.context_tokens * i / 4), kDim, i == 0 ? A::left : i == 4 ? A::right : A::center);
  }
  p.text(kLeft - 12, y + 18, 11, "token", kDim, A::right);
  return p.write(path);
}

}  // namespace fovea
