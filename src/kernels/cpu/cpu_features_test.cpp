#include "kernels/cpu/cpu_features.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace fovea::cpu {
namespace {

// What Linux says of the first CPU: it hides what the OS does not save, as cpu_features() must.
std::set<std::string> kernel_flags() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

std::string vendor() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("vendor_id", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return {};
}

TEST(CpuFeatures, AgreeWithTheKernel) {
  const auto flags = kernel_flags();
  if (flags.empty()) GTEST_SKIP() << "no x86 /proc/cpuinfo";
  const auto has = [&](std::initializer_list<const char*> names) {
    for (const char* n : names) {
      if (flags.count(n) == 0) return false;
    }
    return true;
  };
  const CpuFeatures& f = cpu_features();
  EXPECT_EQ(f.avx2, has({"avx2", "fma", "f16c"}));
  EXPECT_EQ(f.avx512, f.avx2 && has({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}));
  EXPECT_EQ(f.avx512_vnni, f.avx512 && has({"avx512_vnni", "bmi2"}));
  EXPECT_EQ(f.avx512_bf16, f.avx512 && has({"avx512_bf16"}));
  EXPECT_EQ(f.avx_vnni, f.avx2 && has({"avx_vnni"}));
  EXPECT_EQ(f.streams, vendor() == "GenuineIntel");
  EXPECT_EQ(f.narrow_look_ups, vendor() == "GenuineIntel");
  // Linux may refuse what it lists.
  EXPECT_TRUE(!f.amx_bf16 || has({"amx_tile", "amx_bf16"}));
  EXPECT_TRUE(!f.amx_int8 || has({"amx_tile", "amx_int8"}));
}

TEST(CpuFeatures, EachImpliesTheLesser) {
  const CpuFeatures& f = cpu_features();
  EXPECT_TRUE(!f.avx512 || f.avx2);
  EXPECT_TRUE(!f.avx512_bf16 || f.avx512);
  EXPECT_TRUE(!f.amx_bf16 || f.avx512_bf16);
  EXPECT_TRUE(!f.amx_int8 || f.avx512_vnni);
  EXPECT_TRUE(!f.avx_vnni || f.avx2);
  EXPECT_EQ(&f, &cpu_features());
}

}  // namespace
}  // namespace fovea::cpu
