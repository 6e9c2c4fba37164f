#include "base/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace fovea {
namespace {

class AvailableMemory : public ::testing::Test {
 protected:
  AvailableMemory() : root_(::testing::TempDir() + "/available_memory/") {
    std::filesystem::remove_all(root_);
    write("proc/meminfo", "MemTotal:       9000 kB\nMemFree:        1000 kB\nMemAvailable:   5000 kB\nBuffers:        1 kB\n");
  }
  ~AvailableMemory() override { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + name).parent_path());
    std::ofstream(root_ + name) << text;
  }
  void write_group(const std::string& group, const std::string& limit, const std::string& used) {
    write("sys/fs/cgroup" + group + "/memory.max", limit + "\n");
    write("sys/fs/cgroup" + group + "/memory.current", used + "\n");
    write("sys/fs/cgroup" + group + "/memory.stat", "anon 7\nfile 900\ninactive_file 300\nactive_file 200\n");
  }
  int64_t bytes() const { return available_memory(root_); }

  const std::string root_;
};

TEST_F(AvailableMemory, IsWhatTheSystemSays) { EXPECT_EQ(bytes(), 5000 * 1024); }

TEST_F(AvailableMemory, OfASystemThatDoesNotSayIsSome) {
  std::filesystem::remove(root_ + "proc/meminfo");
  EXPECT_EQ(bytes(), int64_t{4} << 30);
}

TEST_F(AvailableMemory, IsWhatTheTightestGroupLeaves) {
  write("proc/self/cgroup", "12:devices:/other\n0::/user/job\n");
  write_group("/user/job", "max", "1000");
  EXPECT_EQ(bytes(), 5000 * 1024);
  write_group("/user/job", "100000", "60000");
  EXPECT_EQ(bytes(), 40500);  // pages of files count as free
  write_group("/user", "50000", "30000");
  EXPECT_EQ(bytes(), 20500);
  write_group("", "9000", "9000");
  EXPECT_EQ(bytes(), 500);
  write_group("", "9000", "19000");
  EXPECT_EQ(bytes(), 0);
}

TEST_F(AvailableMemory, InAContainerIsWhatItsOwnLimitLeaves) {
  write("proc/self/cgroup", "0::/\n");
  write_group("", "70000", "60000");
  EXPECT_EQ(bytes(), 10500);
}

TEST(AvailableMemoryHere, IsPositive) { EXPECT_GT(available_memory(), 0); }

}  // namespace
}  // namespace fovea
