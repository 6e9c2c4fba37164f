// libedit: the line editor of the BSDs, under their licence. GNU readline, which offers the same, is under the GPL and would put the
// program under it.
#include "cli/line_editor.h"

#include <histedit.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <iostream>

namespace fovea::cli {

struct LineEditor::Terminal {
  EditLine* edit = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string file;
  const char* prompt = "";

  ~Terminal() {
    if (!file.empty()) {
      const mode_t mask = ::umask(0077);  // what people ask is nobody else's
      ::history(history, &event, H_SAVE, file.c_str());
      ::umask(mask);
    }
    el_end(edit);
    history_end(history);
  }
};

LineEditor::LineEditor(std::string file) {
  if (!isatty(0) || !isatty(2)) return;
  // libedit counts columns by the locale's characters.
  if (!std::setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
  terminal_ = std::make_unique<Terminal>();
  Terminal& t = *terminal_;
  t.file = std::move(file);
  t.history = history_init();
  ::history(t.history, &t.event, H_SETSIZE, 1000);
  ::history(t.history, &t.event, H_SETUNIQUE, 1);
  if (!t.file.empty()) ::history(t.history, &t.event, H_LOAD, t.file.c_str());
  t.edit = el_init("fovea", stdin, stderr, stderr);  // answers alone go to stdout
  el_set(t.edit, EL_CLIENTDATA, &t);
  el_set(
      t.edit, EL_PROMPT, +[](EditLine* edit) {
        Terminal* self = nullptr;
        el_get(edit, EL_CLIENTDATA, &self);
        return const_cast<char*>(self->prompt);
      });
  el_set(t.edit, EL_EDITOR, "emacs");
  el_set(t.edit, EL_HIST, ::history, t.history);
  el_source(t.edit, nullptr);  // ~/.editrc
}

LineEditor::~LineEditor() = default;

LineEditor::Event LineEditor::read(const char* prompt, std::string* line) {
  errno = 0;
  if (!terminal_) {
    if (std::getline(std::cin, *line)) return Event::line;
    return errno == EINTR ? Event::interrupted : Event::end;
  }
  Terminal& t = *terminal_;
  t.prompt = prompt;
  int bytes = 0;
  const char* const text = el_gets(t.edit, &bytes);
  if (!text || bytes <= 0) {
    const bool interrupted = bytes < 0 && errno == EINTR;
    std::fputs("\n", stderr);
    if (interrupted) el_reset(t.edit);
    return interrupted ? Event::interrupted : Event::end;
  }
  line->assign(text, static_cast<size_t>(bytes));
  if (line->find_first_not_of(" \t\n") != std::string::npos) ::history(t.history, &t.event, H_ENTER, line->c_str());
  if (line->ends_with('\n')) line->pop_back();
  return Event::line;
}

}  // namespace fovea::cli
