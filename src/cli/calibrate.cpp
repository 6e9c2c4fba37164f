// fovea calibrate: scales of an fp8 KV cache, from texts.
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"

#include <fovea/calibrate.h>

#include <cstdio>
#include <memory>

namespace fovea::cli {
namespace {

struct CalibrateFlags {
  EngineOptions options;
  std::vector<std::string> texts;  // files
  std::string out;
  KvCalibration calibration;
};

Status execute(CalibrateFlags& f) {
  for (const std::string& path : f.texts) {
    FOVEA_ASSIGN(std::string text, read_file(path));
    f.calibration.texts.push_back(std::move(text));
  }
  Progress progress("calibrate");
  f.calibration.progress = [&](int64_t done, int64_t total) { progress.show(done, total); };
  FOVEA_ASSIGN(const std::string scales, calibrate_kv(f.options, f.calibration));
  progress.clear();
  return write_file(f.out, scales);
}

}  // namespace

Run add_calibrate(CLI::App& app) {
  auto f = std::make_shared<CalibrateFlags>();
  CLI::App* cmd = app.add_subcommand("calibrate", "Compute the scales of an fp8 KV cache from texts like those it will hold");
  cmd->add_option("--model", f->options.model_dir,
                  "Model to load: a GGUF file (for a split file, its first part), or a directory with config.json, *.safetensors "
                  "and tokenizer.json")
      ->required();
  cmd->add_option("--text", f->texts, "Text files, all of which are read; a few thousand tokens are enough")->required();
  cmd->add_option("--out", f->out, "File to write the scales to (JSON), for --kv-scales")->required();
  cmd->add_option("--margin", f->calibration.margin,
                  "Headroom: a scale covers this many times the largest magnitude in the texts, from 1 to 1024")
      ->capture_default_str();
  cmd->add_option("--device", f->options.device, "Device to run on: cpu, cuda, or auto (a GPU if there is one)")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  cmd->add_option("--threads", f->options.threads, "Number of worker threads; 0: every core available to this process")
      ->capture_default_str();
  return [f] {
    const Status s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
