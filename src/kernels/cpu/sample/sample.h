// Choosing tokens from logits, on one thread: a scan of the vocabulary is small beside the product that made it.
#pragma once

#include <fovea/kernels/sample.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fovea::cpu {

class Sample {
 public:
  void prepare(int32_t vocab);
  // Allocates nothing.
  void run(const SampleParams& p);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  int32_t choose(const SampleParams& p, int32_t row);
  void load(const SampleParams& p, int32_t row);
  size_t keep_top_p(size_t count, float top_p);
  int32_t walk(size_t count, float uniform) const;

  std::vector<Candidate> candidates_;  // [vocab]; the kept ones first
  std::vector<float> logits_;          // [vocab] penalised
  std::vector<uint8_t> seen_;          // [vocab] penalised already
};

}  // namespace fovea::cpu
