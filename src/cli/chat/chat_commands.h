// What people type into `fovea chat`: lines to messages, messages to commands. Pure.
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace fovea::cli {

enum class ChatVerb : uint8_t { say, file, method, budget, system, retry, clear, help, quit };

struct ChatCommand {
  ChatVerb verb = ChatVerb::say;
  std::string text;    // what is said; of /file its path, of /method a name or spec, of /system the message
  int32_t budget = 0;  // of /budget
};

// A message that begins with "/" is a command, with "//" a text that begins with one slash. Errors are one line and name the command.
Result<ChatCommand> parse_chat_command(std::string_view message);

// The commands, a line each.
std::string chat_help();

// Puts lines together: one that ends in "\" goes on with the next; lines between two that are """ are one message, however they end.
class MessageLines {
 public:
  // True: *message is whole. Not: more lines belong to it.
  bool add(std::string_view line, std::string* message);
  bool open() const { return open_; }  // a message has begun
  // The input ended: what a message has so far. False: none has begun.
  bool finish(std::string* message);
  void drop();

 private:
  std::string held_;
  bool open_ = false, quoted_ = false;
};

}  // namespace fovea::cli
