// The subcommands of `fovea`. Each adds itself to the app and runs when it was named; the result is the exit code.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace fovea::cli {

using Run = std::function<int()>;

Run add_run(CLI::App& app);
Run add_eval(CLI::App& app);
Run add_bench(CLI::App& app);
Run add_bench_batch(CLI::App& bench);
Run add_bench_serve(CLI::App& bench);
Run add_inspect(CLI::App& app);
Run add_trace(CLI::App& app);
Run add_store(CLI::App& app);
Run add_calibrate(CLI::App& app);
Run add_quantize(CLI::App& app);
Run add_serve(CLI::App& app);
Run add_chat(CLI::App& app);

int run_program(int argc, char** argv);

}  // namespace fovea::cli
