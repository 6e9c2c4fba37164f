#include "eval/depth_page.h"

#include "eval/eval_plot.h"
#include "eval/html.h"
#include "model/json_reader.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace fovea {
namespace {

using Json = nlohmann::json;

constexpr Rgb kInk{34, 36, 40}, kDim{112, 116, 124}, kGrid{232, 234, 238}, kFrame{190, 194, 201};
constexpr Rgb kSeries[] = {{70, 74, 82}, {0, 104, 166}, {200, 80, 0}, {0, 132, 98}, {176, 76, 132}};
constexpr Drawing::Shape kShapes[] = {Drawing::Shape::circle, Drawing::Shape::square, Drawing::Shape::triangle,
                                      Drawing::Shape::diamond, Drawing::Shape::cross};
constexpr double kWidth = 1080, kLeft = 62, kGap = 76, kTop = 122, kHeight = 320, kPanel = (kWidth - kLeft - kGap - 20) / 2;

Status refuse(const std::string& where, const std::string& what) { return Status::invalid_argument(where + ": " + what); }

// A number that is not negative.
Status read_number(const Json& object, const char* field, const std::string& where, double* out) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_number() || it->get<double>() < 0 || it->get<double>() > 1e15)
    return refuse(where, std::string(field) + " is missing, or no number from 0 to 1e15");
  *out = it->get<double>();
  return {};
}

Status read_count(const Json& object, const char* field, const std::string& where, int64_t* out) {
  double value = 0;
  FOVEA_TRY(read_number(object, field, where, &value));
  *out = static_cast<int64_t>(value);
  return {};
}

Status read_answers(const Json& run, const Json& wanted, const std::string& where, DepthRun* out) {
  const auto answers = run.find("answers");
  if (answers == run.end() || !answers->is_array() || answers->empty()) return refuse(where, "run.answers is missing or empty");
  if (!wanted.is_array() || wanted.size() != answers->size())
    return refuse(where, "wanted is not one text for each of run.answers");
  double tokens = 0, seconds = 0;
  for (size_t i = 0; i < answers->size(); ++i) {
    const Json& a = (*answers)[i];
    if (!a.is_object() || !a.contains("answer")) return refuse(where, "run.answers holds " + json_snippet(a));
    double output_tokens = 0, decode_s = 0, ttft_s = 0;
    FOVEA_TRY(read_number(a, "output_tokens", where, &output_tokens));
    FOVEA_TRY(read_number(a, "decode_s", where, &decode_s));
    FOVEA_TRY(read_number(a, "ttft_s", where, &ttft_s));
    tokens += std::max(0.0, output_tokens - 1);
    seconds += decode_s;
    out->first_token_s += ttft_s / static_cast<double>(answers->size());
    out->right += a["answer"] == wanted[i];
    ++out->questions;
  }
  out->tokens_per_s = seconds > 0 ? tokens / seconds : 0;
  return {};
}

Result<DepthRun> read_run(const std::string& line, const std::string& where) {
  FOVEA_ASSIGN(const Json json, parse_json_object(line, where));
  const auto series = json.find("series"), run = json.find("run"), memory = json.find("memory_bytes"), wanted = json.find("wanted");
  if (series == json.end() || !series->is_string()) return refuse(where, "series is missing, or no text");
  if (run == json.end() || !run->is_object()) return refuse(where, "run is missing, or no object");
  if (memory == json.end() || !memory->is_object()) return refuse(where, "memory_bytes is missing, or no object");
  DepthRun out{.series = series->get<std::string>()};
  FOVEA_TRY(read_count(*run, "document_tokens", where, &out.depth));
  if (out.depth < 1) return refuse(where, "run.document_tokens is 0");
  FOVEA_TRY(read_count(*run, "document_computed_tokens", where, &out.computed_tokens));
  FOVEA_TRY(read_count(*run, "document_loaded_tokens", where, &out.loaded_tokens));
  FOVEA_TRY(read_number(*run, "prefill_s", where, &out.document_s));
  for (const auto& [kind, bytes] : memory->items()) {
    out.memory_bytes.emplace_back(kind, 0);
    FOVEA_TRY(read_count(*memory, kind.c_str(), where + ": memory_bytes", &out.memory_bytes.back().second));
  }
  FOVEA_TRY(read_answers(*run, wanted == json.end() ? Json() : *wanted, where, &out));
  return out;
}

std::string count_text(int64_t n) {
  std::string text = std::to_string(n);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string short_text(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), x < 10 ? "%.2g" : "%.0f", x);
  return text;
}

class Plot {
 public:
  explicit Plot(const std::vector<DepthRun>& runs) : runs_(runs) {
    for (const DepthRun& r : runs) {
      if (std::find(series_.begin(), series_.end(), r.series) == series_.end()) series_.push_back(r.series);
      low_ = std::min(low_, static_cast<double>(r.depth));
      high_ = std::max(high_, static_cast<double>(r.depth));
    }
    d_.width = kWidth;
    d_.height = kTop + kHeight + 58;
  }

  Drawing draw(const std::string& title, const std::string& subtitle) {
    d_.texts.push_back({kLeft, 34, 19, title, kInk, Drawing::Align::left, true});
    d_.texts.push_back({kLeft, 54, 12, subtitle, kDim});
    legend();
    panel(kLeft, "tokens per second", [](const DepthRun& r) { return r.tokens_per_s; });
    panel(
        kLeft + kPanel + kGap, "seconds of reading to the first token (log scale)",
        [](const DepthRun& r) { return r.document_s + r.first_token_s; }, true);
    return std::move(d_);
  }

 private:
  void legend() {
    double x = kLeft;
    for (size_t s = 0; s < series_.size(); ++s) {
      d_.marks.push_back({x + 5, 76, 4.5, kShapes[s % std::size(kShapes)], kSeries[s % std::size(kSeries)]});
      d_.texts.push_back({x + 16, 80, 12, series_[s], kInk});
      x += 40 + text_width(series_[s], 12);
    }
  }

  double x_at(double left, double depth) const {
    const double range = std::log(high_ / low_);
    return left + 16 + (range > 0 ? std::log(depth / low_) / range : 0.5) * (kPanel - 32);
  }

  template <typename Value>
  void panel(double left, const std::string& name, Value value, bool log_scale = false) {
    double low = 1e30, high = 1e-9;
    for (const DepthRun& r : runs_) {
      low = std::min(low, std::max(1e-3, value(r)));
      high = std::max(high, value(r));
    }
    low = log_scale ? std::min(low, high / 10) : 0;  // a decade at least
    const auto place = [&](double v) {
      const double share =
          log_scale ? (std::log(std::max(v, low)) - std::log(low) + 0.1) / (std::log(high / low) + 0.2) : v / (1.06 * high);
      return kTop + kHeight * (1 - share);
    };
    d_.texts.push_back({left, kTop - 8, 12, name, kInk, Drawing::Align::left, true});
    for (double t : log_scale ? log_ticks(low, high) : std::vector<double>{0, high / 4, high / 2, 3 * high / 4, high}) {
      if (log_scale && t < low) continue;
      d_.lines.push_back({{{left, place(t)}, {left + kPanel, place(t)}}, kGrid});
      d_.texts.push_back({left - 8, place(t) + 4, 11, short_text(t), kDim, Drawing::Align::right});
    }
    d_.lines.push_back({{{left, kTop + kHeight}, {left + kPanel, kTop + kHeight}}, kFrame});
    depth_ticks(left);
    for (size_t s = 0; s < series_.size(); ++s) draw_series(left, s, value, place);
  }

  void depth_ticks(double left) {
    std::vector<int64_t> depths;
    for (const DepthRun& r : runs_) depths.push_back(r.depth);
    std::sort(depths.begin(), depths.end());
    double last = -1e9;
    for (int64_t depth : depths) {
      const double x = x_at(left, static_cast<double>(depth));
      if (x - last < 48) continue;
      d_.texts.push_back({x, kTop + kHeight + 16, 11, count_text(depth), kDim, Drawing::Align::center});
      last = x;
    }
    d_.texts.push_back({left + kPanel / 2, kTop + kHeight + 38, 11, "tokens of context, log scale", kDim, Drawing::Align::center});
  }

  template <typename Value, typename Place>
  void draw_series(double left, size_t s, Value value, Place place) {
    const Rgb color = kSeries[s % std::size(kSeries)];
    std::vector<std::pair<double, double>> points;
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i].series != series_[s]) continue;
      points.emplace_back(x_at(left, static_cast<double>(runs_[i].depth)), place(value(runs_[i])));
      d_.marks.push_back(
          {points.back().first, points.back().second, 4.5, kShapes[s % std::size(kShapes)], color, static_cast<int64_t>(i)});
    }
    std::sort(points.begin(), points.end());
    if (points.size() > 1) d_.lines.push_back({std::move(points), color, 1.5});
  }

  const std::vector<DepthRun>& runs_;
  std::vector<std::string> series_;
  double low_ = 1e30, high_ = 1;
  Drawing d_;
};

const char* const kStyle = R"html(main { max-width:1180px }
.lead { color:#6c7078; margin:0 0 20px }
.plot svg { display:block; max-width:100%; height:auto; font-family:"DejaVu Sans", system-ui, sans-serif }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; margin-top:24px }
th, td { padding:4px 9px; font-size:13px; text-align:right; white-space:nowrap; border-bottom:1px solid #e4e6ea }
th { border-bottom:2px solid #222428 }
th:first-child, td:first-child { text-align:left }
tr.hot td { background:#f6f7f9 }
)html";

const char* const kScript = R"html(const rows = document.querySelectorAll('tbody tr');
for (const m of document.querySelectorAll('.plot [data-item]')) {
  const tr = rows[m.dataset.item], r = page.runs[m.dataset.item];
  if (!tr) continue;
  m.onmousemove = e => { tip.textContent = r.series + ', ' + r.depth.toLocaleString('en') + ' tokens: ' + r.text; place_tip(e); };
  m.onmouseenter = () => tr.classList.add('hot');
  m.onmouseleave = () => { tr.classList.remove('hot'); tip.style.display = 'none'; };
}
)html";

std::vector<std::string> cells(const DepthRun& r) {
  const auto number = [](const char* format, double x) {
    char text[32];
    std::snprintf(text, sizeof(text), format, x);
    return std::string(text);
  };
  std::string memory;
  for (const auto& [kind, bytes] : r.memory_bytes)
    memory += (memory.empty() ? "" : ", ") + kind + " " + number("%.0f MB", static_cast<double>(bytes) / 1e6);
  return {r.series,
          count_text(r.depth),
          count_text(r.computed_tokens),
          count_text(r.loaded_tokens),
          std::to_string(r.right) + " of " + std::to_string(r.questions),
          number("%.2f", r.document_s),
          number("%.3f", r.first_token_s),
          number("%.1f", r.tokens_per_s),
          memory};
}

const std::vector<std::string> kHead = {"series",  "tokens",        "computed",     "loaded", "right",
                                        "ready s", "first token s", "tokens per s", "memory"};

}  // namespace

Result<std::vector<DepthRun>> parse_depth_runs(const std::string& text, const std::string& name) {
  std::istringstream in(text);
  std::string line;
  std::vector<DepthRun> runs;
  for (int number = 1; std::getline(in, line); ++number) {
    FOVEA_ASSIGN(DepthRun run, read_run(line, name + ":" + std::to_string(number)));
    runs.push_back(std::move(run));
  }
  if (runs.empty()) return refuse(name, "holds no run");
  return runs;
}

std::string depth_text(const std::vector<DepthRun>& runs) {
  std::vector<std::vector<std::string>> rows = {kHead};
  for (const DepthRun& r : runs) rows.push_back(cells(r));
  std::string text;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      size_t width = 0;
      for (const auto& other : rows) width = std::max(width, other[c].size());
      const std::string pad(c + 1 == row.size() ? 0 : width - row[c].size(), ' ');
      text += c == 0 ? row[c] + pad : "  " + (c + 1 == row.size() ? row[c] : pad + row[c]);
    }
    text += "\n";
  }
  return text;
}

Drawing depth_plot(const std::vector<DepthRun>& runs, const std::string& title, const std::string& subtitle) {
  return Plot(runs).draw(title, subtitle);
}

std::string depth_html(const std::vector<DepthRun>& runs, const std::string& title, const std::string& subtitle) {
  std::string html = html_head(html_escaped(title), kStyle);
  html += "<h1>" + html_escaped(title) + "</h1><p class=\"lead\">" + html_escaped(subtitle) + "</p><div class=\"plot\">";
  html += drawing_svg(depth_plot(runs, "", "")) + "</div><table><thead><tr>";
  for (const std::string& h : kHead) html += "<th>" + h + "</th>";
  html += "</tr></thead><tbody>";
  nlohmann::ordered_json data = {{"runs", nlohmann::ordered_json::array()}};
  for (const DepthRun& r : runs) {
    html += "<tr>";
    for (const std::string& c : cells(r)) html += "<td>" + html_escaped(c) + "</td>";
    html += "</tr>\n";
    data["runs"].push_back({{"series", r.series},
                            {"depth", r.depth},
                            {"text", short_text(r.tokens_per_s) + " tokens/s, first token after " +
                                         short_text(r.document_s + r.first_token_s) + " s"}});
  }
  return html + "</tbody></table>" + html_end(data, kScript);
}

}  // namespace fovea
