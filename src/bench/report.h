// Figures of a benchmark: each beside the ceiling that was measured in the same run, and their ratio.
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fovea {

// Of repeated work, in the unit of its figure.
struct Spread {
  double best = 0, p10 = 0, median = 0, p90 = 0;
};
// Of at least one value; `best` is the least.
Spread spread_of(std::vector<double> values);

struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  std::string against;  // what the ceiling or the comparison is; empty: none
  double ceiling = 0;   // in `unit`
  double ratio = 0;     // value / ceiling, or as `against` says
  std::optional<Spread> spread = {};  // of what `value` is the median of
};

class Report {
 public:
  void add(Figure figure) { figures_.push_back(std::move(figure)); }
  // value against ceiling, higher is better.
  void rate(const std::string& name, double value, const std::string& unit, const std::string& against, double ceiling) {
    add({name, value, unit, against, ceiling, ceiling > 0 ? value / ceiling : 0});
  }
  void note(const std::string& line) { notes_.push_back(line); }
  const std::vector<Figure>& figures() const { return figures_; }
  std::string table() const;
  nlohmann::ordered_json json() const;

 private:
  std::vector<Figure> figures_;
  std::vector<std::string> notes_;
};

// Times several pieces of work in turn, `rounds` times over, so that a disturbance meets all of them; the least time of
// each is kept: noise only ever adds. Seconds, in the order of `work`.
std::vector<double> time_in_turn(const std::vector<std::function<void()>>& work, int rounds);

}  // namespace fovea
