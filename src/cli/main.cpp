// fovea: long-context inference that reads only the blocks that matter.
#include "cli/commands.h"

int main(int argc, char** argv) { return fovea::cli::run_program(argc, argv); }
