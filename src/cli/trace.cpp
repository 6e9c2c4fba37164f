// fovea trace: questions of a set answered dense and sparse side by side, and a picture of what the sparse one read.
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"

#include "base/clock.h"
#include "eval/trace.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

namespace fovea::cli {
namespace {

struct TraceFlags {
  EngineFlags engine;
  std::string set;
  std::string out;
  int32_t max_tokens = 48;
  bool json = false;
};

double rate(const RequestStats& s) { return s.decode_s > 0 ? static_cast<double>(s.output_tokens - 1) / s.decode_s : 0; }

// An answer on one line of a table: its line breaks as spaces, a long one cut short.
std::string one_line(std::string answer) {
  constexpr size_t kMost = 42;
  std::replace(answer.begin(), answer.end(), '\n', ' ');
  if (answer.size() <= kMost) return answer;
  size_t end = kMost - 1;
  while (end > 0 && (static_cast<unsigned char>(answer[end]) & 0xc0) == 0x80) --end;  // never half a character
  return answer.substr(0, end) + "…  ";  // three bytes for one column: the width counts bytes
}

void print_line(const char* method, const std::string& answer, bool right, const RequestStats& s) {
  std::printf("   %-14s %s %-42s reads %5.1f %%   first token %-8s %5.0f tok/s\n", method, right ? "✓" : "✗", one_line(answer).c_str(),
              100 * s.kv_bytes_share(), duration_text(s.ttft_s).c_str(), rate(s));
  std::fflush(stdout);
}

Status write_pictures(const std::vector<ReadingMap>& maps, const std::string& out) {
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) return Status::io_error("--out " + out + ": " + error.message());
  std::ofstream html(out + "/reading-map.html");
  html << reading_map_html(maps);
  if (!html.good()) return Status::io_error(out + "/reading-map.html: cannot be written");
  // The picture of one question says enough; the page has all.
  const auto shown = std::find_if(maps.begin(), maps.end(), [](const ReadingMap& m) { return m.right && m.fact_first_block >= 0; });
  return write_reading_map_png(shown == maps.end() ? maps[0] : *shown, out + "/reading-map.png");
}

Status execute(TraceFlags& f) {
  FOVEA_ASSIGN(const std::vector<RetrievalDocument> set, load_retrieval_set(f.set));
  const RetrievalDocument& document = set[0];
  if (document.questions.empty()) return Status::invalid_argument(f.set + ": its first document has no questions");
  FOVEA_ASSIGN(EngineOptions options, f.engine.options());
  FOVEA_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(std::move(options)));
  Progress bar("reading");
  const double start = Clock().now_s();
  FOVEA_ASSIGN(const std::unique_ptr<DocumentSession> session,
               DocumentSession::open(*engine, document.document, [&](int64_t done, int64_t total) { bar.show(done, total); }));
  bar.clear();
  const double read_s = Clock().now_s() - start;
  if (!f.json)
    std::printf("read %lld tokens in %s (%.0f tok/s), %s\n", static_cast<long long>(session->document_tokens()), duration_text(read_s).c_str(),
                static_cast<double>(session->document_tokens()) / read_s, engine->backend().c_str());
  SamplingParams sampling;
  sampling.max_tokens = f.max_tokens;
  const std::string& method = engine->options().decode_method;
  std::vector<ReadingMap> maps;
  auto json = nlohmann::ordered_json::array();
  for (const RetrievalQuestion& q : document.questions) {
    if (!f.json) std::printf("\n?  %s\n", q.question.c_str());
    FOVEA_ASSIGN(const std::vector<Answer> dense, session->ask({{q.question, "dense", 0, false}}, sampling, nullptr));
    FOVEA_TRY(dense[0].error);
    FOVEA_ASSIGN(ReadingMap map, trace_question(*engine, *session, document, q, method, f.engine.budget_tokens, sampling));
    if (!f.json) {
      print_line("dense", dense[0].text, dense[0].text == q.answer, dense[0].stats);
      print_line(method.c_str(), map.answer, map.right, map.stats);
    }
    json.push_back({{"question", q.question}, {"wanted", q.answer}, {"dense", dense[0].text}, {"sparse", map.answer},
                    {"kv_bytes_share", map.stats.kv_bytes_share()}, {"dense_tokens_per_s", rate(dense[0].stats)},
                    {"sparse_tokens_per_s", rate(map.stats)}});
    maps.push_back(std::move(map));
  }
  FOVEA_TRY(write_pictures(maps, f.out));
  if (f.json) {
    std::cout << json.dump(2) << "\n";
  } else {
    std::printf("\nwhat each token read: %s/reading-map.html and .png\n", f.out.c_str());
  }
  return {};
}

}  // namespace

Run add_trace(CLI::App& app) {
  auto f = std::make_shared<TraceFlags>();
  CLI::App* cmd = app.add_subcommand("trace", "Answer a set's questions dense and sparse, and draw what the sparse one read");
  f->engine.decode_method = "gsa_on_device";
  f->engine.budget_tokens = 512;
  f->engine.add_to(*cmd);
  cmd->add_option("--set", f->set, "A retrieval set (JSON lines, see tools/make_set.py); its first document is read")->required();
  cmd->add_option("--out", f->out, "Folder for reading-map.html and reading-map.png")->required();
  cmd->add_option("--max-tokens", f->max_tokens, "Most tokens of an answer")->capture_default_str();
  cmd->add_flag("--json", f->json, "JSON on stdout instead of text");
  return [f] {
    const Status s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
