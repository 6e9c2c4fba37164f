#include <fovea/status.h>

namespace fovea {

const char* status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid argument";
    case StatusCode::not_found:
      return "not found";
    case StatusCode::corrupt:
      return "corrupt";
    case StatusCode::unsupported:
      return "unsupported";
    case StatusCode::resource_exhausted:
      return "resource exhausted";
    case StatusCode::busy:
      return "busy";
    case StatusCode::cancelled:
      return "cancelled";
    case StatusCode::io_error:
      return "I/O error";
    case StatusCode::internal:
      return "internal error";
  }
  return "unknown";
}

}  // namespace fovea
