#include "eval/eval_table.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>

namespace fovea {
namespace {

template <typename... Args>
std::string printed(const char* format, Args... args) {
  char text[64];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

// Columns of words are set left, columns of figures right.
struct Grid {
  std::vector<std::string> head;
  std::vector<bool> words;
  std::vector<std::vector<std::string>> lines;
};

struct Line {
  const EvalRow* all = nullptr;
  std::map<std::string, const EvalRow*> tasks;
};

// One for each length and run, in the rows' order.
std::vector<Line> lines_of(const std::vector<EvalRow>& rows) {
  std::vector<Line> lines;
  for (const EvalRow& r : rows) {
    const bool same = !lines.empty() && lines.back().all->length == r.length && lines.back().all->run == r.run;
    if (!same) lines.push_back({&r, {}});  // "all" comes first
    lines.back().tasks[r.task] = &r;
  }
  return lines;
}

std::string score(const EvalRow& r) { return std::to_string(r.right) + "/" + std::to_string(r.total); }

Grid grid_of(const std::vector<EvalRow>& rows) {
  const auto any = [&](auto holds) { return std::any_of(rows.begin(), rows.end(), holds); };
  const bool prefills = any([](const EvalRow& r) { return r.run.prefill_method != "dense"; });
  const bool blocks = any([](const EvalRow& r) { return r.run.block_size != EvalRun().block_size; });
  const bool traced = any([](const EvalRow& r) { return r.trace.has_value(); });
  const bool compared = any([](const EvalRow& r) { return r.agreement.has_value(); });
  const bool labelled = any([](const EvalRow& r) { return r.total > 0; }) || !compared;
  std::vector<std::string> tasks;
  for (const EvalRow& r : rows) {
    if (r.task != "all" && std::find(tasks.begin(), tasks.end(), r.task) == tasks.end()) tasks.push_back(r.task);
  }
  std::sort(tasks.begin(), tasks.end());

  Grid g;
  std::vector<std::function<std::string(const Line&)>> cells;  // of each column
  const auto add = [&](const std::string& name, bool words, std::function<std::string(const Line&)> cell) {
    g.head.push_back(name);
    g.words.push_back(words);
    cells.push_back(std::move(cell));
  };
  const auto figure = [&](const std::string& name, auto text) { add(name, false, [text](const Line& l) { return text(*l.all); }); };
  const auto word = [&](const std::string& name, auto text) { add(name, true, [text](const Line& l) { return text(*l.all); }); };
  figure("tokens", [](const EvalRow& r) { return std::to_string(r.length); });
  if (prefills) word("prefill", [](const EvalRow& r) { return r.run.prefill_method; });
  word("decode", [](const EvalRow& r) { return r.run.decode_method; });
  figure("budget", [](const EvalRow& r) { return r.run.budget_tokens ? std::to_string(r.run.budget_tokens) : "-"; });
  if (blocks) figure("block", [](const EvalRow& r) { return std::to_string(r.run.block_size); });
  if (prefills) figure("pairs", [](const EvalRow& r) { return printed("%.1f %%", 100 * r.prefill_share()); });
  figure("KV bytes", [](const EvalRow& r) { return printed("%.1f %%", 100 * r.kv_bytes_share()); });
  if (labelled) {
    figure("exact", [](const EvalRow& r) { return r.total ? printed("%.3f", r.exact()) : "-"; });
    figure("95 %", [](const EvalRow& r) { return printed("%.3f-%.3f", r.interval().low, r.interval().high); });
  }
  if (compared) {
    const auto of = [&](const std::string& name, auto text) {
      figure(name, [text](const EvalRow& r) { return r.agreement ? text(*r.agreement) : "-"; });
    };
    of("agree", [](const AgreementScore& a) { return printed("%.3f", a.share()); });
    of("differ at", [](const AgreementScore& a) { return a.first_difference() ? printed("%.1f", *a.first_difference()) : "-"; });
    of("KL", [](const AgreementScore& a) { return printed("%.5f", a.kl_mean()); });
    of("KL 99 %", [](const AgreementScore& a) { return printed("%.4f", a.kl_p99()); });
  }
  if (traced) figure("mass", [](const EvalRow& r) { return r.trace ? printed("%.3f", r.trace->mass) : "-"; });
  if (traced) figure("recall", [](const EvalRow& r) { return r.trace ? printed("%.3f", r.trace->recall) : "-"; });
  if (labelled) figure("all", score);
  for (const std::string& t : labelled ? tasks : std::vector<std::string>())
    add(t, false, [t](const Line& l) { return l.tasks.contains(t) ? score(*l.tasks.at(t)) : "-"; });

  for (const Line& line : lines_of(rows)) {
    g.lines.emplace_back();
    for (const auto& cell : cells) g.lines.back().push_back(cell(line));
  }
  return g;
}

// A field of a CSV: quoted where it has to be, quotes doubled.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string eval_text(const std::vector<EvalRow>& rows) {
  Grid g = grid_of(rows);
  g.lines.insert(g.lines.begin(), g.head);
  std::vector<size_t> width(g.head.size());
  for (const auto& line : g.lines) {
    for (size_t c = 0; c < line.size(); ++c) width[c] = std::max(width[c], line[c].size());
  }
  std::string out;
  for (const auto& line : g.lines) {
    for (size_t c = 0; c < line.size(); ++c) {
      const std::string pad(width[c] - line[c].size(), ' ');
      const bool last = c + 1 == line.size();
      out += g.words[c] ? line[c] + (last ? "" : pad) : pad + line[c];
      out += last ? "\n" : "  ";
    }
  }
  return out;
}

std::string eval_markdown(const std::vector<EvalRow>& rows) {
  const Grid g = grid_of(rows);
  const auto line = [](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (const std::string& c : cells) {
      std::string safe;
      for (char ch : c) safe += ch == '|' ? std::string("\\|") : std::string(1, ch);
      out += " " + safe + " |";
    }
    return out + "\n";
  };
  std::string out = line(g.head) + "|";
  for (bool words : g.words) out += words ? "---|" : "---:|";
  out += "\n";
  for (const auto& cells : g.lines) out += line(cells);
  return out;
}

nlohmann::ordered_json eval_json(const std::vector<EvalRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const EvalRow& r : rows) {
    const Interval i = r.interval();
    nlohmann::ordered_json row = {{"length", r.length},
                                  {"task", r.task},
                                  {"prefill_method", r.run.prefill_method},
                                  {"decode_method", r.run.decode_method},
                                  {"budget_tokens", r.run.budget_tokens},
                                  {"block_size", r.run.block_size},
                                  {"right", r.right},
                                  {"total", r.total},
                                  {"exact", nullptr},
                                  {"low", i.low},
                                  {"high", i.high},
                                  {"kv_bytes_share", r.kv_bytes_share()},
                                  {"prefill_share", r.prefill_share()},
                                  {"mass", nullptr},
                                  {"recall", nullptr},
                                  {"agreement", nullptr},
                                  {"first_difference", nullptr},
                                  {"kl", nullptr},
                                  {"kl_p99", nullptr}};
    if (r.total > 0) row["exact"] = r.exact();
    if (r.trace) {
      row["mass"] = r.trace->mass;
      row["recall"] = r.trace->recall;
    }
    if (r.agreement) {
      row["agreement"] = r.agreement->share();
      if (const auto at = r.agreement->first_difference()) row["first_difference"] = *at;
      row["kl"] = r.agreement->kl_mean();
      row["kl_p99"] = r.agreement->kl_p99();
    }
    list.push_back(std::move(row));
  }
  return list;
}

nlohmann::ordered_json eval_traces_json(const std::vector<RunTrace>& traces) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const RunTrace& t : traces) {
    Json mass = Json::array(), recall = Json::array(), density = Json::array();
    for (size_t i = 0; i < t.heads.size(); ++i) {
      const HeadTrace& h = t.heads[i];
      if (i % static_cast<size_t>(t.kv_heads) == 0) {
        mass.push_back(Json::array());
        recall.push_back(Json::array());
      }
      mass.back().push_back(h.rows ? Json(h.mass / static_cast<double>(h.rows)) : Json());
      recall.back().push_back(h.rows ? Json(h.recall / static_cast<double>(h.rows)) : Json());
    }
    for (const PrefillTrace::Layer& l : t.prefill.layers) density.push_back(l.density);
    list.push_back({{"length", t.length},
                    {"prefill_method", t.run.prefill_method},
                    {"decode_method", t.run.decode_method},
                    {"budget_tokens", t.run.budget_tokens},
                    {"block_size", t.run.block_size},
                    {"mass", mass},
                    {"recall", recall},
                    {"prefill_density", density}});
  }
  return list;
}

std::string eval_csv(const std::vector<EvalRow>& rows) {
  const nlohmann::ordered_json list = eval_json(rows);
  std::string out;
  const auto end_field = [&](bool last) { out += last ? "\r\n" : ","; };
  const nlohmann::ordered_json head = eval_json({EvalRow()});  // the fields are there without rows too
  size_t left = head[0].size();
  for (const auto& [name, value] : head[0].items()) {
    out += name;
    end_field(--left == 0);
  }
  for (const auto& row : list) {
    left = row.size();
    for (const auto& [name, value] : row.items()) {
      if (value.is_string())
        out += csv_field(value.get<std::string>());
      else if (!value.is_null())
        out += value.dump();
      end_field(--left == 0);
    }
  }
  return out;
}

}  // namespace fovea
