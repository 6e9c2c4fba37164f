#include "kernels/cuda/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <tuple>

#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/late_copy_test_util.h"
#include "kernels/ref/sample.h"

namespace fovea::cuda {
namespace {

using testing::device_ok;
using testing::DeviceArray;

struct Choice {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float penalty = 1.0f;
};

// Rows of one sample() call, host and device.
struct SampleCase {
  int32_t vocab;
  std::vector<float> logits;  // [.., vocab]
  std::vector<float> temperature, top_p, min_p, penalty, uniform;
  std::vector<int32_t> top_k, row_index, history, history_indptr{0};

  void add(const Choice& c, float u, int32_t row, const std::vector<int32_t>& tokens_before = {}) {
    temperature.push_back(c.temperature), top_k.push_back(c.top_k), top_p.push_back(c.top_p), min_p.push_back(c.min_p);
    penalty.push_back(c.penalty), uniform.push_back(u), row_index.push_back(row);
    history.insert(history.end(), tokens_before.begin(), tokens_before.end());
    history_indptr.push_back(static_cast<int32_t>(history.size()));
  }
  int32_t rows() const { return static_cast<int32_t>(uniform.size()); }
  // Whether rows a and b, of no history or the same, differ in their numbers alone.
  bool same_shares(int32_t a, int32_t b) const {
    return row_index[a] == row_index[b] && temperature[a] == temperature[b] && top_k[a] == top_k[b] && top_p[a] == top_p[b] &&
           min_p[a] == min_p[b] && penalty[a] == penalty[b];
  }

  SampleParams params(int32_t* tokens) const {
    SampleParams p;
    p.logits = logits.data(), p.rows = rows(), p.vocab = vocab;
    p.temperature = temperature.data(), p.top_k = top_k.data(), p.top_p = top_p.data(), p.min_p = min_p.data();
    p.repetition_penalty = penalty.data(), p.uniform = uniform.data(), p.row_index = row_index.data();
    p.history = history.data(), p.history_indptr = history_indptr.data(), p.tokens = tokens;
    return p;
  }
  std::vector<int32_t> by_reference() const {
    std::vector<int32_t> tokens(uniform.size(), -1);
    ref::sample(params(tokens.data()));
    return tokens;
  }
};

// What a row's choice is among, in float64: each token's end of its share of [0, 1), walked in ascending id.
struct Shares {
  std::vector<double> end;   // [vocab]
  bool on_the_edge = false;  // what top_p or min_p keep hangs on the last bits, and matters

  Shares(const SampleCase& c, int32_t r) : end(c.vocab) {
    std::vector<double> logits(c.vocab), weight(c.vocab);
    load(c, r, &logits);
    std::vector<int32_t> order(c.vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    if (c.top_k[r] > 0 && c.top_k[r] < c.vocab) order.resize(c.top_k[r]);
    double total = 0.0;
    for (int32_t id : order) total += weight[id] = std::exp((logits[id] - logits[order[0]]) / c.temperature[r]);
    if (c.top_p[r] < 1.0f) keep_top_p(c.top_p[r] * total, weight, &order, total);
    std::vector<double> kept(c.vocab, 0.0);
    for (int32_t id : order) {
      on_the_edge |= c.min_p[r] > 0.0f && std::fabs(weight[id] - c.min_p[r]) < 1e-5;
      if (weight[id] >= c.min_p[r]) kept[id] = weight[id];
    }
    std::partial_sum(kept.begin(), kept.end(), end.begin());
    for (double& e : end) e /= end.back();
  }
  // Whether a uniform number may have chosen the token: up to `slack`.
  bool allows(int32_t token, double uniform, double slack) const {
    const double begin = token == 0 ? 0.0 : end[token - 1];
    return end[token] > begin && uniform >= begin - slack && uniform < end[token] + slack;
  }

 private:
  static void load(const SampleCase& c, int32_t r, std::vector<double>* logits) {
    std::vector<float> row(c.logits.begin() + static_cast<int64_t>(c.row_index[r]) * c.vocab,
                           c.logits.begin() + static_cast<int64_t>(c.row_index[r] + 1) * c.vocab);
    std::vector<bool> seen(c.vocab);
    for (int32_t i = c.history_indptr[r]; i < c.history_indptr[r + 1]; ++i) {
      const int32_t id = c.history[i];
      if (seen[id]) continue;
      seen[id] = true;
      row[id] = row[id] > 0.0f ? row[id] / c.penalty[r] : row[id] * c.penalty[r];
    }
    logits->assign(row.begin(), row.end());
  }
  void keep_top_p(double goal, const std::vector<double>& weight, std::vector<int32_t>* order, double total) {
    double mass = 0.0;
    size_t count = 0;
    while (count < order->size() && (count == 0 || mass < goal)) {
      mass += weight[(*order)[count++]];
      on_the_edge |= std::fabs(mass - goal) < 1e-6 * total && weight[(*order)[count - 1]] > 4e-6 * total;
    }
    order->resize(count);
  }
};

class SampleTest : public testing::GpuTest {
 protected:
  // What is chosen after a call over logits that are better than any, by one that begins before its own logits are there.
  std::vector<int32_t> run(const SampleCase& c) {
    Sample sample;
    OpsLimits limits;
    limits.vocab = c.vocab;
    limits.max_sample_rows = c.rows();
    const Status prepared = sample.prepare(limits, *device_);
    EXPECT_TRUE(prepared.ok()) << prepared.message();
    const DeviceArray<float> logits(std::vector<float>(c.logits.size(), 1e30f)), own(c.logits);
    const DeviceArray<float> temperature(c.temperature), top_p(c.top_p), min_p(c.min_p);
    const DeviceArray<float> penalty(c.penalty), uniform(c.uniform);
    const DeviceArray<int32_t> top_k(c.top_k), row_index(c.row_index), history(c.history), indptr(c.history_indptr);
    const DeviceArray<int32_t> tokens(std::vector<int32_t>(c.rows(), -7));
    SampleParams p = c.params(tokens.data());
    p.logits = logits.data(), p.temperature = temperature.data(), p.top_k = top_k.data(), p.top_p = top_p.data();
    p.min_p = min_p.data(), p.repetition_penalty = penalty.data(), p.uniform = uniform.data();
    p.row_index = row_index.data(), p.history = history.data(), p.history_indptr = indptr.data();
    const Queue queue{handle(), runs_code_for_hopper()};
    sample.run(p, queue);
    testing::copy_late({{logits.data(), own.data(), static_cast<int64_t>(own.size() * sizeof(float))}}, handle());
    sample.run(p, queue);
    EXPECT_TRUE(device_ok());
    return tokens.download();
  }

  // Each token is one that its row's number may choose, and the reference's where the number is not on an
  // edge.
  void check(const SampleCase& c) {
    const std::vector<int32_t> got = run(c), want = c.by_reference();
    int on_the_edge = 0;
    std::optional<Shares> shares;
    for (int32_t r = 0; r < c.rows(); ++r) {
      ASSERT_TRUE(got[r] >= 0 && got[r] < c.vocab) << got[r] << ", " << describe(c, r);
      if (c.temperature[r] == 0.0f) {
        EXPECT_EQ(got[r], want[r]) << describe(c, r);
        continue;
      }
      if (r == 0 || !c.same_shares(r - 1, r) || !shares) shares.emplace(c, r);
      on_the_edge += shares->on_the_edge;
      if (shares->on_the_edge) continue;
      EXPECT_TRUE(shares->allows(got[r], c.uniform[r], kSlack)) << got[r] << " not " << want[r] << ", " << describe(c, r);
      const double begin = want[r] == 0 ? 0.0 : shares->end[want[r] - 1];
      const bool clear = c.uniform[r] > begin + kSlack && c.uniform[r] < shares->end[want[r]] - kSlack;
      if (clear) {
        EXPECT_EQ(got[r], want[r]) << describe(c, r);
      }
    }
    EXPECT_LE(on_the_edge, c.rows() / 2) << "most rows compare nothing";
  }
  static constexpr double kSlack = 1e-5;
  static std::string describe(const SampleCase& c, int32_t r) {
    const auto text = [](auto v) { return std::to_string(v); };
    return "row " + text(r) + ", vocab " + text(c.vocab) + ", temperature " + text(c.temperature[r]) + ", top_k " +
           text(c.top_k[r]) + ", top_p " + text(c.top_p[r]) + ", min_p " + text(c.min_p[r]) + ", penalty " + text(c.penalty[r]) +
           ", uniform " + text(c.uniform[r]);
  }
};

constexpr Choice kChoices[] = {
    {.temperature = 0.0f},
    {},
    {.temperature = 0.01f},
    {.temperature = 2.5f},
    {.top_k = 1},
    {.temperature = 0.7f, .top_k = 50},
    {.top_k = 5000},
    {.top_p = 0.9f},
    {.temperature = 1.7f, .top_p = 0.999f},
    {.top_p = 1e-6f},
    {.min_p = 0.05f},
    {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.02f},
    {.temperature = 3.0f, .top_k = 4000, .top_p = 0.5f},
    {.temperature = 0.0f, .penalty = 1.3f},
    {.temperature = 0.9f, .top_p = 0.8f, .penalty = 1.5f},
    {.top_k = 3, .penalty = 0.7f},
};

enum class Kind { normal, flat, equal, quantised, holes, one_peak };

std::vector<float> make_logits(int32_t vocab, Kind kind, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0.0f, kind == Kind::flat ? 0.003f : 3.0f);
  std::vector<float> out(vocab);
  for (float& v : out) {
    v = kind == Kind::equal ? -1.5f : draw(random);
    if (kind == Kind::quantised) v = std::round(v * 2) / 2;
    if (kind == Kind::holes && random() % 3) v = -std::numeric_limits<float>::infinity();
  }
  if (kind == Kind::one_peak) out[vocab / 3] = 100.0f;
  if (kind == Kind::holes) out[vocab / 2] = 1.0f;  // one is left
  return out;
}

class SampleOf : public SampleTest, public ::testing::WithParamInterface<std::tuple<Kind, int32_t>> {};
INSTANTIATE_TEST_SUITE_P(Large, SampleOf,
                         ::testing::Combine(::testing::Values(Kind::normal, Kind::flat, Kind::equal), ::testing::Values(151'936)));
INSTANTIATE_TEST_SUITE_P(KindAndVocab, SampleOf,
                         ::testing::Combine(::testing::Values(Kind::normal, Kind::flat, Kind::equal, Kind::quantised, Kind::holes,
                                                              Kind::one_peak),
                                            ::testing::Values(1, 2, 33, 4097, 32'000)));

TEST_P(SampleOf, ChoosesAsTheReference) {
  const auto [kind, vocab] = GetParam();
  SampleCase c{.vocab = vocab};
  std::mt19937 random(vocab);
  constexpr int32_t kLogitRows = 3;
  for (int32_t row = 0; row < kLogitRows; ++row) {
    const std::vector<float> logits = make_logits(vocab, kind, vocab + row);
    c.logits.insert(c.logits.end(), logits.begin(), logits.end());
  }
  std::vector<int32_t> seen(200);
  for (int32_t& id : seen) id = static_cast<int32_t>(random() % vocab);  // some of them twice
  seen.push_back(vocab - 1);
  int32_t row = 0;
  for (const Choice& choice : kChoices) {
    for (const float uniform : {0.0f, 0.37f, std::nextafter(1.0f, 0.0f)})
      c.add(choice, uniform, row % kLogitRows, choice.penalty == 1.0f ? std::vector<int32_t>{} : seen);
    ++row;
  }
  check(c);
}

// Evenly spread numbers reach every token that is kept, and none other.
TEST_F(SampleTest, KeepsTheSetOfTheReference) {
  constexpr int32_t kVocab = 500, kDraws = 2000;
  for (const Choice& choice : {Choice{.top_k = 7}, Choice{.top_p = 0.8f}, Choice{.min_p = 0.1f}, Choice{.top_k = 20, .top_p = 0.9f},
                               Choice{.temperature = 4.0f, .top_p = 0.3f}}) {
    SampleCase c{.vocab = kVocab, .logits = make_logits(kVocab, Kind::normal, 3)};
    for (int i = 0; i < kDraws; ++i) c.add(choice, (static_cast<float>(i) + 0.5f) / kDraws, 0);
    ASSERT_FALSE(Shares(c, 0).on_the_edge);
    std::vector<int32_t> got = run(c), want = c.by_reference();
    int different = 0;
    for (int i = 0; i < kDraws; ++i) different += got[i] != want[i];
    EXPECT_LE(different, 2) << "beyond rounding at the edge of a share";
    for (std::vector<int32_t>* set : {&got, &want}) {
      std::sort(set->begin(), set->end());
      set->erase(std::unique(set->begin(), set->end()), set->end());
    }
    EXPECT_EQ(got, want);
  }
}

// How many multiprocessors share a row follows from the number of rows, and changes nothing.
TEST_F(SampleTest, ARowDependsOnNoOther) {
  constexpr int32_t kVocab = 50'257;
  SampleCase all{.vocab = kVocab, .logits = make_logits(kVocab, Kind::normal, 5)};
  std::mt19937 random(1);
  std::vector<int32_t> seen = {5, 5, 77, kVocab - 1};
  for (int r = 0; r < 150; ++r) all.add(kChoices[r % std::size(kChoices)], static_cast<float>(random() >> 8) * 0x1p-24f, 0, seen);
  const std::vector<int32_t> want = run(all);
  EXPECT_EQ(run(all), want);
  for (const int32_t rows : {1, 3, 17, 40, 70}) {
    SampleCase some{.vocab = kVocab, .logits = all.logits};
    for (int r = 0; r < rows; ++r) some.add(kChoices[r % std::size(kChoices)], all.uniform[r], 0, seen);
    EXPECT_EQ(run(some), std::vector<int32_t>(want.begin(), want.begin() + rows)) << rows;
  }
}

// In whatever piece of a thread, a warp or a thread block; of equals, 0 and -0 among them, the first.
TEST_F(SampleTest, TheBestTokenIsFoundWhereverItLies) {
  for (const int32_t vocab : {1, 2, 300, 1024, 1025, 33'000}) {
    SampleCase c{.vocab = vocab};
    std::vector<int32_t> want;
    for (const int32_t at : {0, 1, 31, 255, 1023, 1024, vocab / 2, vocab - 1025, vocab - 256, vocab - 2, vocab - 1}) {
      if (at < 0 || at >= vocab) continue;
      std::vector<float> logits(static_cast<size_t>(vocab), -1.0f);
      for (int32_t equal = at + 1; equal < vocab; equal += 257) logits[equal] = 0.0f;
      logits[at] = -0.0f;
      for (const Choice& choice : {Choice{.temperature = 0.0f}, Choice{.top_k = 1}}) {
        c.add(choice, 0.5f, static_cast<int32_t>(c.logits.size()) / vocab);
        want.push_back(at);
      }
      c.logits.insert(c.logits.end(), logits.begin(), logits.end());
    }
    EXPECT_EQ(run(c), want) << vocab;
  }
}

TEST_F(SampleTest, LogitsThatAreNoNumbersDoNoHarm) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {{-kInf, -kInf, -kInf}, {kNan, 2.0f, kNan}, {1.0f, kInf, kInf}, {kNan, kNan, kNan}};
  const std::vector<int32_t> want = {0, 1, 1, 0};  // the first of the ranking, a NaN last
  for (const Choice& choice : {Choice{.temperature = 0.0f}, Choice{}, Choice{.top_k = 2, .top_p = 0.5f, .min_p = 0.1f}}) {
    SampleCase c{.vocab = 3};
    for (size_t r = 0; r < rows.size(); ++r) {
      c.logits.insert(c.logits.end(), rows[r].begin(), rows[r].end());
      c.add(choice, 0.99f, static_cast<int32_t>(r));
    }
    EXPECT_EQ(run(c), want);
  }
}

TEST_F(SampleTest, AVocabularyBeyondItsLimitIsRefused) {
  OpsLimits limits;
  limits.vocab = 1 << 23;
  Sample sample;
  EXPECT_EQ(sample.prepare(limits, *device_).code(), StatusCode::unsupported);
}

}  // namespace
}  // namespace fovea::cuda
