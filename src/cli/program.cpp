#include "cli/commands.h"
#include "cli/flags.h"

#include <cstdio>
#include <exception>

namespace fovea::cli {

int run_program(int argc, char** argv) {
  CLI::App app{
      "Fovea: long-context language-model inference on any machine.\n"
      "A paged, content-addressed KV cache, and attention that reads only the blocks that matter.\n\n"
      "  fovea run     --model DIR --file REPORT.txt --question 'Who signed it?' --decode-method gsa_on_device\n"
      "  fovea chat    --model DIR --file REPORT.txt\n"
      "  fovea serve   --model DIR --port 8000\n"
      "  fovea eval    --model DIR --set SET.jsonl --decode-method dense,gsa_on_device --budget-tokens 512\n"
      "  fovea bench   decode --model DIR --dummy-weights --depths 2048,32768\n"
      "  fovea trace   --model DIR --set SET.jsonl --out demo\n"
      "  fovea inspect --model DIR\n"
      "  fovea store   ls --kv-store DIR\n"
      "  fovea calibrate --model DIR --text BOOK.txt --out scales.json\n"
      "  fovea quantize --model DIR --type q4_k_m --out model.gguf",
      "fovea"};
  app.set_version_flag("--version", std::string("fovea ") + FOVEA_VERSION);
  app.require_subcommand(1);
  struct Command {
    const char* name;
    Run run;
  };
  const Command commands[] = {
      {"run", add_run(app)},         {"eval", add_eval(app)},        {"bench", add_bench(app)},         {"trace", add_trace(app)},
      {"inspect", add_inspect(app)}, {"store", add_store(app)},      {"calibrate", add_calibrate(app)}, {"serve", add_serve(app)},
      {"chat", add_chat(app)},       {"quantize", add_quantize(app)}};
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForAllHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    // CLI11's own codes begin at 100; bad input is 2 everywhere in this program.
    std::fprintf(stderr, "fovea: %s (see --help)\n", e.what());
    return kBadInput;
  }
  try {
    for (const Command& c : commands) {
      if (app.got_subcommand(c.name)) return c.run();
    }
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "fovea: out of memory\n");
    return kBadInput;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fovea: internal error: %s\n", e.what());
    return kFailure;
  }
  return kFailure;
}

}  // namespace fovea::cli
