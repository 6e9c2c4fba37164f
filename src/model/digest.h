// Digests that name a model's content in the keys of cached blocks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <fovea/kernels/weight.h>
#include <fovea/status.h>

namespace fovea {

using Digest = std::array<uint8_t, 32>;  // SHA-256

std::string digest_hex(const Digest& digest);  // 64 lower-case digits

Digest bytes_digest(std::string_view bytes);  // SHA-256

// SHA-256 of a whole file (tokenizer.json).
Result<Digest> file_digest(const std::string& path);

// SHA-256 over config.json (of a GGUF file its metadata), and of each weight file its name, size, header and a sample of its data: the
// first and the last 64 KiB and 4,096 pieces of 64 bytes, evenly spaced. Not over all of the data: that reads
// gigabytes at every start (2.5 GB: 2 s at SHA-256's speed, and the disk's time), and any training step,
// merge or conversion that changes a model changes weights everywhere, so also the sample. Against a forged
// file it does not protect: whoever can write the weights can already make the model say anything.
Result<Digest> model_digest(const std::string& model);

// The same for dummy_weights(config, seed, type): config.json, the seed and the type.
Result<Digest> dummy_model_digest(const std::string& model, uint64_t seed, WeightType type = WeightType::bf16);

}  // namespace fovea
