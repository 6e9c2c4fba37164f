#include "eval/eval_plot.h"

#include "eval/label_placer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace fovea {
namespace {

constexpr Rgb kInk{34, 36, 40}, kDim{112, 116, 124}, kGrid{232, 234, 238}, kFrame{190, 194, 201}, kPaper{255, 255, 255},
    kDense{70, 74, 82};
// Told apart by readers with any colour vision (after Okabe and Ito, darkened for thin lines on white).
constexpr Rgb kSeries[] = {{0, 104, 166}, {200, 80, 0},   {0, 132, 98},   {176, 76, 132},
                           {160, 110, 0}, {64, 150, 200}, {110, 72, 160}, {120, 86, 60}};
constexpr Drawing::Shape kShapes[] = {Drawing::Shape::circle, Drawing::Shape::square, Drawing::Shape::triangle,
                                      Drawing::Shape::diamond, Drawing::Shape::cross};

constexpr double kWidth = 1080, kLeft = 56, kRight = 16, kGap = 34, kPlotHeight = 300, kMarkRadius = 4.5;
constexpr double kSmall = 11, kNormal = 12;

enum class Axis { kv_bytes, prefill };
enum class Measure { exact, agreement, kl };

constexpr double kLeastKl = 1e-6;  // nats: below that it is rounding

double share(const EvalRow& r, Axis axis) { return axis == Axis::kv_bytes ? r.kv_bytes_share() : r.prefill_share(); }

bool is_dense(const EvalRun& r) { return r.decode_method == "dense" && r.prefill_method == "dense"; }

std::string percent(double share) {
  char text[24];
  std::snprintf(text, sizeof(text), "%.3g %%", 100 * share);
  return text;
}

struct Series {
  std::string label;
  Rgb color;
  Drawing::Shape shape;
};

class Plot {
 public:
  Plot(const std::vector<EvalRow>& rows, const std::string& task, const PlotText& text) : rows_(rows), text_(text) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].task == task) add(i);
    }
    std::sort(lengths_.begin(), lengths_.end());
  }

  Drawing draw() {
    d_.width = kWidth;
    double y = header();
    const std::vector<size_t> all = shown_;
    const auto take = [&](auto wanted) {
      shown_.clear();
      std::copy_if(all.begin(), all.end(), std::back_inserter(shown_), [&](size_t i) { return wanted(rows_[i].run); });
      return !shown_.empty() || all.empty();
    };
    // A run stands where its share says something; dense attention, the reference, everywhere.
    const bool prefills = std::any_of(all.begin(), all.end(), [&](size_t i) { return rows_[i].run.prefill_method != "dense"; });
    const double top = y;
    for (const Measure measure : {Measure::exact, Measure::agreement, Measure::kl}) {
      if (std::none_of(all.begin(), all.end(), [&](size_t i) { return has(rows_[i], measure); })) continue;
      measure_ = measure;
      set_heights(all);
      if (take([](const EvalRun& r) { return r.decode_method != "dense" || is_dense(r); }))
        y = panels(Axis::kv_bytes, y + (y > top ? 14 : 0));
      if (prefills && take([](const EvalRun& r) { return r.prefill_method != "dense" || is_dense(r); }))
        y = panels(Axis::prefill, y + (y > top ? 14 : 0));
    }
    d_.height = legend(y + 16) + 12;
    return std::move(d_);
  }

 private:
  void add(size_t row) {
    shown_.push_back(row);
    const EvalRow& r = rows_[row];
    if (std::find(lengths_.begin(), lengths_.end(), r.length) == lengths_.end()) lengths_.push_back(r.length);
    const std::string label = series_label(r.run);
    if (std::any_of(series_.begin(), series_.end(), [&](const Series& s) { return s.label == label; })) return;
    if (is_dense(r.run)) {
      series_.push_back({label, kDense, Drawing::Shape::circle});
      return;
    }
    series_.push_back(
        {label, kSeries[colored_ % std::size(kSeries)], kShapes[(colored_ + colored_ / std::size(kSeries)) % std::size(kShapes)]});
    ++colored_;
  }

  double header() {
    if (text_.title.empty()) return 8;
    d_.texts.push_back({kLeft, 34, 19, text_.title, kInk, Drawing::Align::left, true});
    d_.texts.push_back({kLeft, 54, kNormal, text_.subtitle, kDim});
    return 68;
  }

  // One line of panels for each three lengths. Returns where it ends.
  double panels(Axis axis, double top) {
    double low = 1, high = 1;
    for (size_t i : shown_) {
      if (share(rows_[i], axis) > 0) low = std::min(low, share(rows_[i], axis));
      high = std::max(high, share(rows_[i], axis));
    }
    ticks_ = log_ticks(std::min(low, 0.5), high);
    // Room for marks at both ends; a tick below the lowest mark has a place only where it is near.
    const double room = 0.05 * std::log(high / std::min(low, 0.5)) + 0.1;
    x_low_ = std::log(std::min(low, 0.5)) - room;
    x_high_ = std::log(high) + room;
    std::erase_if(ticks_, [&](double t) { return std::log(t) < x_low_; });
    const size_t columns = lengths_.size() == 4 ? 2 : std::min<size_t>(3, std::max<size_t>(1, lengths_.size()));
    const double width = (kWidth - kLeft - kRight - kGap * static_cast<double>(columns - 1)) / static_cast<double>(columns);
    double y = top;
    for (size_t i = 0; i < lengths_.size(); ++i) {
      const size_t column = i % columns;
      if (i > 0 && column == 0) y += kPlotHeight + 76;
      const double x = kLeft + static_cast<double>(column) * (width + kGap);
      panel(lengths_[i], axis, {x, y + 24, x + width, y + 24 + kPlotHeight}, column == 0);
    }
    return y + 24 + kPlotHeight + 46;
  }

  // Dense attention is its own reference: a divergence of 0 has no place on a logarithmic axis.
  static bool has(const EvalRow& r, Measure m) {
    if (m == Measure::exact) return r.total > 0 || !r.agreement;
    return r.agreement.has_value() && (m == Measure::agreement || !is_dense(r.run));
  }

  // Where the heights 0 and 1 of the panels are: a share as it is, KL between powers of ten.
  void set_heights(const std::vector<size_t>& shown) {
    heights_.clear();
    if (measure_ != Measure::kl) {
      for (const char* t : {"0.00", "0.25", "0.50", "0.75", "1.00"}) heights_.emplace_back(std::atof(t), t);
      return;
    }
    double low = 1, high = kLeastKl, least = 1;
    for (size_t i : shown) {
      if (!has(rows_[i], Measure::kl)) continue;
      const double kl = rows_[i].agreement->kl_mean();
      high = std::max(high, kl);
      least = std::min(least, kl);
      if (kl >= kLeastKl) low = std::min(low, kl);
    }
    kl_low_ = std::floor(std::log10(std::min(low, high)));
    kl_high_ = std::max(kl_low_ + 1, std::ceil(std::log10(high)));
    for (double e = kl_low_; e <= kl_high_; ++e) {
      char text[24];
      std::snprintf(text, sizeof(text), "%s%g", e == kl_low_ && std::log10(least) < e ? "≤ " : "", std::pow(10.0, e));
      heights_.emplace_back((e - kl_low_) / (kl_high_ - kl_low_), text);
    }
  }

  double height(const EvalRow& r) const {
    if (measure_ == Measure::exact) return r.exact();
    if (measure_ == Measure::agreement) return r.agreement->share();
    return std::max(0.0, (std::log10(std::max(r.agreement->kl_mean(), kLeastKl)) - kl_low_) / (kl_high_ - kl_low_));
  }
  Interval interval(const EvalRow& r) const {
    if (measure_ == Measure::exact) return r.interval();
    if (measure_ == Measure::agreement) return wilson_interval(r.agreement->equal, r.agreement->answers);
    return {height(r), height(r)};
  }

  static double y_at(const Box& b, double height) { return b.y1 - 8 - height * (b.y1 - b.y0 - 16); }
  double x_at(const Box& b, double value) const {
    return b.x0 + (std::log(std::max(value, 1e-6)) - x_low_) / (x_high_ - x_low_) * (b.x1 - b.x0);
  }

  void panel(int64_t length, Axis axis, const Box& b, bool first) {
    std::string name = std::to_string(length);
    for (int64_t at = static_cast<int64_t>(name.size()) - 3; at > 0; at -= 3) name.insert(static_cast<size_t>(at), ",");
    d_.texts.push_back({b.x0, b.y0 - 8, kNormal + 1, name + " tokens", kInk, Drawing::Align::left, true});
    for (const auto& [at, tick] : heights_) {
      d_.lines.push_back({{{b.x0, y_at(b, at)}, {b.x1, y_at(b, at)}}, kGrid});
      if (first) d_.texts.push_back({b.x0 - 8, y_at(b, at) + 4, kSmall, tick, kDim, Drawing::Align::right});
    }
    for (double t : ticks_) {
      d_.lines.push_back({{{x_at(b, t), b.y0}, {x_at(b, t), b.y1}}, kGrid});
      d_.texts.push_back({x_at(b, t), b.y1 + 16, kSmall, percent(t), kDim, Drawing::Align::center});
    }
    d_.lines.push_back({{{b.x0, b.y1}, {b.x1, b.y1}}, kFrame});
    const char* name_of_height = measure_ == Measure::exact       ? "exact answers"
                                 : measure_ == Measure::agreement ? "answers equal to dense attention's"
                                                                  : "KL from dense attention, nats, log scale";
    if (first) d_.texts.push_back({b.x0 - 44, (b.y0 + b.y1) / 2, kSmall, name_of_height, kDim, Drawing::Align::center, false, 90});
    d_.texts.push_back({(b.x0 + b.x1) / 2, b.y1 + 36, kSmall,
                        axis == Axis::kv_bytes ? "share of KV bytes read by question and answer (summaries included), log scale"
                                               : "share of the prefill's attention that was computed, log scale",
                        kDim, Drawing::Align::center});
    if (text_width(d_.texts.back().text, kSmall) > b.x1 - b.x0)
      d_.texts.back().text = axis == Axis::kv_bytes ? "share of KV bytes read, log scale" : "share of prefill attention, log scale";
    points(length, axis, b);
  }

  std::vector<size_t> rows_of(int64_t length, const std::string& series) const {
    std::vector<size_t> out;
    for (size_t i : shown_) {
      if (rows_[i].length == length && has(rows_[i], measure_) && series_label(rows_[i].run) == series) out.push_back(i);
    }
    std::stable_sort(out.begin(), out.end(),
                     [&](size_t a, size_t b) { return rows_[a].run.budget_tokens < rows_[b].run.budget_tokens; });
    return out;
  }

  void points(int64_t length, Axis axis, const Box& b) {
    LabelPlacer placer({b.x0 + 2, b.y0 - 4, b.x1 + 10, b.y1 - 1});
    for (size_t i : shown_) {
      if (rows_[i].length != length || !is_dense(rows_[i].run) || !has(rows_[i], measure_)) continue;
      const double y = y_at(b, height(rows_[i]));
      d_.lines.push_back({{{b.x0, y}, {b.x1, y}}, mix(kDense, kPaper, 0.35), 1, true});
      placer.avoid({b.x0, y - 1, b.x1, y + 1});
      break;  // one reference: the first dense run
    }
    for (const Series& s : series_) {
      Drawing::Line line{{}, mix(s.color, kPaper, 0.55), 1.2};
      for (size_t i : rows_of(length, s.label)) {
        const double x = x_at(b, share(rows_[i], axis)), y = y_at(b, height(rows_[i]));
        const Interval w = interval(rows_[i]);
        d_.lines.push_back({{{x, y_at(b, w.low)}, {x, y_at(b, w.high)}}, mix(s.color, kPaper, 0.62), 1.6});
        line.points.emplace_back(x, y);
        d_.marks.push_back({x, y, kMarkRadius, s.shape, s.color, static_cast<int64_t>(i)});
        placer.avoid({x - 1, y_at(b, w.high), x + 1, y_at(b, w.low)});
        placer.block({x - kMarkRadius, y - kMarkRadius, x + kMarkRadius, y + kMarkRadius});
      }
      if (line.points.size() > 1) d_.lines.push_back(std::move(line));
    }
    for (const Series& s : series_) {
      for (size_t i : rows_of(length, s.label))
        label(rows_[i], s, x_at(b, share(rows_[i], axis)), y_at(b, height(rows_[i])), &placer);
    }
  }

  void label(const EvalRow& r, const Series& s, double x, double y, LabelPlacer* placer) {
    const std::string text = r.run.budget_tokens ? std::to_string(r.run.budget_tokens) : is_dense(r.run) ? "dense" : "";
    if (text.empty()) return;  // its own budget: the legend names the series
    const auto box = placer->place(x, y, kMarkRadius, text_width(text, 10) + 3, 10);
    if (box)
      d_.texts.push_back({(box->x0 + box->x1) / 2, box->y1 - 1.5, 10, text, mix(s.color, kInk, 0.25), Drawing::Align::center});
  }

  // Series side by side in as many columns as fit. Returns where it ends.
  double legend(double top) {
    double widest = 0;
    for (const Series& s : series_) widest = std::max(widest, text_width(s.label, kNormal) + 40);
    const size_t columns = std::max<size_t>(1, static_cast<size_t>((kWidth - kLeft - kRight) / std::max(widest, 1.0)));
    const size_t per_column = (series_.size() + columns - 1) / columns;
    for (size_t i = 0; i < series_.size(); ++i) {
      const double x = kLeft + static_cast<double>(i / per_column) * widest, y = top + 20 * static_cast<double>(i % per_column);
      d_.marks.push_back({x + 5, y, kMarkRadius, series_[i].shape, series_[i].color});
      d_.texts.push_back({x + 17, y + 4, kNormal, series_[i].label, kInk});
    }
    const double y = top + 20 * static_cast<double>(per_column) + 6;
    d_.texts.push_back({kLeft, y, kSmall,
                        "Numbers beside marks: budget in tokens. Vertical bars: 95 % intervals (Wilson). Dashed: dense attention.",
                        kDim});
    return y;
  }

  const std::vector<EvalRow>& rows_;
  const PlotText& text_;
  std::vector<size_t> shown_;
  std::vector<int64_t> lengths_;
  std::vector<Series> series_;
  size_t colored_ = 0;
  std::vector<double> ticks_;
  double x_low_ = 0, x_high_ = 0;  // logarithms
  Measure measure_ = Measure::exact;
  std::vector<std::pair<double, std::string>> heights_;  // ticks
  double kl_low_ = 0, kl_high_ = 0;                      // powers of ten
  Drawing d_;
};

}  // namespace

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> ticks;
  for (double decade = std::pow(10.0, std::floor(std::log10(low))); decade <= high * 1.0001; decade *= 10) {
    for (double step : {1.0, 2.0, 5.0}) ticks.push_back(decade * step);
  }
  std::erase_if(ticks, [&](double t) { return t > high * 1.0001; });
  while (ticks.size() > 1 && ticks[1] <= low * 1.0001) ticks.erase(ticks.begin());
  if (ticks.size() <= 7) return ticks;
  // Every other one (or fewer), so that the upper end stays, and the lower end is covered.
  const size_t stride = (ticks.size() + 6) / 7;
  std::vector<double> few;
  for (size_t back = 0; back < ticks.size(); back += stride) few.insert(few.begin(), ticks[ticks.size() - 1 - back]);
  if (few[0] > low) few.insert(few.begin(), ticks[0]);
  return few;
}

Drawing eval_plot(const std::vector<EvalRow>& rows, const std::string& task, const PlotText& text) {
  return Plot(rows, task, text).draw();
}

}  // namespace fovea
