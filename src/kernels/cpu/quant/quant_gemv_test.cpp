#include "kernels/cpu/quant/quant_gemv.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/dequantize.h"
#include "kernels/common/random_weights.h"
#include "kernels/cpu/quant/interleave.h"
#include "kernels/cpu/quant/quant_gemv_avx_vnni_evex.h"

namespace fovea::cpu {
namespace {

std::vector<float> random_x(int64_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.2f, 1.0f);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = normal(random);
  x[1] = 30.0f;  // the part it is in is coarse
  return x;
}

// What quant_gemv has a form for, down to none of it.
struct Form {
  const char* name;
  CpuFeatures features;
  bool runs = true;
  void (*kernel)(const QuantGemvSlice&) = nullptr;  // in place of what quant_gemv chooses
};
std::vector<Form> forms() {
  const CpuFeatures& all = cpu_features();
  return {{"vnni", all, all.avx512_vnni},
          {"avx_vnni", {.avx2 = true, .avx_vnni = true}, all.avx_vnni},
          {"avx_vnni as AVX-512 encodes it", {.avx2 = true}, all.avx512_vnni, &quant_gemv_avx_vnni_evex},
          {"avx2", {.avx2 = true}, all.avx2},
          {"portable", {}}};
}

struct Product {
  Product(const WeightView& w, const std::vector<float>& x, int32_t rows, const Form& form)
      : out(static_cast<size_t>(rows * w.rows), NAN), packed(static_cast<size_t>(quant_pieces(w.cols) * rows)) {
    quantise_x(x.data(), rows, w.cols, 0, rows, x_order(w, form.features), packed.data());
    const std::vector<float> bias(static_cast<size_t>(w.rows), 0.5f);
    const QuantGemvSlice slice{packed.data(), rows, w, bias.data(), out.data(), w.rows};
    form.kernel ? form.kernel(slice) : quant_gemv(slice, form.features);
  }
  std::vector<float> out;
  std::vector<QuantisedX> packed;
};

class QuantGemvTest : public ::testing::TestWithParam<int> {
 protected:
  QuantGemvTest() : type_(static_cast<WeightType>(GetParam())) {}

  // Whole pieces, and where the type has such rows a part of one.
  RandomMatrix matrix(int32_t group, int64_t rows = 5) const {
    const int64_t cols = weight_format(type_).block == 256 ? 1536 : weight_format(type_).block == 32 ? 1376 : 1365;
    RandomMatrix m(type_, rows, cols, group, 11);
    for (size_t i = 0; i < m.scales.size(); ++i) m.scales[i] += static_cast<uint32_t>(i) << 15;  // each group its own
    return m;
  }

  std::vector<RandomMatrix> matrices() const {
    std::vector<RandomMatrix> all;
    for (const int32_t group : {32, 64, 96, 128, 1024, 1 << 20}) {
      if (group == 32 || weight_format(type_).scaled) all.push_back(matrix(group));
    }
    return all;
  }

  // Against float64 sums of dequantised weights and x as it was rounded.
  void expect_right(const Form& form) {
    for (const RandomMatrix& m : matrices()) expect_right(m, m.view(), random_x(16 * m.cols), form);
  }
  // multiplied: m, as it is or interleaved.
  void expect_right(const RandomMatrix& m, const WeightView& multiplied, const std::vector<float>& x, const Form& form,
                    double most = 3e-6) {
    std::vector<float> w(static_cast<size_t>(m.cols));
    std::vector<QuantisedX> rounded(static_cast<size_t>(quant_pieces(m.cols) * 16));
    quantise_x(x.data(), 16, m.cols, 0, 16, XOrder::natural, rounded.data());
    const Product all(multiplied, x, 16, form);
    for (int64_t j = 0; j < m.rows; ++j) {
      dequantize_row(m.view(), j, w.data());
      for (int64_t r = 0; r < 16; ++r) {
        double sum = 0.5, size = 0.5, unrounded = 0.5, largest_error = 0;
        for (int64_t c = 0; c < m.cols; ++c) {
          const QuantisedX& piece = rounded[static_cast<size_t>(c / 256 * 16 + r)];
          const float xq = static_cast<float>(piece.code[c % 256]) * piece.scale[c % 256 / 16];
          sum += static_cast<double>(xq) * w[c];
          size += std::fabs(static_cast<double>(xq) * w[c]);
          unrounded += static_cast<double>(x[r * m.cols + c]) * w[c];
          largest_error += std::fabs(w[c]) * piece.scale[c % 256 / 16] * 0.501;
        }
        ASSERT_LT(std::fabs(all.out[r * m.rows + j] - sum) / size, most) << form.name << ", row " << r << ", output " << j;
        ASSERT_LT(std::fabs(all.out[r * m.rows + j] - unrounded), largest_error + size * most);
      }
    }
    for (const int32_t rows : {1, 2, 3, 4, 5, 7, 11}) {
      const Product some(multiplied, x, rows, form);
      for (size_t i = 0; i < some.out.size(); ++i) ASSERT_EQ(some.out[i], all.out[i]) << form.name << ", " << rows << " rows";
    }
  }

  const WeightType type_;
};

TEST_P(QuantGemvTest, EachTargetRoundsAndSums) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    expect_right({hwy::TargetName(target), {}});
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

TEST_P(QuantGemvTest, EachFormSumsRoundedProducts) {
  for (const Form& form : forms()) {
    if (form.runs) expect_right(form);
  }
}

// Both sum the same integers.
TEST_P(QuantGemvTest, AvxVnniHasTheBitsOfAvx2) {
  for (const Form& form : forms()) {
    if (!form.runs || std::string(form.name).rfind("avx_vnni", 0) != 0) continue;
    for (const RandomMatrix& m : matrices()) {
      const std::vector<float> x = random_x(16 * m.cols);
      for (const int32_t rows : {1, 3, 16}) {
        EXPECT_EQ(Product(m.view(), x, rows, form).out, Product(m.view(), x, rows, {"avx2", {.avx2 = true}}).out) << form.name;
      }
    }
  }
}

// Codes at the ends of their range, with codes of x at the ends of theirs: no sum of 16 bits may overflow.
TEST_P(QuantGemvTest, SumsTheLargestCodes) {
  const RandomMatrix random = matrix(32);
  const auto bytes = static_cast<size_t>(weight_format(type_).bytes);
  for (const uint8_t fill : {0x00, 0x7f, 0x80, 0xff}) {
    RandomMatrix m = random;
    for (size_t at = 0; at < bytes; ++at) {
      bool varies = bytes == 1;  // others are a block's float16 numbers and exponents
      for (size_t i = at; i < m.data.size(); i += bytes) varies = varies || random.data[i] != random.data[at];
      for (size_t i = at; varies && i < m.data.size(); i += bytes) m.data[i] = fill;
    }
    std::vector<float> x(static_cast<size_t>(16 * m.cols), 1.0f);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int64_t>(i) / m.cols % 2 == 0 ? 1.0f : i % 4 < 2 ? -1.0f : 1.0f;
    for (const Form& form : forms()) {
      if (form.runs) expect_right(m, m.view(), x, form, 1e-5);  // what makes codes unsigned cancels here
    }
  }
}

TEST_P(QuantGemvTest, SumsInterleavedRows) {
  RandomMatrix m = matrix(0, 48);
  if (!gains_interleaved(m.view(), {.avx512_vnni = true})) GTEST_SKIP() << "stays as files have it";
  // Every row and block its own.
  for (size_t i = 0; i < m.data.size(); i += static_cast<size_t>(weight_format(type_).bytes)) {
    const size_t d = type_ == WeightType::q4_k ? i : i + 208;
    m.data[d] = static_cast<uint8_t>(m.data[d] + i / 16);
  }
  std::vector<uint8_t> together(m.data.size());
  interleave(m.view(), together.data());
  WeightView w = m.view();
  w.data = together.data();
  w.interleaved = true;
  for (const Form& form : forms()) {
    if (form.runs && !form.kernel) expect_right(m, w, random_x(16 * m.cols), form);
  }
}

std::vector<int> types() {
  std::vector<int> all;
  for (int i = 0; i < kWeightTypes; ++i) {
    if (quant_gemv_takes(static_cast<WeightType>(i))) all.push_back(i);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Types, QuantGemvTest, ::testing::ValuesIn(types()),
                         [](const auto& info) { return std::string(weight_type_name(static_cast<WeightType>(info.param))); });

}  // namespace
}  // namespace fovea::cpu
