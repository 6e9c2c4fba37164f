// JSON schemas as grammars over a model's tokens, by xgrammar (tools/deps.sh): it compiles a schema to automata and gives the tokens
// that may come next in microseconds.
#pragma once

#include "text/tokenizer/tokenizer.h"

#include <fovea/grammar.h>

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace fovea {

class JsonGrammars {
 public:
  static constexpr size_t kSchemaBytesMax = size_t{64} << 10;
  static constexpr int kDepthMax = 32;       // of a schema: compiling takes longer with each level
  static constexpr int kWhitespaceMax = 32;  // in a row: a model that likes blanks would never end

  // vocab: of the model's logits; ids that name no token never come, nor do special ones, but `eos` where a text may end.
  // `tokenizer` outlives the object.
  JsonGrammars(const Tokenizer& tokenizer, int32_t vocab, std::vector<TokenId> eos);
  ~JsonGrammars();

  // Of texts that satisfy the schema; empty: of any object. Objects have no properties beyond those that a schema names, unless it
  // says additionalProperties. Schemas are remembered. From any thread, one after the other. Errors: invalid_argument.
  Result<std::shared_ptr<const TokenGrammar>> compile(std::string_view schema);

 private:
  struct Compiler;

  const Tokenizer& tokenizer_;
  const int32_t vocab_;
  const std::vector<TokenId> eos_;
  std::mutex mutex_;  // guards compiler_
  std::unique_ptr<Compiler> compiler_;
};

}  // namespace fovea
