// The block lists that requests' last rows left behind, layer by layer: what overlap reads by. They stay in the memory of the
// device; the host knows which are there and of how many blocks they were chosen, both from lengths alone.
#pragma once

#include "device/device.h"
#include "device/step_memory.h"
#include "sparse/method.h"

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace fovea {

// Whether a row is the last of its request in the step.
bool is_last_row(const StepRows& step, int32_t row);

class KeptLists {
 public:
  // `groups`: lists of a row and layer.
  void attach(std::string name, const ModelShape& shape, int32_t groups, int32_t max_rows, Device& device, StepMemory& staging);

  // Decides what each row reads by and where its lists are kept. k: [rows], host. Errors: resource_exhausted.
  Status begin_step(const StepRows& step, const int32_t* k);
  // In select(): what of CarryOverParams is known here. Moves lists first where they have outgrown their memory.
  Status fill(LayerIdx layer, Stream& stream, CarryOverParams* p);
  // Of a step that does not count nothing stays. Once for each begin_step() that was ok.
  void finish_step(bool ok);
  void forget(SequenceId sequence);
  // What captured work has to be captured again for.
  uint32_t version() const { return version_; }

 private:
  // A request's lists, twice: what counts, and what the step before had or this one stores.
  struct Request {
    int32_t slot = 0;
    int32_t current = 0;
    int32_t blocks[2] = {0, 0};  // of which they were chosen; 0: nothing is there
    int32_t count[2] = {0, 0};   // of each list
    int32_t place(int32_t copy) const { return 2 * slot + copy; }
  };
  // int32 [layers, slots, 2, groups, capacity]
  struct Memory {
    Buffer data;
    int32_t slots = 0, capacity = 0;
    int64_t layer_entries(int32_t groups) const { return int64_t{2} * slots * groups * capacity; }
  };
  Request& request_of(SequenceId sequence);
  Status reserve(int32_t capacity);
  int32_t blocks_of(int64_t tokens) const { return static_cast<int32_t>((tokens + block_size_ - 1) / block_size_); }

  std::string name_;
  Device* device_ = nullptr;
  int32_t layers_ = 0, groups_ = 0, block_size_ = 0;
  Staged<int32_t> from_, from_count_, keep_at_;  // [rows], as CarryOverParams has them
  std::unordered_map<SequenceId, Request> requests_;
  std::vector<int32_t> free_;      // slots
  int32_t slots_ = 0;              // that were ever taken
  std::vector<Request*> of_step_;  // whose last rows it has
  Memory lists_, outgrown_;        // outgrown_: to be moved to lists_ by the next fill()
  uint32_t version_ = 0;
};

}  // namespace fovea
