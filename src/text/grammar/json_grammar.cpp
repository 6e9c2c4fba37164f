#include "text/grammar/json_grammar.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

// Its log is ours: errors are thrown, and nothing is printed.
namespace xgrammar {
[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message) {
  throw std::runtime_error(message);
}
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message) {}
}  // namespace xgrammar

namespace fovea {
namespace {

constexpr int64_t kCacheBytesMax = int64_t{256} << 20;
constexpr const char* kAnyObject = R"({"type":"object","additionalProperties":true})";

// Whether a text of JSON stands within a string.
class JsonStrings {
 public:
  // False: a control character in a string, which xgrammar's strings of bounded length let through, and JSON does not.
  bool push(std::string_view bytes) {
    for (const char byte : bytes) {
      if (inside_ && is_control(byte)) return false;
      if (escaped_) {
        escaped_ = false;
      } else if (byte == '"') {
        inside_ = !inside_;
      } else {
        escaped_ = inside_ && byte == '\\';
      }
    }
    return true;
  }
  bool inside() const { return inside_; }
  static bool is_control(char byte) { return static_cast<unsigned char>(byte) < 0x20; }

 private:
  bool inside_ = false, escaped_ = false;
};

class Constraint final : public TokenConstraint {
 public:
  Constraint(const xgrammar::CompiledGrammar& grammar, const std::vector<TokenId>& eos, std::span<const TokenId> control)
      : matcher_(grammar, eos, /*terminate_without_stop_token=*/eos.empty()),
        tokens_(grammar.GetTokenizerInfo()),
        control_(control) {}

  Status allow(std::span<uint32_t> mask) override {
    if (matcher_.IsTerminated()) return {};
    int64_t words = static_cast<int64_t>(mask.size());
    DLTensor out{mask.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(), &words, nullptr, 0};
    FOVEA_TRY(guarded([&] { matcher_.FillNextTokenBitmask(&out); }));
    for (const TokenId token : control_) {
      uint32_t& word = mask[static_cast<size_t>(token) / 32];
      const uint32_t bit = 1u << (token % 32);
      if ((word & bit) && !JsonStrings(strings_).push(bytes_of(token))) word &= ~bit;
    }
    return {};
  }
  Status accept(TokenId token) override {
    bool accepted = false;
    FOVEA_TRY(guarded([&] { accepted = matcher_.AcceptToken(token) && strings_.push(bytes_of(token)); }));
    return accepted ? Status() : Status::internal("grammar: token " + std::to_string(token) + " cannot come here");
  }
  bool done() const override { return matcher_.IsTerminated(); }

 private:
  template <typename Fn>
  static Status guarded(Fn&& fn) {
    try {
      fn();
    } catch (const std::exception& e) {
      return Status::internal(std::string("grammar: ") + e.what());
    }
    return {};
  }

  const std::string& bytes_of(TokenId token) const { return tokens_.GetDecodedVocab()[static_cast<size_t>(token)]; }

  xgrammar::GrammarMatcher matcher_;
  const xgrammar::TokenizerInfo tokens_;
  const std::span<const TokenId> control_;  // tokens with control characters; the grammar's
  JsonStrings strings_;
};

class Grammar final : public TokenGrammar {
 public:
  Grammar(xgrammar::CompiledGrammar compiled, std::vector<TokenId> eos, std::shared_ptr<const std::vector<TokenId>> control)
      : compiled_(std::move(compiled)), eos_(std::move(eos)), control_(std::move(control)) {}
  std::unique_ptr<TokenConstraint> begin() const override { return std::make_unique<Constraint>(compiled_, eos_, *control_); }

 private:
  const xgrammar::CompiledGrammar compiled_;
  const std::vector<TokenId> eos_;
  const std::shared_ptr<const std::vector<TokenId>> control_;
};

int depth_of(std::string_view json) {
  JsonStrings strings;
  int depth = 0, most = 0;
  for (const char& byte : json) {
    (void)strings.push({&byte, 1});
    if (strings.inside()) continue;
    if (byte == '{' || byte == '[') most = std::max(most, ++depth);
    if (byte == '}' || byte == ']') --depth;
  }
  return most;
}

// The bytes of each token; none: it never comes.
std::vector<std::string> vocabulary(const Tokenizer& tokenizer, int32_t vocab) {
  std::vector<std::string> tokens(static_cast<size_t>(vocab));
  for (TokenId id = 0; id < std::min(vocab, tokenizer.vocab_size()); ++id) {
    if (!tokenizer.is_special(id)) tokens[static_cast<size_t>(id)] = tokenizer.id_to_bytes(id);
  }
  return tokens;
}

}  // namespace

struct JsonGrammars::Compiler {
  Compiler(const std::vector<std::string>& tokens, const std::vector<TokenId>& eos)
      : compiler(xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, static_cast<int>(tokens.size()), eos),
                 /*max_threads=*/1, /*cache_enabled=*/true, kCacheBytesMax) {
    auto ids = std::make_shared<std::vector<TokenId>>();
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (std::any_of(tokens[id].begin(), tokens[id].end(), JsonStrings::is_control)) ids->push_back(static_cast<TokenId>(id));
    }
    control = std::move(ids);
  }
  xgrammar::GrammarCompiler compiler;
  std::shared_ptr<const std::vector<TokenId>> control;  // tokens with control characters
};

JsonGrammars::JsonGrammars(const Tokenizer& tokenizer, int32_t vocab, std::vector<TokenId> eos)
    : tokenizer_(tokenizer), vocab_(vocab), eos_(std::move(eos)) {}

JsonGrammars::~JsonGrammars() = default;

Result<std::shared_ptr<const TokenGrammar>> JsonGrammars::compile(std::string_view schema) {
  if (schema.size() > kSchemaBytesMax)
    return Status::invalid_argument("json_schema: " + std::to_string(schema.size()) + " bytes, more than " +
                                    std::to_string(kSchemaBytesMax));
  if (depth_of(schema) > kDepthMax)
    return Status::invalid_argument("json_schema: it is nested more than " + std::to_string(kDepthMax) + " deep");
  std::lock_guard<std::mutex> lock(mutex_);
  try {
    if (!compiler_) compiler_ = std::make_unique<Compiler>(vocabulary(tokenizer_, vocab_), eos_);
    const std::string text = schema.empty() ? kAnyObject : std::string(schema);
    return std::shared_ptr<const TokenGrammar>(
        std::make_shared<Grammar>(compiler_->compiler.CompileJSONSchema(text, /*any_whitespace=*/true, std::nullopt, std::nullopt,
                                                                        /*strict_mode=*/true, kWhitespaceMax),
                                  eos_, compiler_->control));
  } catch (const std::exception& e) {
    return Status::invalid_argument(std::string("json_schema: ") + e.what());
  }
}

}  // namespace fovea
