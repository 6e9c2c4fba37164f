#include "eval/reading_map.h"

#include "base/check.h"
#include "text/tokenizer/utf8.h"

#include <algorithm>
#include <cstdio>

namespace fovea {
namespace {

constexpr Rgb kInk{34, 36, 40}, kDim{112, 116, 124}, kStrip{246, 247, 249}, kPale{205, 222, 236}, kDeep{6, 60, 108},
    kFact{200, 80, 0}, kFactPale{244, 208, 176}, kWrong{176, 0, 32};
constexpr double kWidth = 1080, kLeft = 120, kRight = 24, kTop = 112;
constexpr double kHeadHeight = 12, kHeadGap = 2, kLayerGap = 6, kTokenHeight = 11, kSmall = 10.5;

class Picture {
 public:
  Picture(const RunTrace& trace, const AnswerTrace& answer)
      : trace_(trace), answer_(answer), blocks_(answer.tokens.back().read.size()) {}

  Drawing draw() {
    d_.width = kWidth;
    header();
    double y = heads(kTop);
    y = tokens(y + 34);
    axis(y + 14);
    d_.height = y + 30;
    return std::move(d_);
  }

 private:
  void header() {
    char line[160];
    std::snprintf(line, sizeof(line), "%s: read %.1f %% of the KV bytes of %lld tokens", run_label(trace_.run).c_str(),
                  100 * answer_.stats.kv_bytes_share(), static_cast<long long>(answer_.stats.context_tokens));
    d_.texts.push_back({kLeft, 30, 18, answer_.question, kInk, Drawing::Align::left, true});
    d_.texts.push_back({kLeft, 52, 13,
                        answer_.answer + (answer_.right            ? "  ✓"
                                          : answer_.wanted.empty() ? ""
                                                                   : "  ✗ wanted: " + answer_.wanted),
                        answer_.right ? kInk : kWrong});
    d_.texts.push_back({kLeft, 72, 11, line, kDim});
    if (!answer_.fact.empty())
      d_.texts.push_back({kWidth - kRight, 72, 11, "planted: " + answer_.fact, kFact, Drawing::Align::right});
  }

  double heads(double y) {
    d_.texts.push_back({kLeft, y - 10, kSmall, "Blocks read, by layer and KV head (darker: by more tokens of the answer)", kDim});
    for (int32_t l = 0; l < trace_.layers; ++l, y += kLayerGap) {
      for (int32_t h = 0; h < trace_.kv_heads; ++h, y += kHeadHeight + kHeadGap) {
        label(y + kHeadHeight - 2, "layer " + std::to_string(l) + " · kv " + std::to_string(h));
        strip(answer_.heads_read[static_cast<size_t>(l * trace_.kv_heads + h)], static_cast<float>(answer_.tokens.size()), y,
              kHeadHeight);
      }
    }
    return y;
  }

  double tokens(double y) {
    d_.texts.push_back({kLeft, y - 10, kSmall, "The same by token of the answer (darker: by more layers and heads)", kDim});
    for (const AnswerTrace::Token& t : answer_.tokens) {
      std::string text;
      utf8::append_lossy(text, t.text, false);  // a token may be part of a character
      std::replace(text.begin(), text.end(), '\n', ' ');
      label(y + kTokenHeight - 2, text);
      strip(t.read, 1, y, kTokenHeight - 1);
      y += kTokenHeight;
    }
    return y;
  }

  void axis(double y) {
    for (int i = 0; i <= 4; ++i) {
      const auto align = i == 0 ? Drawing::Align::left : i == 4 ? Drawing::Align::right : Drawing::Align::center;
      const int64_t token = static_cast<int64_t>(blocks_) * trace_.run.block_size * i / 4;
      d_.texts.push_back({kLeft + (kWidth - kLeft - kRight) * i / 4, y, kSmall, std::to_string(token), kDim, align});
    }
    label(y, "token");
  }

  void label(double y, const std::string& text) { d_.texts.push_back({kLeft - 8, y, kSmall, text, kDim, Drawing::Align::right}); }

  // A pixel that stands for several blocks shows the most of them.
  void strip(const std::vector<float>& reads, float all, double y, double height) {
    constexpr auto width = static_cast<size_t>(kWidth - kLeft - kRight);
    d_.rects.push_back({kLeft, y, static_cast<double>(width), height, kStrip});
    for (size_t x = 0; x < width; ++x) {
      const size_t from = x * blocks_ / width, to = std::max(from + 1, (x + 1) * blocks_ / width);
      float most = 0;
      for (size_t b = from; b < std::min(to, reads.size()); ++b) most = std::max(most, reads[b]);
      if (most > 0) d_.rects.push_back({kLeft + static_cast<double>(x), y, 1, height, mix(kPale, kDeep, most / all)});
    }
    mark_fact(reads, y, height);
  }

  // At least three pixels wide: one block of thousands would not be seen.
  void mark_fact(const std::vector<float>& reads, double y, double height) {
    if (answer_.fact_first_block < 0) return;
    const double pixels = (kWidth - kLeft - kRight) / static_cast<double>(blocks_);
    const auto first = static_cast<size_t>(answer_.fact_first_block), end = static_cast<size_t>(answer_.fact_last_block) + 1;
    bool read = false;
    for (size_t b = first; b < std::min(end, reads.size()); ++b) read = read || reads[b] > 0;
    const double wide = std::max(3.0, static_cast<double>(end - first) * pixels);
    d_.rects.push_back(
        {std::min(kLeft + static_cast<double>(first) * pixels, kWidth - kRight - wide), y, wide, height, read ? kFact : kFactPale});
  }

  const RunTrace& trace_;
  const AnswerTrace& answer_;
  const size_t blocks_;  // of the last token's context: the most
  Drawing d_;
};

}  // namespace

Drawing reading_map(const RunTrace& trace, const AnswerTrace& answer) {
  FOVEA_CHECK(!answer.tokens.empty());
  return Picture(trace, answer).draw();
}

}  // namespace fovea
