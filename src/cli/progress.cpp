#include "cli/progress.h"

#include "base/clock.h"
#include "cli/flags.h"

#include <unistd.h>
#include <algorithm>
#include <cstdio>

namespace fovea::cli {

Progress::Progress(std::string label, std::string unit)
    : label_(std::move(label)), unit_(std::move(unit)), terminal_(isatty(2) != 0), start_s_(Clock().now_s()) {}

void Progress::show(int64_t done, int64_t total) {
  if (!terminal_ || total <= 0) return;
  const double now = Clock().now_s();
  if (done < total && now - last_s_ < 0.05) return;
  last_s_ = now;
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(kWidth * std::min(done, total) / total);
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "·";
  const double elapsed = now - start_s_;
  const double rate = elapsed > 0 ? static_cast<double>(done) / elapsed : 0;
  const std::string left = rate > 0 ? duration_text(static_cast<double>(total - done) / rate) + " left" : "";
  std::fprintf(stderr, "\r\033[K%s %s %3.0f %%  %lld %s  %.0f %s/s  %s", label_.c_str(), bar.c_str(),
               100.0 * static_cast<double>(done) / static_cast<double>(total), static_cast<long long>(done), unit_.c_str(), rate,
               unit_.c_str(), left.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace fovea::cli
