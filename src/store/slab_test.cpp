#include "store/slab.h"

#include "store/slab_io.h"
#include "store/store_test_util.h"

#include <fstream>
#include <iterator>

namespace fovea {
namespace {

using namespace testing;

using Bytes = std::vector<std::byte>;

// A run of blocks with bytes of their own.
struct Content {
  ObjectLayout layout;
  std::vector<StoreKey> keys;
  PatternBytes bytes;
  Content(ObjectLayout l, std::vector<StoreKey> k) : layout(std::move(l)), keys(std::move(k)), bytes(layout, keys) {}
};

SlabFront front_of(const ObjectLayout& layout, const std::vector<StoreKey>& keys, uint32_t last_tokens = 3) {
  SlabFront f;
  f.number = 0xABCDEF;
  f.layout = layout.digest();
  f.parent = chain(99, 1)[0];
  f.block_tokens = layout.block_tokens;
  f.last_tokens = last_tokens;
  f.first_block = 7;
  f.created_s = 1'700'000'000;
  for (const PartSpec& p : layout.parts) f.parts.push_back({.spec = p});
  f.keys = keys;
  place_parts(&f);
  return f;
}

// The whole file, written by write_slab.
Bytes image_of(const BlockBytes& bytes, SlabFront* front) {
  Bytes image(front->file_bytes, std::byte{0xEE});
  uint64_t end = 0;
  AlignedBuffer buffer;
  PutRun run{.keys = front->keys, .last_tokens = front->last_tokens, .bytes = &bytes, .done = {}};
  const WriteAt write = [&](uint64_t offset, std::span<const std::byte> from) -> Status {
    EXPECT_LE(offset + from.size(), image.size());
    std::ranges::copy(from, image.begin() + static_cast<std::ptrdiff_t>(offset));
    end = offset;
    return {};
  };
  EXPECT_TRUE(write_slab(run, 0, write, buffer, front).ok());
  EXPECT_EQ(end, 0u) << "the front is written last";
  return image;
}

SlabVerdict verify(const SlabFront& front, const Bytes& image) {
  return verify_slab(front, [&](uint64_t offset, std::span<std::byte> to) -> Status {
    if (offset + to.size() > image.size()) return Status::corrupt("behind the end");
    std::copy_n(image.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
    return {};
  });
}

TEST(Slab, ShapesOfRealModelsAreCutAsTheyShould) {
  const auto layout = [](uint32_t units, uint32_t bytes, uint32_t codes) {
    return ObjectLayout{.block_tokens = 16,
                        .parts = {{.name = "kv", .units = units, .unit_bytes = bytes},
                                  {.name = "codes.128.7", .units = 1, .unit_bytes = codes, .block_major = true}}};
  };
  EXPECT_EQ(blocks_per_slab(layout(256, 8192, 65536)), 32u);   // 8B
  EXPECT_EQ(blocks_per_slab(layout(128, 4096, 32768)), 128u);  // 1B
  EXPECT_EQ(blocks_per_slab(layout(12, 4096, 3072)), 256u);    // tiny-gqa
  EXPECT_EQ(blocks_per_slab(layout(1, 64 << 20, 8)), 1u);
}

TEST(Slab, FrontsComeBackAsTheyWere) {
  for (const size_t blocks : {1, 2, 117, 256}) {
    for (const size_t parts : {1, 2, 3}) {
      ObjectLayout layout = test_layout();
      layout.parts.resize(parts);
      SlabFront front = front_of(layout, chain(blocks, blocks), 16);
      front.parts[0].table_digest.fill(0x5A);
      const Bytes bytes = encode_front(front);
      EXPECT_LE(bytes.size(), kSlabFrontMax);
      const auto back = parse_front(bytes, front.file_bytes, front.number);
      ASSERT_TRUE(back.ok()) << back.status().message();
      EXPECT_EQ(encode_front(*back), bytes);
      EXPECT_EQ(back->keys, front.keys);
      EXPECT_EQ(back->object_layout(), layout);
      EXPECT_EQ(back->first_block, 7u);
      EXPECT_EQ(back->parent, front.parent);
    }
  }
}

TEST(Slab, EveryBitOfAFrontCounts) {
  const SlabFront front = front_of(test_layout(), chain(1, 4));
  Bytes bytes = encode_front(front);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    ASSERT_FALSE(parse_front(bytes, front.file_bytes, front.number).ok()) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  EXPECT_TRUE(parse_front(bytes, front.file_bytes, front.number).ok());
  EXPECT_FALSE(parse_front(bytes, front.file_bytes + 1, front.number).ok());
  EXPECT_FALSE(parse_front(bytes, front.file_bytes, front.number + 1).ok());
  for (size_t n = 0; n < bytes.size(); ++n)
    ASSERT_FALSE(parse_front(std::span(bytes).first(n), front.file_bytes, front.number).ok());
}

// Not only the digest guards a front: a sealed one must say what follows from its other fields.
TEST(Slab, ASealedFrontMustBeTheEncodersToo) {
  const SlabFront front = front_of(test_layout(), chain(1, 4));
  const Bytes good = encode_front(front);
  int64_t accepted = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    if (at >= 128 && at < 144) continue;
    Bytes bytes = good;
    bytes[at] ^= std::byte{1};
    std::fill_n(bytes.begin() + 128, 16, std::byte{0});
    const Digest128 digest = plain_digest(bytes);
    std::memcpy(bytes.data() + 128, digest.data(), 16);
    const auto parsed = parse_front(bytes, front.file_bytes, front.number);
    accepted += parsed.ok();
    if (parsed.ok()) {
      EXPECT_EQ(encode_front(*parsed), bytes) << at;
    }
  }
  EXPECT_EQ(accepted, 32 + 4 * 32 + 3 * 16 + 16 + 1) << "parent, keys, digests of tables, first block and time, 3 -> 2 tokens";
}

TEST(Slab, AnotherVersionIsNamed) {
  Bytes bytes = encode_front(front_of(test_layout(), chain(1, 4)));
  bytes[8] = std::byte{2};
  EXPECT_EQ(parse_front(bytes, 1, 1).status().code(), StatusCode::unsupported);
}

TEST(Slab, TheGoldenFileIsReadAndWrittenAlike) {
  std::ifstream in(FOVEA_SOURCE_DIR "/tests/data/store/0000000000001234.slab", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto bytes = std::as_bytes(std::span(text));
  const Bytes golden(bytes.begin(), bytes.end());
  const auto parsed = parse_front(golden, golden.size(), 0x1234);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->blocks(), 2u);
  EXPECT_EQ(parsed->tokens(0), 16u);
  EXPECT_EQ(parsed->tokens(1), 5u);
  EXPECT_EQ(parsed->first_block, 40u);
  EXPECT_EQ(parsed->created_s, 1'700'000'000u);
  EXPECT_EQ(parsed->object_layout().text(),
            "fovea layout 1\nblock_tokens 16\npart kv 2 96 unit-major\npart codes.64.7 1 20 block-major\n");
  EXPECT_EQ(verify(*parsed, golden).fault, "");

  struct Formula final : BlockBytes {
    void copy(uint32_t block, uint16_t part, uint32_t unit, std::byte* to) const override {
      const uint32_t bytes = part == 0 ? 96 : 20;
      for (uint32_t i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(7 * i + 31 * block + 57 * unit + 101 * part + 3);
    }
  } formula;
  SlabFront front = *parsed;
  for (SlabPart& p : front.parts) p.table_digest = {};
  EXPECT_EQ(image_of(formula, &front), golden);
}

TEST(Slab, ACleanSlabIsVerified) {
  for (const size_t blocks : {1, 5, 256}) {
    const Content c(test_layout(), chain(3, blocks));
    SlabFront front = front_of(c.layout, c.keys);
    const Bytes image = image_of(c.bytes, &front);
    const SlabVerdict v = verify(front, image);
    EXPECT_EQ(v.fault, "");
    EXPECT_EQ(v.extents, 9 * blocks);
    EXPECT_TRUE(parse_front(std::span(image).first(std::min(image.size(), kSlabFrontMax)), image.size(), front.number).ok());
  }
}

// Behind the front, every mutation is found: bits, bytes, swapped extents, old ones. FOVEA_STORE_MUTATIONS says how many.
TEST(Slab, MutationsOfTablesAndBodiesAreFound) {
  const ObjectLayout layout{
      .block_tokens = 16,
      .parts = {{.name = "kv", .units = 2, .unit_bytes = 2048}, {.name = "c", .units = 1, .unit_bytes = 100, .block_major = true}}};
  const Content c(layout, chain(4, 2));
  SlabFront front = front_of(c.layout, c.keys);
  Bytes image = image_of(c.bytes, &front);
  const char* count = std::getenv("FOVEA_STORE_MUTATIONS");
  const int64_t rounds = count ? std::atoll(count) : 4000;
  std::mt19937_64 random(5);
  for (int64_t i = 0; i < rounds; ++i) {
    const Bytes before = image;
    const auto place = [&] { return front.front_bytes + random() % (image.size() - front.front_bytes); };
    switch (random() % 3) {
      case 0:
        image[place()] ^= static_cast<std::byte>(1 << random() % 8);
        break;
      case 1:
        for (size_t at = place(), n = 1 + random() % 64; n > 0 && at < image.size(); --n, ++at)
          image[at] = static_cast<std::byte>(random());
        break;
      default: {  // two extents change places
        const uint64_t a = front.extent(0, random() % 2, random() % 2), b = front.extent(0, random() % 2, random() % 2);
        std::swap_ranges(image.begin() + static_cast<std::ptrdiff_t>(a), image.begin() + static_cast<std::ptrdiff_t>(a + 2048),
                         image.begin() + static_cast<std::ptrdiff_t>(b));
      }
    }
    ASSERT_EQ(verify(front, image).fault.empty(), image == before) << "round " << i;
    image = before;
  }
}

TEST(Slab, DigestsTellBlocksPartsAndUnitsApart) {
  const std::vector<StoreKey> keys = chain(6, 2);
  const Bytes bytes(64);
  const Digest128 digest = extent_digest(keys[0], 0, 0, bytes);
  EXPECT_NE(digest, extent_digest(keys[1], 0, 0, bytes));
  EXPECT_NE(digest, extent_digest(keys[0], 1, 0, bytes));
  EXPECT_NE(digest, extent_digest(keys[0], 0, 1, bytes));
  EXPECT_EQ(digest, extent_digest(keys[0], 0, 0, bytes));
}

}  // namespace
}  // namespace fovea
