#include "sparse/gsa_on_device/gsa_on_device.h"

namespace fovea {

Status GsaOnDevice::attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) {
  FOVEA_TRY(attach_lists(shape, limits, device, staging, options_.share_heads ? 1 : shape.kv_heads));
  if (options_.representation != GsaRepresentation::hash)
    return Status::invalid_argument("gsa_on_device: representation is an option of gsa");
  return place_codec(device);
}

bool GsaOnDevice::codes_view(std::byte* plane, CodesView* out) const {
  *out = codes_in(plane, codec_.codec(), shape_);
  return true;
}

void GsaOnDevice::on_kv_written(const KvWritten& written, Ops& ops, Stream& stream) {
  if (written.planes[0]) encode_written(written, codec_.codec(), shape_, ops, stream);
}

}  // namespace fovea
