// What a store's own work costs: extents loaded through a FileStore, verified, beside raw reads of the same bytes of the same files at
// the same depth of queue.
#pragma once

#include "bench/bench.h"

namespace fovea {

// Writes a store of options.file_bytes into a folder of options.dir and removes it again. Appends its figures to the report.
Status bench_store_load(const StoreBenchOptions& options, Report* report);

}  // namespace fovea
