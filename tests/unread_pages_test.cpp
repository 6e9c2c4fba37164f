// A sparse step must not touch what it did not choose. Before attention reads a layer, every page of K and V that the
// Selection leaves out is taken away (PROT_NONE) or filled with NaN; what is left is compared with the engine's counter.
#include "engine_test_util.h"

#include "engine/engine_impl.h"

#include <sys/mman.h>
#include <cstring>
#include <set>

namespace fovea::testing {
namespace {

// Blocks of 32 tokens of 64 float32 are two pages a head.
EngineOptions page_options() {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  o.device = "cpu";  // pages are the host's, and what is traced of a device has been read already
  MethodOptions m;
  m.name = "gsa_on_device";
  m.gsa.budget_tokens = 256;
  o.methods = {m};
  o.decode_method = "gsa_on_device";
  o.sparse_min_context = 64;
  o.block_size = 32;
  o.max_model_len = 4096;
  o.max_num_seqs = 2;
  return o;
}

class Fence {
 public:
  Fence(EngineImpl& engine, bool protect) : engine_(engine), protect_(protect) {}
  ~Fence() { lift(); }

  // Called before attention of one layer reads: takes away what the Selection leaves out and counts what it leaves in.
  void on_trace(const SelectionTrace& t) {
    lift();
    if (t.selection->kind != Selection::Kind::list) return;  // prefill, or short
    const Selection& s = *t.selection;
    const PageTable& table = engine_.blocks().table(SequenceId{1});
    for (PlaneIdx plane : {KvCache::kK, KvCache::kV}) {
      const Plane& p = engine_.kv().plane(plane);
      for (int32_t head = 0; head < p.spec().heads; ++head) {
        const int64_t cell = int64_t{t.row} * s.groups + head;
        const std::set<int32_t> chosen(s.units + cell * s.capacity, s.units + cell * s.capacity + s.counts[cell]);
        for (int32_t block = 0; block < t.blocks; ++block) {
          std::byte* at = p.block(t.layer, table.block(block)) + head * p.head_bytes();
          if (chosen.contains(block)) {
            const int64_t tokens = std::min<int64_t>(32, t.position + 1 - int64_t{block} * 32);
            touched_ += p.head_bytes() / 32 * tokens;
          } else {
            take(at, p.head_bytes());
          }
        }
      }
    }
    ++traces_;
  }
  void lift() {
    for (auto& [at, bytes, saved] : taken_) {
      if (protect_) {
        EXPECT_EQ(mprotect(at, bytes, PROT_READ | PROT_WRITE), 0);
      } else {
        std::memcpy(at, saved.data(), bytes);
      }
    }
    taken_.clear();
  }
  int64_t touched() const { return touched_; }
  int64_t traces() const { return traces_; }

 private:
  void take(std::byte* at, int64_t bytes) {
    std::vector<std::byte> saved;
    if (protect_) {
      EXPECT_EQ(mprotect(at, static_cast<size_t>(bytes), PROT_NONE), 0);
    } else {
      saved.assign(at, at + bytes);
      std::memset(at, 0xff, static_cast<size_t>(bytes));  // NaN in every element type
    }
    taken_.push_back({at, static_cast<size_t>(bytes), std::move(saved)});
  }
  struct Taken {
    std::byte* at;
    size_t bytes;
    std::vector<std::byte> saved;
  };
  EngineImpl& engine_;
  const bool protect_;
  std::vector<Taken> taken_;
  int64_t touched_ = 0;
  int64_t traces_ = 0;
};

class UnreadPages : public ::testing::TestWithParam<bool> {};

TEST_P(UnreadPages, AreNeverTouchedAndTheCounterSaysWhatWas) {
  auto plain = make_engine(page_options());
  const auto prompt = random_prompt(31, 1500, plain->model().vocab_size);
  const Result1 want = run_one(*plain, greedy(prompt, 12));

  auto engine = make_engine(page_options());
  auto& impl = dynamic_cast<EngineImpl&>(*engine);
  Fence fence(impl, GetParam());
  engine->set_trace([&](const SelectionTrace& t) { fence.on_trace(t); });
  Request r = greedy(prompt, 12);
  r.trace = true;
  ASSERT_TRUE(engine->submit(r).ok());
  Answers answers;
  std::vector<Output> outputs;
  for (bool more = true; more;) {
    outputs.clear();
    more = *engine->step(&outputs);
    fence.lift();  // the next step writes where it likes
    collect(outputs, &answers);
  }
  const Result1& got = answers.at({1, 0});
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(fence.traces(), 11 * impl.model().shape.num_layers);  // the first token comes of the prefill
  EXPECT_EQ(got.stats.kv_bytes_read, fence.touched());
  EXPECT_EQ(got.stats.kv_bytes_read, want.stats.kv_bytes_read);
}

INSTANTIATE_TEST_SUITE_P(By, UnreadPages, ::testing::Bool(), [](const auto& info) { return info.param ? "mprotect" : "nan"; });

}  // namespace
}  // namespace fovea::testing
