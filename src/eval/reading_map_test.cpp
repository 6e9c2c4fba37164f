// The reading map: blocks in their places, and a page that any answer leaves whole.
#include "eval/reading_map.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

// Fontconfig keeps what it loaded until the process ends.
extern "C" const char* __lsan_default_suppressions() { return "leak:libfontconfig"; }

namespace fovea {
namespace {

ModelShape shape() {
  ModelShape s;
  s.num_layers = 3;
  s.num_heads = 4;
  s.kv_heads = 2;
  s.head_dim = 64;
  s.block_size = 16;
  return s;
}

// Rows of a Selection, each cell's list given.
class Lists {
 public:
  Lists(HeadGroups heads, int32_t groups, std::vector<std::vector<int32_t>> cells) {
    for (const auto& c : cells)
      selection_.capacity = std::max(selection_.capacity, static_cast<int32_t>(c.size()));
    for (const auto& c : cells) {
      counts_.push_back(static_cast<int32_t>(c.size()));
      units_.insert(units_.end(), c.begin(), c.end());
      units_.resize(counts_.size() * selection_.capacity, -1);
    }
    selection_.kind = Selection::Kind::list;
    selection_.heads = heads;
    selection_.groups = groups;
    selection_.rows = static_cast<int32_t>(cells.size()) / groups;
    selection_.units = units_.data();
    selection_.counts = counts_.data();
  }
  void set_tokens_per_unit(int32_t tokens) { selection_.tokens_per_unit = tokens; }
  SelectionTrace at(int32_t row, int64_t position, int32_t layer, int32_t blocks) const {
    SelectionTrace t;
    t.position = position;
    t.layer = LayerIdx{layer};
    t.selection = &selection_;
    t.row = row;
    t.blocks = blocks;
    return t;
  }

 private:
  Selection selection_;
  std::vector<int32_t> units_, counts_;
};

using Blocks = std::vector<int32_t>;

TEST(ReadingMapBuilder, BlocksGoToTheirRowLayerAndHead) {
  ReadingMap map;
  ReadingMapBuilder builder(shape(), &map);
  const Lists first(HeadGroups::per_kv_head, 2, {{0, 5, 9}, {0, 9}, {1, 2}, {3}});
  const Lists second(HeadGroups::per_kv_head, 2, {{4}, {}, {7, 8}, {6}});
  // Layer by layer, two rows in each, as the engine calls.
  builder.on_selection(first.at(0, 150, 0, 10));
  builder.on_selection(first.at(1, 151, 0, 10));
  builder.on_selection(second.at(0, 150, 2, 10));
  builder.on_selection(second.at(1, 151, 2, 10));
  ASSERT_EQ(map.rows.size(), 2u);
  EXPECT_EQ(map.rows[0].position, 150);
  EXPECT_EQ(map.rows[0].blocks, (std::vector<std::vector<Blocks>>{{{0, 5, 9}, {0, 9}}, {{}, {}}, {{4}, {}}}));
  EXPECT_EQ(map.rows[1].position, 151);
  EXPECT_EQ(map.rows[1].blocks, (std::vector<std::vector<Blocks>>{{{1, 2}, {3}}, {{}, {}}, {{7, 8}, {6}}}));
  EXPECT_EQ(map.context_tokens, 152);
  EXPECT_EQ(map.context_blocks, 10);
}

TEST(ReadingMapBuilder, AListForAllHeadsGoesToEach) {
  ReadingMap map;
  ReadingMapBuilder builder(shape(), &map);
  const Lists shared(HeadGroups::all, 1, {{2}, {0, 3}});
  builder.on_selection(shared.at(1, 60, 1, 4));
  ASSERT_EQ(map.rows.size(), 1u);
  EXPECT_EQ(map.rows[0].blocks[1], (std::vector<Blocks>{{0, 3}, {0, 3}}));
}

TEST(ReadingMapBuilder, ADenseLayerReadsEveryBlock) {
  ReadingMap map;
  ReadingMapBuilder builder(shape(), &map);
  const Selection all;
  SelectionTrace t;
  t.position = 33;
  t.selection = &all;
  t.blocks = 3;
  builder.on_selection(t);
  ASSERT_EQ(map.rows.size(), 1u);
  EXPECT_EQ(map.rows[0].blocks[0], (std::vector<Blocks>{{0, 1, 2}, {0, 1, 2}}));
  EXPECT_TRUE(map.rows[0].blocks[1][0].empty());
  EXPECT_EQ(map.context_blocks, 3);
  EXPECT_EQ(map.context_tokens, 34);
}

// Units of another size than a block: a list of tokens (DSA's) or of tiles names the blocks they lie in, and none beyond the row's.
TEST(ReadingMapBuilder, UnitsOfAnySizeBecomeBlocks) {
  ReadingMap map;
  map.layers = 3;
  map.kv_heads = 2;
  ReadingMapBuilder builder(shape(), &map);
  Lists tokens(HeadGroups::all, 1, {{0, 1, 15, 16, 150}});
  tokens.set_tokens_per_unit(1);
  Lists tiles(HeadGroups::all, 1, {{1}});
  tiles.set_tokens_per_unit(128);
  builder.on_selection(tokens.at(0, 150, 0, 10));
  builder.on_selection(tiles.at(0, 150, 1, 10));
  ASSERT_EQ(map.rows.size(), 1u);
  EXPECT_EQ(map.rows[0].blocks[0], (std::vector<Blocks>{{0, 1, 9}, {0, 1, 9}}));
  EXPECT_EQ(map.rows[0].blocks[1], (std::vector<Blocks>{{8, 9}, {8, 9}}));
  const std::string path = ::testing::TempDir() + "reading_map_units_test.png";
  EXPECT_TRUE(write_reading_map_png(map, path).ok());
  std::remove(path.c_str());
}

ReadingMap sample() {
  ReadingMap m;
  m.question = "What is the pin of Olga?";
  m.answer = "The pin of Olga is 48213.";
  m.wanted = m.answer;
  m.right = true;
  m.method = "gsa_on_device";
  m.layers = 3;
  m.kv_heads = 2;
  m.context_tokens = 160;
  m.context_blocks = 10;
  m.fact = "The pin of Olga is 48213.";
  m.fact_first_block = 5;
  m.fact_last_block = 5;
  m.stats.kv_bytes_read = 300;
  m.stats.summary_bytes_read = 12;
  m.stats.kv_bytes_dense = 1000;
  for (int i = 0; i < 4; ++i) {
    ReadingMap::Row r;
    r.position = 150 + i;
    r.token = " tok";
    r.blocks.assign(3, {{0, 5, 9}, {i, 9}});
    m.rows.push_back(r);
  }
  return m;
}

// The data element of the page, up to the end that a browser would see.
std::string data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t at = html.find(open);
  EXPECT_NE(at, std::string::npos);
  return html.substr(at + open.size(), html.find("</script>", at) - at - open.size());
}

bool valid_utf8(const std::string& s) {
  try {
    (void)nlohmann::json(s).dump();  // strict: throws at a byte that is not UTF-8
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

TEST(ReadingMapHtml, TheDataIsTheMap) {
  const std::string html = reading_map_html({sample(), sample()});
  const auto data = nlohmann::json::parse(data_of(html));
  ASSERT_EQ(data.size(), 2u);
  EXPECT_EQ(data[0]["question"], "What is the pin of Olga?");
  EXPECT_EQ(data[0]["answer"], "The pin of Olga is 48213.");
  EXPECT_EQ(data[0]["layers"], 3);
  EXPECT_EQ(data[0]["heads"], 2);
  EXPECT_EQ(data[0]["blocks"], 10);
  EXPECT_EQ(data[0]["tokens"], 160);
  EXPECT_EQ(data[0]["fact_first"], 5);
  EXPECT_EQ(data[0]["bytes_read"], 312) << "summaries too";
  EXPECT_EQ(data[0]["bytes_dense"], 1000);
  ASSERT_EQ(data[0]["rows"].size(), 4u);
  EXPECT_EQ(data[0]["rows"][3]["position"], 153);
  EXPECT_EQ(data[0]["rows"][3]["blocks"][2][1], (nlohmann::json{3, 9}));
  EXPECT_NE(html.find("<b>160 tokens</b>"), std::string::npos);
}

TEST(ReadingMapHtml, ItNeedsNothingFromElsewhere) {
  const std::string html = reading_map_html({sample()});
  EXPECT_EQ(html.rfind("<!doctype html>", 0), 0u);
  for (const char* part : {" src=", "http://", "https://", "@import", "url(", "<link"})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
}

// Whatever a model answers, the data ends where it should and comes back as it was.
TEST(ReadingMapHtml, NoTextEndsTheDataEarly) {
  const std::string plain = reading_map_html({sample()});
  for (const std::string& text :
       {std::string("</script><script>alert(1)</script>"), std::string("</SCRIPT >"),
        std::string("<!--<script>"), std::string("<\\/script>"), std::string("]]>\"'\\"),
        std::string("\xe2\x80\xa8 line")}) {
    ReadingMap m = sample();
    m.question = m.answer = m.wanted = m.fact = m.method = m.rows[0].token = text;
    const std::string html = reading_map_html({m});
    EXPECT_EQ(count(html, "</script>"), count(plain, "</script>")) << text;
    const std::string data = data_of(html);
    EXPECT_EQ(data.find("</"), std::string::npos) << text;
    EXPECT_EQ(data.find("<!--"), std::string::npos)
        << text << ": opens a comment, in which the end of the script is none";
    const auto json = nlohmann::json::parse(data, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << text;
    for (const char* field : {"question", "answer", "wanted", "fact", "method"})
      EXPECT_EQ(json[0][field], text);
    EXPECT_EQ(json[0]["rows"][0]["token"], text);
  }
}

TEST(ReadingMapHtml, OddBytesGiveValidUtf8) {
  ReadingMap m = sample();
  m.rows[0].token = "\xe2\x82";  // the first two bytes of a euro sign: a token may be part of a character
  m.rows[1].token = "\xff\xfe\x80";
  m.rows[2].token = std::string("a\0b", 3);
  m.answer = "caf\xc3";
  const std::string html = reading_map_html({m});
  EXPECT_TRUE(valid_utf8(html));
  EXPECT_EQ(html.find('\0'), std::string::npos);
  const auto json = nlohmann::json::parse(data_of(html), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json[0]["rows"][0]["token"], "\xef\xbf\xbd");
  EXPECT_EQ(json[0]["answer"], "caf\xef\xbf\xbd");
}

TEST(ReadingMapHtml, NoMapIsAPageToo) {
  const std::string html = reading_map_html({});
  EXPECT_EQ(nlohmann::json::parse(data_of(html)).size(), 0u);
}

TEST(ReadingMapPng, APictureIsWritten) {
  const std::string path = ::testing::TempDir() + "reading_map_test.png";
  ReadingMap m = sample();
  m.rows[2].token = "\xe2\x82";  // half a character
  const Status s = write_reading_map_png(m, path);
  ASSERT_TRUE(s.ok()) << s.message();
  std::ifstream in(path, std::ios::binary);
  std::string head(8, '\0');
  in.read(head.data(), 8);
  EXPECT_EQ(head, "\x89PNG\r\n\x1a\n");
  in.seekg(0, std::ios::end);
  EXPECT_GT(in.tellg(), 2000);
  std::remove(path.c_str());
}

TEST(ReadingMapPng, APlaceThatCannotBeWrittenIsNamed) {
  const Status s = write_reading_map_png(sample(), "/nonexistent/map.png");
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.code(), StatusCode::io_error);
  EXPECT_NE(s.message().find("/nonexistent/map.png"), std::string::npos);
}

}  // namespace
}  // namespace fovea
