// For tests: the checkpoints under tests/data/checkpoints (README.md there) and the GGUF files under tests/data/gguf, and what
// transformers computes with them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fovea {

struct GoldenCase {
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> generated_ids;  // greedy
  std::vector<float> last_logits;      // [vocab], after the last prompt token
};

struct GoldenCheckpoint {
  std::string name;
  std::string dir;              // of a GGUF file: the file
  std::vector<float> inv_freq;  // [rope_dim / 2]
  float attention_scaling = 1;
  std::vector<GoldenCase> cases;  // a short prompt, a long one
};

// 3 + x mod (vocab - 3), x the outputs of splitmix64.
inline std::vector<int32_t> golden_prompt(uint64_t seed, int64_t tokens, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens; ++i) {
    uint64_t z = seed += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    ids.push_back(static_cast<int32_t>(3 + (z ^ z >> 31) % static_cast<uint64_t>(vocab - 3)));
  }
  return ids;
}

// Throws where a file is not as the README says: a test that cannot read its data fails.
inline GoldenCheckpoint read_golden(const std::filesystem::path& dir) {
  const auto read = [](const std::filesystem::path& path) {
    std::ifstream in(path);
    return nlohmann::json::parse(in);
  };
  const nlohmann::json golden = read(dir / "golden.json");
  const bool gguf = std::filesystem::exists(dir / "model.gguf");
  const int64_t vocab = (gguf ? golden : read(dir / "config.json")).at("vocab_size");
  GoldenCheckpoint out;
  out.name = dir.filename();
  out.dir = gguf ? dir / "model.gguf" : dir;
  out.inv_freq = golden.at("inv_freq").get<std::vector<float>>();
  out.attention_scaling = golden.at("attention_scaling");
  for (const nlohmann::json& c : golden.at("cases")) {
    GoldenCase one;
    one.prompt_ids = golden_prompt(c.at("prompt_seed"), c.at("prompt_tokens"), vocab);
    const auto head = c.at("prompt_head").get<std::vector<int32_t>>();
    if (!std::equal(head.begin(), head.end(), one.prompt_ids.begin())) {
      throw std::runtime_error(out.name + ": golden.json: prompt_head is not what prompt_seed gives");
    }
    one.generated_ids = c.at("generated_ids").get<std::vector<int32_t>>();
    one.last_logits = c.at("last_logits").get<std::vector<float>>();
    out.cases.push_back(std::move(one));
  }
  return out;
}

// All of them, ascending by name. `root`: the repository.
inline std::vector<GoldenCheckpoint> all_goldens(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> dirs;
  for (const char* folder : {"tests/data/checkpoints", "tests/data/gguf"}) {
    for (const auto& entry : std::filesystem::directory_iterator(root / folder)) {
      if (std::filesystem::exists(entry.path() / "golden.json")) dirs.push_back(entry.path());
    }
  }
  std::sort(dirs.begin(), dirs.end());
  std::vector<GoldenCheckpoint> out;
  for (const auto& dir : dirs) out.push_back(read_golden(dir));
  return out;
}

// Those whose name begins with one of these words, up to its first '_'.
inline std::vector<GoldenCheckpoint> goldens(const std::filesystem::path& root, const std::vector<std::string>& families) {
  std::vector<GoldenCheckpoint> out = all_goldens(root);
  std::erase_if(out, [&](const GoldenCheckpoint& g) {
    return std::find(families.begin(), families.end(), g.name.substr(0, g.name.find('_'))) == families.end();
  });
  return out;
}

}  // namespace fovea
