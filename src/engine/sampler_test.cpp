#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fovea {
namespace {

TEST(SampleUniform, RepeatsAndDiffers) {
  EXPECT_EQ(sample_uniform(5, 1, 7), sample_uniform(5, 1, 7));
  EXPECT_NE(sample_uniform(5, 1, 7), sample_uniform(5, 2, 7));
  EXPECT_NE(sample_uniform(5, 1, 7), sample_uniform(6, 1, 7));
  double sum = 0;
  for (int i = 0; i < 10000; ++i) sum += sample_uniform(0, 0, i);
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

// One value out of range: the error names the field and the value.
struct Impossible {
  const char* field;
  const char* value;
  void (*set)(SamplingParams*);
};

TEST(CheckSampling, EveryRuleNamesItsFieldAndTheValue) {
  const Impossible cases[] = {
      {"temperature", "-0.5", [](SamplingParams* p) { p->temperature = -0.5f; }},
      {"temperature", "nan", [](SamplingParams* p) { p->temperature = NAN; }},
      {"temperature", "inf", [](SamplingParams* p) { p->temperature = INFINITY; }},
      {"top_k", "-1", [](SamplingParams* p) { p->top_k = -1; }},
      {"top_p", "0.0", [](SamplingParams* p) { p->top_p = 0.0f; }},
      {"top_p", "1.5", [](SamplingParams* p) { p->top_p = 1.5f; }},
      {"top_p", "nan", [](SamplingParams* p) { p->top_p = NAN; }},
      {"min_p", "-0.25", [](SamplingParams* p) { p->min_p = -0.25f; }},
      {"min_p", "1.0", [](SamplingParams* p) { p->min_p = 1.0f; }},
      {"repetition_penalty", "0.0", [](SamplingParams* p) { p->repetition_penalty = 0.0f; }},
      {"repetition_penalty", "inf", [](SamplingParams* p) { p->repetition_penalty = INFINITY; }},
      {"frequency_penalty", "2.5", [](SamplingParams* p) { p->frequency_penalty = 2.5f; }},
      {"frequency_penalty", "nan", [](SamplingParams* p) { p->frequency_penalty = NAN; }},
      {"presence_penalty", "-2.5", [](SamplingParams* p) { p->presence_penalty = -2.5f; }},
      {"logit_bias", "-101",
       [](SamplingParams* p) {
         p->logit_bias = {{1, -101.0f}};
       }},
      {"logit_bias", "nan",
       [](SamplingParams* p) {
         p->logit_bias = {{1, NAN}};
       }},
      {"logit_bias", "twice",
       [](SamplingParams* p) {
         p->logit_bias = {{1, 1.0f}, {2, 1.0f}, {1, 2.0f}};
       }},
      {"logit_bias", "1025", [](SamplingParams* p) { p->logit_bias.resize(1025); }},
      {"min_tokens", "-1", [](SamplingParams* p) { p->min_tokens = -1; }},
      {"min_tokens", "257", [](SamplingParams* p) { p->min_tokens = 257; }},
      {"logprobs", "21", [](SamplingParams* p) { p->logprobs = 21; }},
      {"prompt_logprobs", "-1", [](SamplingParams* p) { p->prompt_logprobs = -1; }},
      {"n:", "0", [](SamplingParams* p) { p->n = 0; }},
      {"n:", "257", [](SamplingParams* p) { p->n = 257; }},
      {"max_tokens", "-1", [](SamplingParams* p) { p->max_tokens = -1; }},
      {"stop", "empty",
       [](SamplingParams* p) {
         p->stop = {"a", ""};
       }},
  };
  for (const Impossible& c : cases) {
    SamplingParams p;
    c.set(&p);
    const Status s = check_sampling(p);
    EXPECT_EQ(s.code(), StatusCode::invalid_argument) << c.field;
    EXPECT_EQ(s.message().rfind(c.field, 0), 0u) << s.message();
    EXPECT_NE(s.message().find(c.value), std::string::npos) << s.message();
  }
}

TEST(CheckSampling, TheEdgesOfEveryRangeAreAllowed) {
  EXPECT_TRUE(check_sampling(SamplingParams{}).ok());
  SamplingParams p;
  p.top_p = 1e-6f;
  p.min_p = 0.999f;
  p.repetition_penalty = 1e-6f;
  p.n = 256;
  p.max_tokens = p.min_tokens = 0;
  p.frequency_penalty = -2, p.presence_penalty = 2;
  p.logit_bias = {{1, -100.0f}, {2, 100.0f}};
  p.logprobs = 20, p.prompt_logprobs = 0;
  p.stop = {"x"};
  EXPECT_TRUE(check_sampling(p).ok()) << check_sampling(p).message();
}

}  // namespace
}  // namespace fovea
