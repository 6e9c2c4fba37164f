// What the methods of the GSA family share: the checks of their options, and the codes of their keys.
#pragma once

#include <fovea/kernels/hash_rotation.h>
#include <fovea/options.h>

#include "device/device.h"
#include "sparse/method.h"

#include <string>

namespace fovea {

// Refuses options that no model or this one cannot have, naming method, field and value.
Status check_gsa_options(const std::string& method, const GsaOptions& options, const ModelShape& shape);

// Of the codes in a plane: all but where its signs lie.
HashCodec codec_of(const GsaOptions& options, const ModelShape& shape);

// The sign-rotation codec of a configuration, its signs in device memory.
class PlacedCodec {
 public:
  // Errors: invalid_argument naming field and value; resource_exhausted.
  Status place(const std::string& method, const GsaOptions& options, const ModelShape& shape, Device& device);
  const HashCodec& codec() const { return codec_; }

 private:
  HashCodec codec_;
  Buffer signs_;
};

// Plane `codes.<bits>.<seed>`, with length factors `codes.<bits>f.<seed>`: a code of each token's key. Methods whose planes hold
// the same share it, however they compare them.
// `on_host`: beside the cache of a device (GsaScoring::host), under a name of its own.
PlaneSpec codes_plane(const GsaOptions& options, const ModelShape& shape, bool on_host = false);
// Bytes of one token's code.
int64_t code_bytes(const GsaOptions& options, const ModelShape& shape);
CodesView codes_in(std::byte* plane, const HashCodec& codec, const ModelShape& shape);

// Codes of what a step wrote, where the fused cache write keeps those of another codec.
void encode_written(const KvWritten& written, const HashCodec& codec, const ModelShape& shape, Ops& ops, Stream& stream);

}  // namespace fovea
