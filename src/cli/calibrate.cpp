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
  CLI::App* cmd = app.add_subcommand("calibrate", "Write the scales of an fp8 KV cache, from texts like those that will be read");
  cmd->add_option("--model", f->options.model_dir,
                  "A GGUF file (of several parts the first), or a directory: config.json, *.safetensors, tokenizer.json")
      ->required();
  cmd->add_option("--text", f->texts, "Files with text; all of them are read, a few thousand tokens are enough")->required();
  cmd->add_option("--out", f->out, "File for the scales (JSON), for --kv-scales")->required();
  cmd->add_option("--margin", f->calibration.margin,
                  "Room in a scale: so many times the largest magnitude that the texts reach, from 1 to 1024")
      ->capture_default_str();
  cmd->add_option("--device", f->options.device, "auto (a GPU if there is one), cpu, or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  cmd->add_option("--threads", f->options.threads, "Worker threads; 0: every core this process may use")->capture_default_str();
  return [f] {
    const Status s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
