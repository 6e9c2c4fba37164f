// The method over a small cache, with keys written by the operation that a forward pass uses.
#include "sparse/dsa/dsa.h"

#include "base/thread_pool.h"
#include "device/stream.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ref/dsa_topk.h"
#include "kernels/ref/ref_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace fovea {
namespace {

constexpr int32_t kBlock = 8, kBlocksMax = 12, kSeqs = 2, kRowsMax = 16, kTopk = 20;

ModelShape shape_of() {
  ModelShape s;
  s.num_layers = 4;
  s.num_heads = 4;
  s.kv_heads = 1;
  s.head_dim = 96;
  s.block_size = kBlock;
  s.index_heads = 3;
  s.index_dim = 32;
  s.index_topk = kTopk;
  s.shared_index_layers = {2, 3};
  return s;
}

struct Row {
  int32_t seq, len;
};
using List = std::vector<int32_t>;

class World {
 public:
  explicit World(DsaOptions options) : method_(options) {
    EXPECT_TRUE(method_.attach(shape_, {kRowsMax, kBlock * kBlocksMax}, *device_, staging_).ok());
    EXPECT_TRUE(staging_.commit().ok());
    table_.resize(kSeqs * kBlocksMax);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), rng_);
    for (const PlaneSpec& spec : method_.planes()) {
      EXPECT_EQ(spec.heads, 1);
      memory_.emplace_back(static_cast<size_t>(spec.bytes_per_block) * table_.size(), std::byte{0xff});
    }
    for (auto& m : memory_) planes_.push_back(m.data());
    OpsLimits limits;
    limits.max_rows = kRowsMax;
    limits.index_heads = shape_.index_heads;
    limits.index_dim = shape_.index_dim;
    limits.index_topk = kTopk;
    EXPECT_TRUE(cpu_->prepare(limits).ok());
    write_keys();
  }

  // Rows of one group; those of a sequence stand together.
  Selection select(const std::vector<Row>& rows, bool prefill, Ops& ops) {
    Group& g = groups_[prefill];
    g = {};
    g.indptr = {0};
    for (const Row& r : rows) {
      if (g.seqs.empty() || g.seqs.back() != r.seq) {
        g.indptr.push_back(g.indptr.back());
        g.seq_len.push_back(0);
      }
      g.seqs.push_back(r.seq);
      g.lens.push_back(r.len);
      ++g.indptr.back();
      g.seq_len.back() = r.len;
    }
    g.q = randoms(static_cast<int64_t>(rows.size()) * shape_.index_heads * shape_.index_dim);
    g.weights = randoms(static_cast<int64_t>(rows.size()) * shape_.index_heads);
    g.step.rows = static_cast<int32_t>(rows.size());
    g.step.prefill = prefill;
    g.step.row_seq = g.step.device_row_seq = g.seqs.data();
    g.step.row_len = g.step.device_row_len = g.lens.data();
    g.step.num_seqs = static_cast<int32_t>(g.seq_len.size());
    g.step.q_indptr = g.indptr.data();
    g.step.seq_len = g.seq_len.data();
    EXPECT_TRUE(method_.step_begin(g.step).ok());
    SelectInputs in;
    in.step = &g.step;
    in.index_q = g.q.data();
    in.index_weights = g.weights.data();
    in.block_table = {table_.data(), kBlocksMax, 0};
    in.planes = planes_.data();
    Selection out;
    EXPECT_TRUE(method_.select(in, ops, stream_, &out).ok());
    EXPECT_EQ(out.kind, Selection::Kind::list);
    EXPECT_EQ(out.heads, HeadGroups::all);
    EXPECT_EQ(out.tokens_per_unit, 1);
    EXPECT_EQ(out.rows, g.step.rows);
    return out;
  }

  // What the definition gives row r of the last select() of that group.
  List by_hand(int32_t r, bool prefill) {
    const Group& g = groups_[prefill];
    IndexTopkParams p;
    p.rows = g.step.rows;
    p.heads = shape_.index_heads;
    p.q = g.q.data();
    p.weights = g.weights.data();
    p.row_seq = g.seqs.data();
    p.row_len = g.lens.data();
    method_.index_keys(planes_.data(), &p.keys);
    p.keys.block_table = table_.data();
    p.keys.table_stride = kBlocksMax;
    std::vector<float> logits(g.lens[r]);
    ref::index_logits(p, r, 1, logits.data(), g.lens[r]);
    List chosen(kTopk);
    chosen.resize(ref::topk_positions(logits.data(), g.lens[r], kTopk, chosen.data()));
    return chosen;
  }

  static List row(const Selection& s, int32_t r) {
    return {s.units + int64_t{r} * s.capacity, s.units + int64_t{r} * s.capacity + s.counts[r]};
  }
  int32_t slot(int32_t seq, int32_t position) const {
    return table_[seq * kBlocksMax + position / kBlock] * kBlock + position % kBlock;
  }
  Dsa& method() { return method_; }
  Ops& cpu() { return *cpu_; }
  Ops& ref() { return *ref_; }

 private:
  struct Group {
    List seqs, lens, indptr, seq_len;
    std::vector<float> q, weights;
    StepRows step;
  };

  std::vector<float> randoms(int64_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> v(n);
    for (float& x : v) x = normal(rng_);
    return v;
  }

  void write_keys() {
    const int32_t tokens = kSeqs * kBlocksMax * kBlock;
    std::vector<float> q = randoms(int64_t{tokens} * shape_.index_heads * shape_.index_dim);
    std::vector<float> k = randoms(int64_t{tokens} * shape_.index_dim);
    std::vector<float> w(int64_t{tokens} * shape_.index_heads), norm(shape_.index_dim, 1.0f), bias(shape_.index_dim, 0.0f);
    std::vector<int64_t> slots;
    for (int32_t t = 0; t < tokens; ++t) slots.push_back(slot(t / (kBlocksMax * kBlock), t % (kBlocksMax * kBlock)));
    IndexWriteParams p;
    p.tokens = tokens;
    p.heads = shape_.index_heads;
    p.q = q.data();
    p.k = k.data();
    p.weights = w.data();
    p.norm_weight = norm.data();
    p.norm_bias = bias.data();
    p.slot_mapping = slots.data();
    EXPECT_TRUE(method_.index_keys(planes_.data(), &p.keys));
    ref_->index_write(p, stream_);
  }

  const ModelShape shape_ = shape_of();
  std::mt19937 rng_{3};
  std::unique_ptr<Device> device_ = make_cpu_device();
  StepMemory staging_{*device_};
  ThreadPool pool_{2};
  std::unique_ptr<CpuOps> cpu_ = make_cpu_ops(pool_, Numerics::f32);
  std::unique_ptr<Ops> ref_ = make_ref_ops();
  CpuStream stream_;
  Dsa method_;
  List table_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte*> planes_;
  Group groups_[2];
};

const std::vector<Row> kDecodes = {{0, 90}, {1, 33}, {1, 34}, {1, 35}};
const std::vector<Row> kPrefills = {{0, 21}, {0, 22}, {0, 23}, {1, 95}, {1, 96}};

TEST(Dsa, ChoosesTheBestTokensOfEachRowInEveryPrecision) {
  for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
    World world({.precision = precision});
    for (Ops* ops : {&world.ref(), &world.cpu()}) {
      const Selection s = world.select(kDecodes, false, *ops);
      for (int32_t r = 0; r < s.rows; ++r) EXPECT_EQ(World::row(s, r), world.by_hand(r, false)) << r;
    }
  }
}

TEST(Dsa, PrefillAndDecodeChoicesLiveSideBySide) {
  World world({});
  const Selection prefill = world.select(kPrefills, true, world.cpu());
  const Selection decode = world.select(kDecodes, false, world.cpu());
  for (int32_t r = 0; r < prefill.rows; ++r) EXPECT_EQ(World::row(prefill, r), world.by_hand(r, true)) << r;
  for (int32_t r = 0; r < decode.rows; ++r) EXPECT_EQ(World::row(decode, r), world.by_hand(r, false)) << r;
}

TEST(Dsa, MaterialisedScoresChooseTheSame) {
  World streaming({}), materialised({.materialize = true});
  const Selection a = streaming.select(kPrefills, true, streaming.cpu());
  const Selection b = materialised.select(kPrefills, true, materialised.cpu());
  for (int32_t r = 0; r < a.rows; ++r) EXPECT_EQ(World::row(a, r), World::row(b, r)) << r;
}

TEST(Dsa, FewerTokensThanTheModelsMayBeRead) {
  World world({.topk = 7});
  const Selection s = world.select(kDecodes, false, world.cpu());
  EXPECT_EQ(s.capacity, 7);
  for (int32_t r = 0; r < s.rows; ++r) {
    const List best = world.by_hand(r, false), few = World::row(s, r);
    ASSERT_EQ(few.size(), 7u);
    EXPECT_TRUE(std::includes(best.begin(), best.end(), few.begin(), few.end()));
  }
  EXPECT_EQ(world.method().lineage(), "dsa topk=7 precision=exact");
  EXPECT_EQ(world.method().prefill_min_context(), 7);
}

TEST(Dsa, PlanesAreNamedByPrecision) {
  World exact({}), bf16({.precision = IndexPrecision::bf16}), fp8({.precision = IndexPrecision::fp8});
  EXPECT_EQ(exact.method().planes().at(0).name, "index_k.exact");
  EXPECT_EQ(exact.method().planes().at(0).bytes_per_block, 8 * 32 * 4);
  EXPECT_EQ(bf16.method().planes().at(0).name, "index_k.bf16");
  EXPECT_EQ(bf16.method().planes().size(), 1u);
  const auto planes = fp8.method().planes();
  ASSERT_EQ(planes.size(), 2u);
  EXPECT_EQ(planes[0].name, "index_k.fp8");
  EXPECT_EQ(planes[0].bytes_per_block, 8 * 32);
  EXPECT_EQ(planes[1].name, "index_scale.fp8");
  EXPECT_EQ(planes[1].bytes_per_block, 8 * 4);
  EXPECT_EQ(fp8.method().lineage(), "dsa topk=20 precision=fp8");
}

TEST(Dsa, TellsWhatItReads) {
  World world({}), fp8({.precision = IndexPrecision::fp8});
  const Dsa& m = world.method();
  EXPECT_EQ(m.estimate_blocks(17, 0), 3);
  EXPECT_EQ(m.estimate_blocks(20, 0), 3);
  EXPECT_EQ(m.estimate_blocks(1000, 0), 3);
  EXPECT_EQ(m.summary_bytes(20), 0);  // not scored
  EXPECT_EQ(m.summary_bytes(21), 21 * 32 * 4);
  EXPECT_EQ(fp8.method().summary_bytes(21), 21 * (32 + 4));
  EXPECT_EQ(m.reuse_layers(), (List{2, 3}));
  EXPECT_EQ(m.prefill_min_context(), 20);
}

TEST(Dsa, RefusesWhatDoesNotFit) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const auto refused = [&](DsaOptions options, ModelShape shape, const char* part) {
    StepMemory staging(*device);
    Dsa m(options);
    const Status s = m.attach(shape, {kRowsMax, 100}, *device, staging);
    EXPECT_FALSE(s.ok()) << part;
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  };
  ModelShape none = shape_of();
  none.index_heads = 0;
  refused({}, none, "no indexer");
  refused({.topk = kTopk + 1}, shape_of(), "topk 21");
  refused({.topk = -1}, shape_of(), "topk -1");
  ModelShape odd = shape_of();
  odd.index_dim = 96;
  refused({.precision = IndexPrecision::fp8}, odd, "96");
  odd.index_dim = 260;
  refused({}, odd, "260");
}

}  // namespace
}  // namespace fovea
