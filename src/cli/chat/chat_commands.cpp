#include "cli/chat/chat_commands.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

namespace fovea::cli {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kQuotes = "\"\"\"";

struct Verb {
  const char* name;
  ChatVerb verb;
  const char* argument;  // what it needs; null: nothing
  const char* help;
};
constexpr Verb kVerbs[] = {
    {"/file", ChatVerb::file, "PATH", "attach this file to the next message; repeat for more files"},
    {"/method", ChatVerb::method, "NAME", "attention method for answers: dense, gsa_on_device ... with options in brackets"},
    {"/budget", ChatVerb::budget, "TOKENS", "context tokens that each step reads; 0: the method's own budget"},
    {"/system", ChatVerb::system, "TEXT", "set the system message and start a new conversation"},
    {"/retry", ChatVerb::retry, nullptr, "ask the last message again"},
    {"/clear", ChatVerb::clear, nullptr, "start a new conversation"},
    {"/help", ChatVerb::help, nullptr, "show this list"},
    {"/quit", ChatVerb::quit, nullptr, "exit; Ctrl-D does too"},
};

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace

Result<ChatCommand> parse_chat_command(std::string_view message) {
  ChatCommand command;
  if (!message.starts_with('/') || message.starts_with("//")) {
    command.text = message.substr(message.starts_with('/') ? 1 : 0);
    return command;
  }
  const std::string name(message.substr(0, message.find_first_of(kSpace)));
  const auto verb = std::find_if(std::begin(kVerbs), std::end(kVerbs), [&](const Verb& v) { return name == v.name; });
  if (verb == std::end(kVerbs)) return Status::invalid_argument(name + ": no such command; /help lists them");
  const std::string_view argument = trimmed(message.substr(name.size()));
  if (argument.empty() != (verb->argument == nullptr))
    return Status::invalid_argument(name + (verb->argument ? std::string(": needs ") + verb->argument : " takes nothing"));
  command.verb = verb->verb;
  command.text = argument;
  if (verb->verb != ChatVerb::budget) return command;
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), command.budget);
  if (error != std::errc() || end != argument.data() + argument.size() || command.budget < 0)
    return Status::invalid_argument(name + " " + command.text + ": must be a number of tokens, 0 or more");
  return command;
}

std::string chat_help() {
  std::string text;
  for (const Verb& v : kVerbs) {
    std::string use = std::string("  ") + v.name + (v.argument ? std::string(" ") + v.argument : "");
    use.resize(std::max<size_t>(use.size(), 18), ' ');
    text += use + v.help + "\n";
  }
  return text +
         "  A line that ends in \\ continues on the next; lines between two \"\"\" are one message.\n"
         "  Ctrl-C stops an answer or clears what is typed. // starts a message that begins with a slash.\n";
}

bool MessageLines::add(std::string_view line, std::string* message) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (quoted_ ? trimmed(line) == kQuotes : !open_ && trimmed(line) == kQuotes) {
    quoted_ = !quoted_;
    open_ = quoted_;
    if (quoted_) return false;
    if (held_.ends_with('\n')) held_.pop_back();
    *message = std::exchange(held_, {});
    return true;
  }
  if (quoted_) {
    held_.append(line).push_back('\n');
    return false;
  }
  open_ = line.ends_with('\\');
  if (open_) {
    held_.append(line.substr(0, line.size() - 1)).push_back('\n');
    return false;
  }
  held_ += line;
  *message = std::exchange(held_, {});
  return true;
}

bool MessageLines::finish(std::string* message) {
  if (!open_) return false;
  *message = std::exchange(held_, {});
  drop();
  return true;
}

void MessageLines::drop() {
  held_.clear();
  open_ = quoted_ = false;
}

}  // namespace fovea::cli
