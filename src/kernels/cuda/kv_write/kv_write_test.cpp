#include "kernels/cuda/kv_write/kv_write.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/cuda/gpu_test_util.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/kv_write.h"

namespace fovea {
namespace {

using testing::device_ok;
using testing::DeviceArray;

constexpr uint64_t kUntouched = 0x5a5a5a5a5a5a5a5aull;

struct Case {
  int tokens, heads, kv_heads, dim, block_size;
  DType dtype;
  KvLayout layout = KvLayout::hnd;
  int rope_dim = 0;
  bool interleaved = false;
  bool norm = true;
  int bits = 0;  // 0: no codes
  bool own_code_blocks = false;
  bool factor = false;
  DType rows = DType::f32;  // of q, k and v
  bool nhd = false;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.tokens << " tokens, " << c.heads << "/" << c.kv_heads << " heads, d " << c.dim << ", bs " << c.block_size
               << ", " << dtype_name(c.dtype) << ", rope " << c.rope_dim << ", bits " << c.bits;
  }
};

std::vector<Case> cases() {
  using enum KvLayout;
  std::vector<Case> all;
  for (int tokens : {1, 15, 16, 17}) {
    all.push_back({tokens, 32, 8, 128, 16, DType::bf16, hnd, 128, false, true, 128});
    all.push_back({tokens, 5, 1, 64, 16, DType::f32, hnd, 64, true, false, 64});
    all.push_back({tokens, 7, 7, 80, 8, DType::f16, classic, 32, false, true, 256});
  }
  for (int dim : {64, 80, 96, 128, 256}) {
    for (int bits : {64, 128, 256}) all.push_back({19, 6, 2, dim, 32, DType::bf16, hnd, dim, false, true, bits, true});
    for (DType t : {DType::fp8_e4m3, DType::fp8_e5m2}) {
      all.push_back({5, 3, 3, dim, 256, t, hnd, dim / 4, true, true, 128});
      all.push_back({5, 4, 2, dim, 16, t, classic, 16, false, false, 0});
    }
  }
  for (DType t : {DType::f32, DType::f16, DType::bf16}) {
    all.push_back({23, 6, 2, 112, 64, t, classic, 112, true, true, 128});
    all.push_back({23, 6, 2, 160, 64, t, hnd, 0, false, true, 0});
    all.push_back({300, 8, 2, 192, 16, t, hnd, 128, false, true, 128});
    for (int dim : {64, 80, 256}) all.push_back({21, 6, 3, dim, 16, t, hnd, 32, false, true, dim == 80 ? 192 : 64, true, true});
  }
  all.push_back({21, 6, 3, 64, 8, DType::fp8_e4m3, hnd, 64, false, true, 64, false, true});
  for (DType t : {DType::bf16, DType::f16}) {
    all.push_back({19, 6, 2, 64, 16, DType::bf16, hnd, 64, false, true, 64, false, false, t});
    all.push_back({9, 5, 1, 80, 16, DType::fp8_e4m3, classic, 32, true, true, 128, false, true, t});
    all.push_back({37, 0, 3, 32, 16, t, hnd, 0, false, false, 0, false, false, t, true});
    all.push_back({37, 4, 4, 128, 32, DType::f32, hnd, 128, true, true, 128, true, false, t, true});
  }
  return all;
}

// The Params of a case over host memory, and what they point to.
struct Problem {
  explicit Problem(const Case& shape) : c(shape) {
    fill_inputs();
    choose_slots();
    const int64_t tile = static_cast<int64_t>(c.block_size) * c.dim;
    p.tokens = c.tokens, p.num_heads = c.heads;
    p.rope_dim = c.rope_dim, p.rope_interleaved = c.interleaved;
    p.kv.dtype = c.dtype, p.kv.layout = c.layout, p.kv.block_size = c.block_size;
    p.kv.kv_heads = c.kv_heads, p.kv.head_dim = c.dim;
    p.dtype = c.rows;
    p.kv.head_stride = tile + 16, p.kv.block_stride = c.kv_heads * (tile + 16) + 32;
    if (c.nhd) p.kv.head_stride = c.dim, p.kv.token_stride = c.kv_heads * c.dim;
    k_cache.assign(blocks * p.kv.block_stride * dtype_bytes(c.dtype), 0x5a);
    v_cache = k_cache;
    if (c.bits == 0) return;
    rotation = HashRotation::make(c.dim, c.bits).value();
    codec = rotation.codec();
    codec.length_factor = c.factor;
    codes.head_stride = head_code_words(codec, c.block_size), codes.block_stride = c.kv_heads * codes.head_stride;
    code_words.assign(blocks * codes.block_stride, kUntouched);
    signs.assign(codec.signs, codec.signs + codec.rotations * 3 * codec.n);
  }

  void fill_inputs() {
    std::normal_distribution<float> normal;
    auto draw = [&](std::vector<float>& v, int64_t size) {
      for (int64_t i = 0; i < size; ++i) v.push_back(normal(rng));
    };
    auto draw_rows = [&](std::vector<uint8_t>& rows, int64_t size) {
      rows.resize(size * dtype_bytes(c.rows));
      for (int64_t i = 0; i < size; ++i) store_f32(rows.data(), c.rows, i, normal(rng));
    };
    draw_rows(q, int64_t{c.tokens} * c.heads * c.dim);
    draw_rows(k, int64_t{c.tokens} * c.kv_heads * c.dim);
    draw_rows(v, int64_t{c.tokens} * c.kv_heads * c.dim);
    draw(q_norm, c.dim), draw(k_norm, c.dim);
    for (int i = 0; i < c.tokens * c.rope_dim / 2; ++i) {
      const float angle = 3 * normal(rng);
      cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
    }
    for (int h = 0; h < c.kv_heads; ++h) k_scale.push_back(0.013f * (h + 1)), v_scale.push_back(0.7f / (h + 1));
  }

  // Distinct slots in random order; every fifth token is not written.
  void choose_slots() {
    blocks = (c.tokens + c.block_size - 1) / c.block_size + 2;
    std::vector<int64_t> order(blocks * c.block_size);
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::shuffle(order.begin(), order.end(), rng);
    for (int t = 0; t < c.tokens; ++t) {
      slots.push_back(t % 5 == 4 ? -1 : order[t]);
      code_slots.push_back(t % 7 == 6 ? -1 : order[order.size() - 1 - t]);
    }
  }

  // `at` maps each array to the memory that the Params shall point to.
  template <typename At>
  void point(KvWriteParams& to, CodesView& view, const At& at) {
    to = p;
    view = codes;
    to.q = at(q), to.k = at(k), to.v = at(v);
    to.q_norm = c.norm ? at(q_norm) : nullptr, to.k_norm = c.norm ? at(k_norm) : nullptr;
    to.cos = at(cos), to.sin = at(sin);
    to.slot_mapping = at(slots), to.code_mapping = c.own_code_blocks ? at(code_slots) : nullptr;
    to.kv.k = at(k_cache), to.kv.v = at(v_cache);
    if (is_fp8(c.dtype)) to.kv.k_scale = at(k_scale), to.kv.v_scale = at(v_scale);
    if (c.bits == 0) return;
    view.codec = codec;
    view.codec.signs = at(signs);
    view.codes = at(code_words);
    to.codes = &view;
  }

  Case c;
  std::mt19937 rng{7};
  HashRotation rotation = HashRotation::make(64, 64).value();
  HashCodec codec;
  std::vector<uint8_t> q, k, v;
  std::vector<float> q_norm, k_norm, cos, sin, k_scale, v_scale, signs;
  std::vector<int64_t> slots, code_slots;
  std::vector<uint8_t> k_cache, v_cache;
  std::vector<uint64_t> code_words;
  int64_t blocks = 0;
  KvWriteParams p;
  CodesView codes;
};

// Copies of a Problem's arrays on the device.
class OnDevice {
 public:
  explicit OnDevice(Problem& problem) : problem_(problem) {
    problem.point(p, view_, [&]<typename T>(const std::vector<T>& host) { return copy(host); });
  }
  template <typename T>
  std::vector<T> read(const std::vector<T>& host) const {
    for (const auto& [from, array] : arrays_) {
      if (from != &host) continue;
      const std::vector<uint8_t> bytes = array.download();
      return {reinterpret_cast<const T*>(bytes.data()), reinterpret_cast<const T*>(bytes.data()) + host.size()};
    }
    ADD_FAILURE() << "not on the device";
    return {};
  }
  KvWriteParams p;

 private:
  template <typename T>
  T* copy(const std::vector<T>& host) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(host.data());
    arrays_.emplace_back(&host, DeviceArray<uint8_t>({bytes, bytes + host.size() * sizeof(T)}));
    return reinterpret_cast<T*>(arrays_.back().second.data());
  }

  Problem& problem_;
  CodesView view_;
  std::vector<std::pair<const void*, DeviceArray<uint8_t>>> arrays_;
};

class KvWriteOnGpu : public testing::OnGpu<::testing::TestWithParam<Case>> {};

size_t differing(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, size_t element) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); i += element) count += !std::equal(&a[i], &a[i] + element, &b[i]);
  return count;
}

// Codes of the keys that lie in the cache, computed by the reference.
void expect_codes_of_cache(const Problem& problem, const std::vector<uint8_t>& k_cache, const std::vector<uint64_t>& got) {
  const Case& c = problem.c;
  std::vector<uint64_t> want(got.size(), kUntouched);
  for (int t = 0; t < c.tokens; ++t) {
    const int64_t slot = problem.slots[t], code = c.own_code_blocks ? problem.code_slots[t] : slot;
    if (slot < 0 || code < 0) continue;
    for (int h = 0; h < c.kv_heads; ++h) {
      std::vector<float> key(c.dim);
      const int64_t base = slot / c.block_size * problem.p.kv.block_stride + h * problem.p.kv.head_stride;
      const int64_t x = 16 / static_cast<int64_t>(dtype_bytes(c.dtype)), off = slot % c.block_size;
      for (int i = 0; i < c.dim; ++i) {
        const int64_t at = c.layout == KvLayout::hnd ? off * problem.p.kv.tokens_apart() + i : (i / x * c.block_size + off) * x + i % x;
        key[i] = load_as_f32(k_cache.data(), c.dtype, base + at) * (is_fp8(c.dtype) ? problem.k_scale[h] : 1.0f);
      }
      CodesView view = problem.codes;
      view.codes = want.data(), view.codec = problem.codec;
      ref::write_code(view, c.block_size, code, h, key.data());
    }
  }
  EXPECT_EQ(got, want);
}

TEST_P(KvWriteOnGpu, EqualsTheReference) {
  Problem problem(GetParam());
  OnDevice device(problem);
  KvWriteParams on_host;
  CodesView view;
  problem.point(on_host, view, []<typename T>(std::vector<T>& host) { return host.data(); });

  cuda::kv_write(device.p, {handle()});
  ASSERT_TRUE(device_ok());
  const std::vector<uint8_t> q = device.read(problem.q);
  const std::vector<uint8_t> k_cache = device.read(problem.k_cache), v_cache = device.read(problem.v_cache);
  if (GetParam().bits > 0) expect_codes_of_cache(problem, k_cache, device.read(problem.code_words));

  ref::kv_write(on_host);
  const DType rows = GetParam().rows;
  for (size_t i = 0; i < q.size() / dtype_bytes(rows); ++i) {
    const float got = load_as_f32(q.data(), rows, i), want = load_as_f32(problem.q.data(), rows, i);
    ASSERT_NEAR(got, want, (rows == DType::f32 ? 1e-6f : 0x1p-7f) * std::max(1.0f, std::abs(got))) << i;
  }
  EXPECT_EQ(v_cache, problem.v_cache);
  // A compiler may fuse what the reference multiplies and adds: then a key differs in its last bit, rarely.
  const size_t element = dtype_bytes(GetParam().dtype);
  EXPECT_LE(differing(k_cache, problem.k_cache, element), k_cache.size() / element / 1000);
}

TEST_P(KvWriteOnGpu, CodesAreMadeAgainFromTheCache) {
  if (GetParam().bits == 0) return;
  Problem problem(GetParam());
  OnDevice written(problem);
  cuda::kv_write(written.p, {handle()});
  ASSERT_TRUE(device_ok());
  const std::vector<uint64_t> want = written.read(problem.code_words);
  problem.k_cache = written.read(problem.k_cache);
  OnDevice loaded(problem);  // its codes are untouched
  cuda::encode_codes({.tokens = loaded.p.tokens,
                      .slot_mapping = loaded.p.slot_mapping,
                      .code_mapping = loaded.p.code_mapping,
                      .kv = loaded.p.kv,
                      .codes = *loaded.p.codes},
                     handle());
  ASSERT_TRUE(device_ok());
  EXPECT_EQ(loaded.read(problem.code_words), want);
}

INSTANTIATE_TEST_SUITE_P(Cases, KvWriteOnGpu, ::testing::ValuesIn(cases()));

}  // namespace
}  // namespace fovea
