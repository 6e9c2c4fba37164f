// Random weights for benchmarks of shapes that nobody ships: fast to fill, cheap in memory, the same
// everywhere.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/splitmix64.h"
#include "kernels/common/convert.h"
#include "kernels/common/random_weights.h"
#include "model/checkpoint.h"

namespace fovea {
namespace {

constexpr int kTableBits = 12;
constexpr size_t kTableSize = size_t{1} << kTableBits;
constexpr double kDeviation = 0.02;

using NormalTable = std::array<uint16_t, kTableSize>;

// Entry i is the middle of the i-th of 4,096 equally likely slices of the normal distribution: 12 random bits
// then make one weight, where std::normal_distribution would take 30 times as long.
NormalTable make_normal_table() {
  NormalTable table{};
  for (size_t i = 0; i < kTableSize; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kTableSize;
    double low = -8, high = 8;
    for (int step = 0; step < 40; ++step) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
    }
    table[i] = f32_to_bf16(static_cast<float>(low * kDeviation));
  }
  return table;
}

// Anonymous memory, handed out in pieces of 64-byte alignment.
class Area {
 public:
  static Result<std::shared_ptr<Area>> make(size_t bytes) {
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
      return Status::resource_exhausted("no memory for " + std::to_string(bytes) + " bytes of dummy weights");
    }
    ::madvise(base, bytes, MADV_HUGEPAGE);  // fewer page faults while it is filled; may be refused
    return std::make_shared<Area>(base, bytes);
  }
  Area(void* base, size_t bytes) : base_(base), bytes_(bytes) {}
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;
  ~Area() { ::munmap(base_, bytes_); }

  static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }
  void* take(size_t bytes) {
    void* at = static_cast<char*>(base_) + used_;
    used_ += rounded(bytes);
    FOVEA_CHECK(used_ <= bytes_);
    return at;
  }

 private:
  void* base_;
  size_t bytes_;
  size_t used_ = 0;
};

void fill(uint16_t* out, size_t count, const NormalTable& table, uint64_t seed) {
  constexpr uint64_t kMask = kTableSize - 1;
  uint64_t state = seed;
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const uint64_t bits = splitmix64(state);
    for (int j = 0; j < 4; ++j) out[i + j] = table[bits >> (16 * j) & kMask];
  }
  for (uint64_t bits = splitmix64(state); i < count; ++i, bits >>= 16) out[i] = table[bits & kMask];
}

// Of `type` where rows are whole blocks and the weight may be quantised.
WeightView dummy_view(const ListedWeight& w, WeightType type) {
  if (must_be_plain(w.role) || w.cols % weight_format(type).block != 0) type = WeightType::bf16;
  WeightView view = {nullptr, nullptr, type, w.rows, w.cols};
  if (weight_format(type).scaled) view.group = static_cast<int32_t>(type == WeightType::int4 && w.cols % 128 == 0 ? 128 : w.cols);
  return view;
}

void fill_matrix(void* data, const NormalTable& table, const RandomWeights* random, uint64_t seed, WeightView* w) {
  w->data = data;
  if (w->type == WeightType::bf16) return fill(static_cast<uint16_t*>(data), w->data_bytes() / sizeof(uint16_t), table, seed);
  random->fill(seed, w->rows * w->cols, static_cast<uint8_t*>(data));
  if (w->scales_per_row() == 0) return;
  auto* scales = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(data) + Area::rounded(w->data_bytes()));
  std::fill_n(scales, w->rows * w->scales_per_row(), random->scale());
  w->scales = scales;
}

}  // namespace

Result<ModelWeights> dummy_weights(const ModelConfig& config, uint64_t seed, WeightType type) {
  if (is_plain(type) && type != WeightType::bf16)
    return Status::invalid_argument("dummy weights of type " + std::string(weight_type_name(type)) +
                                    ": bf16 or a quantised type expected");
  ModelWeights out;
  size_t area_bytes = 0;
  FOVEA_TRY(for_each_weight(config, &out, [&](const ListedWeight& w) {
    if (w.matrix) *w.matrix = dummy_view(w, type);
    area_bytes += Area::rounded(w.matrix ? w.matrix->bytes() + 64 : static_cast<size_t>(w.rows) * sizeof(float));
    return Status();
  }));
  FOVEA_ASSIGN(const std::shared_ptr<Area> area, Area::make(area_bytes));
  const NormalTable table = make_normal_table();
  std::optional<RandomWeights> random;
  if (!is_plain(type)) random.emplace(type, static_cast<float>(kDeviation));
  uint64_t tensor_seed = seed;
  FOVEA_TRY(for_each_weight(config, &out, [&](const ListedWeight& w) {
    if (w.matrix) {
      void* data = area->take(w.matrix->bytes() + 64);
      fill_matrix(data, table, random ? &*random : nullptr, splitmix64(tensor_seed), w.matrix);
    } else {
      auto* data = static_cast<float*>(area->take(static_cast<size_t>(w.rows) * sizeof(float)));
      std::fill_n(data, w.rows, w.role == WeightRole::norm ? 1.0f : 0.0f);
      *w.vector = {data, static_cast<size_t>(w.rows)};
    }
    return Status();
  }));
  out.owner = area;
  return out;
}

}  // namespace fovea
