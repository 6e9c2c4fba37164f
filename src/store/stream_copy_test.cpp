#include "store/stream_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace fovea {
namespace {

TEST(StreamCopy, WritesWhatItIsGivenAndNothingBeside) {
  constexpr size_t kRoom = 1024;
  std::vector<std::byte> from(kRoom), to(kRoom);
  for (size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256 + 1);
  for (size_t first = 64; first < 130; ++first) {
    for (size_t bytes : {0, 1, 15, 16, 63, 64, 65, 127, 128, 191, 500, 512}) {
      const size_t source = (first * 5 + bytes) % 100;
      to.assign(kRoom, std::byte{0xEE});
      copy_past_caches(to.data() + first, from.data() + source, bytes);
      for (size_t i = 0; i < kRoom; ++i) {
        const bool inside = i >= first && i < first + bytes;
        ASSERT_EQ(to[i], inside ? from[source + i - first] : std::byte{0xEE}) << bytes << " bytes to " << first << ", at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace fovea
