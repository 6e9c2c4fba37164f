#include "bench/report.h"

#include "base/clock.h"

#include "base/check.h"

#include <algorithm>
#include <cstdio>

namespace fovea {

Spread spread_of(std::vector<double> values) {
  FOVEA_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) { return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)]; };
  return {values[0], at(0.1), at(0.5), at(0.9)};
}

std::string Report::table() const {
  std::string out;
  char line[320];
  for (const Figure& f : figures_) {
    std::snprintf(line, sizeof(line), "%-58s %10.3f %-8s", f.name.c_str(), f.value, f.unit.c_str());
    out += line;
    if (!f.against.empty()) {
      std::snprintf(line, sizeof(line), "  %6.3f of %.3f (%s)", f.ratio, f.ceiling, f.against.c_str());
      out += line;
    }
    if (f.spread) {
      std::snprintf(line, sizeof(line), "  p10 %.3f, p90 %.3f, best %.3f", f.spread->p10, f.spread->p90, f.spread->best);
      out += line;
    }
    out += "\n";
  }
  for (const std::string& n : notes_) out += n + "\n";
  return out;
}

nlohmann::ordered_json Report::json() const {
  auto list = nlohmann::ordered_json::array();
  for (const Figure& f : figures_) {
    nlohmann::ordered_json j = {{"name", f.name}, {"value", f.value}, {"unit", f.unit}};
    if (!f.against.empty()) {
      j["against"] = f.against;
      j["ceiling"] = f.ceiling;
      j["ratio"] = f.ratio;
    }
    if (f.spread) j["spread"] = {{"best", f.spread->best}, {"p10", f.spread->p10}, {"p90", f.spread->p90}};
    list.push_back(std::move(j));
  }
  return {{"figures", std::move(list)}, {"notes", notes_}};
}

std::vector<double> time_in_turn(const std::vector<std::function<void()>>& work, int rounds) {
  const Clock clock;
  std::vector<double> best(work.size(), 1e30);
  for (const auto& w : work) w();  // warm: page in, create, resolve
  for (int r = 0; r < rounds; ++r) {
    for (size_t i = 0; i < work.size(); ++i) {
      const double start = clock.now_s();
      work[i]();
      best[i] = std::min(best[i], clock.now_s() - start);
    }
  }
  return best;
}

}  // namespace fovea
