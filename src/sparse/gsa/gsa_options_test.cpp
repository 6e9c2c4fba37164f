// What the method asks of a cache, and which options it refuses.
#include "sparse/gsa/gsa_test_util.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace fovea {
namespace {

using namespace testing;

TEST(Gsa, PlanesCarryTheirConfigurationAndScansAreCounted) {
  const auto plane = [](GsaRepresentation r) {
    GsaOptions o = options_of(r);
    o.hash_bits = 256;
    o.hash_seed = 9;
    Gsa m(o);
    EXPECT_TRUE(attach(m, shape_of(16)).ok());
    CodesView view;
    EXPECT_EQ(m.codes_view(nullptr, &view), r == GsaRepresentation::hash);
    const auto planes = m.planes();
    return std::tuple(planes.empty() ? "" : planes[0].name, planes.empty() ? 0 : planes[0].bytes_per_block, m.summary_bytes(33));
  };
  EXPECT_EQ(plane(GsaRepresentation::hash), std::tuple("codes.256.9", 16 * 32, 33 * 2 * 32));
  EXPECT_EQ(plane(GsaRepresentation::mean), std::tuple("mean", 64 * 4, 3 * 2 * 64 * 4));
  EXPECT_EQ(plane(GsaRepresentation::minmax), std::tuple("minmax", 64 * 8, 3 * 2 * 64 * 8));
  EXPECT_EQ(plane(GsaRepresentation::mean_hash), std::tuple("mean_codes.256.9", 32, 3 * 2 * 32));
  EXPECT_EQ(plane(GsaRepresentation::recency), std::tuple("", 0, 0));
  EXPECT_EQ(plane(GsaRepresentation::oracle), std::tuple("", 0, 33 * 2 * 64 * 4)) << "every key";
}

TEST(Gsa, BadOptionsNameTheirFieldAndValue) {
  const auto refused = [](auto change) {
    GsaOptions o;
    change(o);
    Gsa m(o);
    const Status s = attach(m, shape_of());
    EXPECT_EQ(s.code(), StatusCode::invalid_argument);
    EXPECT_EQ(s.message().rfind("gsa: ", 0), 0u) << s.message();
    return s.message();
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(refused([](GsaOptions& o) { o.prefetch_workers = 0; }), "prefetch_workers 0"));
  EXPECT_TRUE(has(refused([](GsaOptions& o) { o.max_pending_prefetch = -1; }), "max_pending_prefetch -1"));
  EXPECT_TRUE(has(refused([](GsaOptions& o) { o.prefetch_ahead = -2; }), "prefetch_ahead -2"));
  EXPECT_TRUE(has(refused([](GsaOptions& o) { o.prefetch_cache_size = 0; }), "prefetch_cache_size 0"));
  EXPECT_TRUE(has(refused([](GsaOptions& o) { o.local_window_sz = 0; }), "local_window_sz 0"));
  const auto lengths = [](GsaOptions& o) { o.length_factor = true, o.representation = GsaRepresentation::mean_hash; };
  EXPECT_TRUE(has(refused(lengths), "length_factor"));
  EXPECT_TRUE(has(refused([](GsaOptions& o) { o.reuse_layers = {1, 3}; }), "reuse_layers holds 3"));
  Gsa latent{GsaOptions{}};
  ModelShape mla = shape_of();
  mla.kv_lora_rank = 512;
  EXPECT_EQ(attach(latent, mla).code(), StatusCode::unsupported);
}

}  // namespace
}  // namespace fovea
