#include "kernels/ref/mla.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/common/checks.h"
#include "kernels/common/convert.h"
#include "kernels/ref/dense_math.h"
#include "kernels/ref/softmax_sum.h"

namespace fovea::ref {
namespace {

// Element where the entry of slot * bs + offset begins.
int64_t entry_at(const KvView& kv, int64_t slot) {
  return slot / kv.block_size * kv.block_stride + slot % kv.block_size * kv.head_dim;
}

// Is the key at `pos` one that the Selection names for this query row?
bool selected(const Selection* sel, int32_t row, int64_t pos) {
  if (sel == nullptr || sel->kind == Selection::Kind::all) return true;
  FOVEA_CHECK(sel->heads == HeadGroups::all);
  int32_t r = row;
  if (sel->row_indptr != nullptr) {
    for (r = 0; sel->row_indptr[r + 1] <= row;) ++r;
  }
  FOVEA_CHECK(r < sel->rows);
  const auto unit = static_cast<int32_t>(pos / sel->tokens_per_unit);
  const int64_t list = static_cast<int64_t>(r) * sel->groups;
  if (sel->kind == Selection::Kind::range) return unit >= sel->begins[list] && unit < sel->ends[list];
  const int32_t* units = sel->units + list * sel->capacity;
  return std::binary_search(units, units + sel->counts[list], unit);
}

// kv_b's rows of one head begin here.
int64_t head_row(int32_t head, const MlaShape& shape) { return static_cast<int64_t>(head) * (shape.nope + shape.v); }

}  // namespace

void mla_write(const MlaWriteParams& p) {
  const auto [latent, rope_dim, nope, v] = p.shape;
  const int32_t entry = latent + rope_dim;
  check_latent_plane(*p.kv, latent);
  FOVEA_CHECK(p.kv->head_dim == entry);
  std::vector<float> row(entry);
  for (int32_t t = 0; t < p.tokens; ++t) {
    const float* cos = p.cos + static_cast<int64_t>(t) * (rope_dim / 2);
    const float* sin = p.sin + static_cast<int64_t>(t) * (rope_dim / 2);
    for (int32_t h = 0; h < p.num_heads; ++h) {
      float* q = p.q + (static_cast<int64_t>(t) * p.num_heads + h) * (nope + rope_dim);
      rope(q + nope, rope_dim, p.rope_interleaved, cos, sin);
    }
    if (p.slot_mapping[t] < 0) continue;
    std::copy_n(p.kv_a + static_cast<int64_t>(t) * entry, entry, row.begin());
    norm(row.data(), p.norm, latent, p.norm_eps);
    rope(row.data() + latent, rope_dim, p.rope_interleaved, cos, sin);
    const int64_t at = entry_at(*p.kv, p.slot_mapping[t]);
    for (int32_t i = 0; i < entry; ++i) store_f32(p.kv->k, p.kv->dtype, at + i, row[i]);
  }
}

void mla_absorb(const MlaAbsorbParams& p) {
  const auto [latent, rope_dim, nope, v] = p.shape;
  for (int64_t i = 0; i < static_cast<int64_t>(p.rows) * p.num_heads; ++i) {
    const int64_t first = head_row(static_cast<int32_t>(i % p.num_heads), p.shape);
    const float* q = p.q + i * (nope + rope_dim);
    float* out = p.out + i * (latent + rope_dim);
    for (int32_t l = 0; l < latent; ++l) {
      double sum = 0.0;
      for (int32_t n = 0; n < nope; ++n)
        sum += q[n] * static_cast<double>(load_as_f32(p.kv_b.data, p.kv_b.dtype(), (first + n) * latent + l));
      out[l] = static_cast<float>(sum);
    }
    std::copy_n(q + nope, rope_dim, out + latent);
  }
}

void mla_unabsorb(const MlaUnabsorbParams& p) {
  const auto [latent, rope_dim, nope, v] = p.shape;
  for (int64_t i = 0; i < static_cast<int64_t>(p.rows) * p.num_heads; ++i) {
    const int64_t first = head_row(static_cast<int32_t>(i % p.num_heads), p.shape) + nope;
    for (int32_t j = 0; j < v; ++j) {
      double sum = 0.0;
      for (int32_t l = 0; l < latent; ++l) {
        sum += p.x[i * latent + l] * static_cast<double>(load_as_f32(p.kv_b.data, p.kv_b.dtype(), (first + j) * latent + l));
      }
      p.out[i * v + j] = static_cast<float>(sum);
    }
  }
}

void mla_attend(const MlaAttendParams& p) {
  const KvView& kv = *p.kv;
  check_latent_plane(kv, p.latent);
  FOVEA_CHECK(p.rows == p.q_indptr[p.num_seqs]);
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int32_t end = p.q_indptr[s + 1];
    for (int32_t row = p.q_indptr[s]; row < end; ++row) {
      const int64_t pos = static_cast<int64_t>(p.seq_len[s]) - (end - row);
      FOVEA_CHECK(pos >= 0 || p.seq_len[s] == 0);
      std::vector<int64_t> entries;  // of the keys that the row sees
      for (int64_t t = 0; t <= pos; ++t) {
        if (!selected(p.selection, row, t)) continue;
        const int64_t slot = kv.table.slots[s * kv.table.seq_stride + t / kv.block_size];
        FOVEA_CHECK(slot >= 0);
        entries.push_back(entry_at(kv, slot * kv.block_size + t % kv.block_size));
      }
      for (int32_t h = 0; h < p.num_heads; ++h) {
        const int64_t at = static_cast<int64_t>(row) * p.num_heads + h;
        const auto key = [&](int64_t j, int32_t i) { return load_as_f32(kv.k, kv.dtype, entries[j] + i); };
        const auto score = [&](int64_t j) {
          return p.scale * dot(p.q + at * kv.head_dim, kv.head_dim, [&](int32_t i) { return key(j, i); });
        };
        softmax_sum(static_cast<int64_t>(entries.size()), p.latent, score, key, p.out + at * p.latent,
                    p.lse != nullptr ? p.lse + at : nullptr);
      }
    }
  }
}

void mla_gather(const MlaGatherParams& p) {
  const KvView& kv = *p.kv;
  check_latent_plane(kv, p.latent);
  const int32_t rope_dim = kv.head_dim - p.latent;
  int64_t to = 0;
  p.cu_lengths[0] = 0;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const auto [first, end] = p.range(p.q_indptr[s + 1] - p.q_indptr[s], p.seq_len[s]);
    for (int32_t pos = first; pos < end; ++pos, ++to) {
      const int64_t slot = kv.table.slots[s * kv.table.seq_stride + pos / kv.block_size];
      const int64_t at = entry_at(kv, slot * kv.block_size + pos % kv.block_size);
      for (int32_t i = 0; i < p.latent; ++i) p.latent_out[to * p.latent + i] = load_as_f32(kv.k, kv.dtype, at + i);
      for (int32_t i = 0; i < rope_dim; ++i) p.rope_out[to * rope_dim + i] = load_as_f32(kv.k, kv.dtype, at + p.latent + i);
    }
    p.cu_lengths[s + 1] = static_cast<int32_t>(to);
  }
  FOVEA_CHECK(to == p.tokens);
}

}  // namespace fovea::ref
