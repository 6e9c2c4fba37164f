// How byte-level vocabularies split text, by the names that GGUF files give (tokenizer.ggml.pre).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fovea/status.h>
#include "text/tokenizer/pre_tokenizer.h"

namespace fovea {

struct PreTokenizerRow {
  std::string_view names;                // separated by blanks
  std::vector<std::string> (*splits)();  // regexes, one after the other, that isolate what they match
  bool nfc = false;                      // text is normalized before
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

// Null: no row has this name.
const PreTokenizerRow* find_pre_tokenizer(std::string_view name);

// The first name of a row that splits so; empty: none does.
std::string_view name_pre_tokenizer(const std::vector<std::string>& splits, bool nfc, bool ignore_merges);

// All names, for error lines.
std::string pre_tokenizer_names();

Result<PreTokenizer> make_pre_tokenizer(const PreTokenizerRow& row);

}  // namespace fovea
