#include "store/lent_memory.h"

#include "base/mapped_buffer.h"

#include <new>
#include <string>

namespace fovea {

Result<std::shared_ptr<LentMemory>> LentMemory::make(size_t bytes, std::string_view what) {
  try {
    const auto memory = std::make_shared<MappedBuffer>(bytes);
    return std::make_shared<LentMemory>(memory->data(), bytes, memory);
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted(std::string(what) + ": the host has no " + std::to_string(bytes) + " bytes");
  }
}

}  // namespace fovea
