#include "text/tokenizer/pre_tokenizer_table.h"

#include <algorithm>
#include <utility>

namespace fovea {
namespace {

using Splits = std::vector<std::string>;

// As the models of each name publish them in tokenizer.json; "default" is what files take that were written before there were
// names.
const std::string kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const std::string kSpaces = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kWords = R"([^\r\n\p{L}\p{N}]?\p{L}+)";
const std::string kMarks = R"( ?[^\s\p{L}\p{N}]+[\r\n]*)";
const std::string kGpt2(PreTokenizer::kGpt2Pattern);
const std::string kCjk = "[一-龥ࠀ-一가-퟿]+";

Splits llama3() { return {kContractions + "|" + kWords + R"(|\p{N}{1,3}|)" + kMarks + "|" + kSpaces}; }
Splits qwen2() { return {kContractions + "|" + kWords + R"(|\p{N}|)" + kMarks + "|" + kSpaces}; }
Splits minicpm5() { return {R"(\p{N}{1,3})", kContractions + "|" + kWords + R"(|\p{N}+|)" + kMarks + "|" + kSpaces}; }
Splits seed_coder() { return {kContractions + "|" + kWords + R"(|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|)" + kSpaces}; }

Splits gpt2() { return {kGpt2}; }
Splits digits_gpt2() { return {R"(\p{N})", kGpt2}; }
Splits old_default() { return {R"([\p{P}$+<=>^~|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}; }
Splits falcon() { return {R"([\p{P}$+<=>^~|`]+)", kGpt2, "[0-9][0-9][0-9]"}; }

Splits deepseek_llm() {
  // Letters that have a case, as of Unicode 11.
  constexpr const char* kCased =
      R"(\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af})"
      R"(\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5})"
      R"(\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd})"
      R"(\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15})"
      R"(\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d})"
      R"(\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb})"
      R"(\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d})"
      R"(\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e})"
      R"(\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d})"
      R"(\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06})"
      R"(\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb})"
      R"(\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+)";
  return {R"([\r\n])", kCased, R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", R"(\s+$)", kCjk, R"(\p{N})"};
}
Splits deepseek_coder() { return {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kCjk, R"(\p{N})"}; }
Splits deepseek_v3() {
  constexpr const char* kRest =
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)";
  return {R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+", kRest + kSpaces};
}

// Words that begin with capitals and end without, or the other way round; `end` after either.
std::string cased(const std::string& end) {
  const std::string front = R"([^\r\n\p{L}\p{N}]?)", upper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])",
                    lower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
  return front + upper + "*" + lower + "+" + end + "|" + front + upper + "+" + lower + "*" + end;
}
Splits tekken() { return {cased("") + R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" + kSpaces}; }
Splits o200k() { return {cased(kContractions + "?") + R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" + kSpaces}; }

Splits bloom() { return {R"( ?[^(\s|.,!?…。，、।۔،)]+)"}; }
Splits viking() { return {R"( ?[^(\s|.,!?…。，、।۔،)]+)", R"(\p{N})"}; }

constexpr PreTokenizerRow kRows[] = {
    {"llama-bpe llama3 llama-v3 falcon3 pixtral midm-2.0", llama3, false, true, true},
    {"smaug-bpe dbrx", llama3},
    {"qwen2 deepseek-r1-qwen", qwen2, true},
    {"megrez kormo stablelm2 hunyuan", qwen2},
    {"gpt-2 phi-2 mpt olmo mellum gigachat a.x-4.0 exaone4 trillion granite-docling", gpt2},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b", digits_gpt2},
    {"default", old_default},
    {"falcon", falcon},
    {"deepseek-llm", deepseek_llm},
    {"deepseek-coder", deepseek_coder},
    {"deepseek-v3 hunyuan-dense", deepseek_v3},
    {"tekken", tekken, false, true, true},
    {"gpt-4o kanana2", o200k},
    {"seed-coder", seed_coder},
    {"minicpm5", minicpm5, false, true},
    {"bloom poro-chat gpt3-finnish", bloom},
    {"viking", viking},
};

bool has_name(std::string_view names, std::string_view name) {
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(' ', at), names.size());
    if (names.substr(at, end - at) == name) return true;
    at = end + 1;
  }
  return false;
}

}  // namespace

const PreTokenizerRow* find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizerRow& row : kRows) {
    if (has_name(row.names, name)) return &row;
  }
  return nullptr;
}

std::string_view name_pre_tokenizer(const std::vector<std::string>& splits, bool nfc, bool ignore_merges) {
  for (const PreTokenizerRow& row : kRows) {
    if (row.nfc == nfc && row.ignore_merges == ignore_merges && row.splits() == splits)
      return row.names.substr(0, row.names.find(' '));
  }
  return {};
}

std::string pre_tokenizer_names() {
  std::string out;
  for (const PreTokenizerRow& row : kRows) out += (out.empty() ? "" : " ") + std::string(row.names);
  return out;
}

Result<PreTokenizer> make_pre_tokenizer(const PreTokenizerRow& row) {
  PreTokenizer pre;
  for (const std::string& split : row.splits()) {
    FOVEA_ASSIGN(Regex pattern, Regex::compile(split));
    pre.add(PreTokenizer::Split{std::move(pattern), SplitBehavior::isolated, false});
  }
  pre.add(PreTokenizer::ByteLevel{false, std::nullopt});
  return pre;
}

}  // namespace fovea
