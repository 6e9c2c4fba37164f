// Summaries: who keeps which plane up to date. The first method to name a plane keeps it, codes belong to the fused cache
// write, indexer keys to the forward pass.
#include "model/forward.h"

#include "kernels/ref/ref_ops.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

enum class Keeps { nothing, codes, index };

// Notes what it was given to keep up to date.
class Recorder final : public Method {
 public:
  explicit Recorder(Keeps keeps = Keeps::nothing) : keeps_(keeps) {}
  std::string_view name() const override { return "recorder"; }
  std::string lineage() const override { return "dense"; }
  Status attach(const ModelShape&, const MethodLimits&, Device&, StepMemory&) override { return {}; }
  bool codes_view(std::byte* plane, CodesView* out) const override {
    out->codes = reinterpret_cast<uint64_t*>(plane);
    return keeps_ == Keeps::codes;
  }
  bool index_keys(std::byte* const* planes, IndexKeysView* out) const override {
    index_plane = planes[0];
    return keeps_ == Keeps::index;
  }
  void on_kv_written(const KvWritten& written, Ops&, Stream&) override {
    ++calls;
    tokens = written.tokens;
    planes.assign(written.planes, written.planes + 2);
  }
  Status select(const SelectInputs&, Ops&, Stream&, Selection*) override { return {}; }
  int64_t estimate_blocks(int64_t, int32_t) const override { return 0; }

  int calls = 0;
  int32_t tokens = 0;
  std::vector<std::byte*> planes;
  mutable std::byte* index_plane = nullptr;

 private:
  const Keeps keeps_;
};

class SummariesTest : public ::testing::Test {
 protected:
  SummariesTest() {
    KvCacheConfig c;
    c.num_layers = 2;
    c.num_blocks = 4;
    c.block_size = 8;
    c.kv_heads = 1;
    c.head_dim = 16;
    c.extra_planes = {{"a", 1, 64, Residency::resident}, {"b", 1, 64, Residency::resident}, {"c", 1, 64, Residency::resident}};
    kv_ = KvCache::create(c).value();
  }
  PlaneIdx plane(const char* name) const { return *kv_->find_plane(name); }
  std::byte* at(const char* name, int32_t layer) const { return kv_->plane(plane(name), LayerIdx{layer}); }
  void add(Recorder& m, const char* first, const char* second) {
    const PlaneIdx planes[] = {plane(first), plane(second)};
    summaries_.add(&m, planes);
  }
  void update(int32_t layer) {
    KvWritten written;
    written.layer = LayerIdx{layer};
    written.tokens = 5;
    summaries_.update(written, *kv_, *ops_, *stream_);
  }

  const std::unique_ptr<Device> device_ = make_cpu_device();
  const std::unique_ptr<Stream> stream_ = device_->make_stream();
  const std::unique_ptr<Ops> ops_ = make_ref_ops();
  std::unique_ptr<KvCache> kv_;
  Summaries summaries_;
};

TEST_F(SummariesTest, TheFirstToNameAPlaneKeepsIt) {
  Recorder first, second, third;
  add(first, "a", "b");
  add(second, "b", "c");
  add(third, "a", "c");
  update(1);
  EXPECT_EQ(first.planes, (std::vector<std::byte*>{at("a", 1), at("b", 1)}));
  EXPECT_EQ(second.planes, (std::vector<std::byte*>{nullptr, at("c", 1)}));
  EXPECT_EQ(first.tokens, 5);
  EXPECT_EQ(third.calls, 0) << "others keep all of its planes";
}

TEST_F(SummariesTest, TheFusedWriteKeepsTheCodesOfTheFirstThatHasSome) {
  Recorder plain, codes(Keeps::codes), more(Keeps::codes);
  CodesView view;
  add(plain, "c", "c");
  EXPECT_FALSE(summaries_.fused_codes(*kv_, LayerIdx{0}, &view));
  add(codes, "a", "b");
  add(more, "b", "a");
  ASSERT_TRUE(summaries_.fused_codes(*kv_, LayerIdx{1}, &view));
  EXPECT_EQ(reinterpret_cast<std::byte*>(view.codes), at("a", 1));
  update(0);
  EXPECT_EQ(codes.planes, (std::vector<std::byte*>{nullptr, at("b", 0)})) << "its codes are written already";
  EXPECT_EQ(more.calls, 0);
}

TEST_F(SummariesTest, KeysOfAnIndexerAreLeftToTheForwardPass) {
  Recorder plain, index(Keeps::index);
  add(plain, "a", "a");
  add(index, "b", "c");
  ASSERT_EQ(summaries_.index_count(), 1u);
  IndexKeysView view;
  EXPECT_EQ(summaries_.index_keys(0, *kv_, LayerIdx{1}, &view), &index);
  EXPECT_EQ(index.index_plane, at("b", 1));
  update(0);
  EXPECT_EQ(plain.calls, 1);
  EXPECT_EQ(index.calls, 0);
}

}  // namespace
}  // namespace fovea
