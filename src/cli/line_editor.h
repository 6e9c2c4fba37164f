// Lines from a terminal, with editing and history, or from what else stdin is.
#pragma once

#include <memory>
#include <string>

namespace fovea::cli {

class LineEditor {
 public:
  enum class Event { line, interrupted, end };  // interrupted: by Ctrl-C

  // Edits lines where stdin and stderr are terminals. `history`: a file that keeps lines beyond this run; empty: none does.
  explicit LineEditor(std::string history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;

  // Without its line break. The prompt is shown on terminals alone.
  Event read(const char* prompt, std::string* line);
  bool is_terminal() const { return terminal_ != nullptr; }

 private:
  struct Terminal;
  std::unique_ptr<Terminal> terminal_;
};

}  // namespace fovea::cli
