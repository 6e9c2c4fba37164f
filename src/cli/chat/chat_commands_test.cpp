#include "cli/chat/chat_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace fovea::cli {
namespace {

using testing::ElementsAre;

ChatCommand parsed(const char* message) {
  const auto command = parse_chat_command(message);
  EXPECT_TRUE(command.ok()) << command.status().message();
  return command.ok() ? *command : ChatCommand{};
}

std::string error_of(const char* message) {
  const auto command = parse_chat_command(message);
  return command.ok() ? "" : command.status().message();
}

TEST(ChatCommands, WhatHasNoSlashIsSaid) {
  for (const char* said : {"", "hello", " /file a", "a\n/file b"}) {
    EXPECT_EQ(parsed(said).verb, ChatVerb::say);
    EXPECT_EQ(parsed(said).text, said);
  }
  EXPECT_EQ(parsed("//etc/hosts: what is it?").text, "/etc/hosts: what is it?");
}

TEST(ChatCommands, Commands) {
  EXPECT_EQ(parsed("/file  a b.txt ").verb, ChatVerb::file);
  EXPECT_EQ(parsed("/file  a b.txt ").text, "a b.txt");
  EXPECT_EQ(parsed("/method gsa_on_device[hash_bits=64]").text, "gsa_on_device[hash_bits=64]");
  EXPECT_EQ(parsed("/budget 512").budget, 512);
  EXPECT_EQ(parsed("/budget 0").budget, 0);
  EXPECT_EQ(parsed("/system Be brief.\nAnd kind.").text, "Be brief.\nAnd kind.");
  EXPECT_EQ(parsed("/retry").verb, ChatVerb::retry);
  EXPECT_EQ(parsed("/clear ").verb, ChatVerb::clear);
  EXPECT_EQ(parsed("/help").verb, ChatVerb::help);
  EXPECT_EQ(parsed("/quit").verb, ChatVerb::quit);
  for (const char* name : {"/file", "/method", "/budget", "/system", "/retry", "/clear", "/help", "/quit"})
    EXPECT_THAT(chat_help(), testing::HasSubstr(name));
}

TEST(ChatCommands, ErrorsNameTheCommand) {
  EXPECT_EQ(error_of("/"), "/: no such command; /help lists them");
  EXPECT_EQ(error_of("/files a"), "/files: no such command; /help lists them");
  EXPECT_EQ(error_of("/file"), "/file: needs PATH");
  EXPECT_EQ(error_of("/retry now"), "/retry takes nothing");
  for (const char* budget : {"/budget x", "/budget -1", "/budget 1.5", "/budget 99999999999", "/budget 1 2"})
    EXPECT_THAT(error_of(budget), testing::EndsWith("must be a number of tokens, 0 or more"));
}

std::vector<std::string> messages(const std::vector<std::string>& lines) {
  MessageLines reader;
  std::vector<std::string> whole;
  std::string message;
  for (const std::string& line : lines) {
    if (reader.add(line, &message)) whole.push_back(message);
  }
  if (reader.finish(&message)) whole.push_back(message + " (cut)");
  EXPECT_FALSE(reader.open());
  return whole;
}

TEST(MessageLines, MakesMessages) {
  EXPECT_THAT(messages({"a", "", "b\r"}), ElementsAre("a", "", "b"));
  EXPECT_THAT(messages({"a\\", "b\\", "c", "d"}), ElementsAre("a\nb\nc", "d"));
  EXPECT_THAT(messages({"\"\"\"", "a\\", "", " b", "\"\"\" ", "c"}), ElementsAre("a\\\n\n b", "c"));
  EXPECT_THAT(messages({"\"\"\"", "\"\"\"", "c"}), ElementsAre("", "c"));
  EXPECT_THAT(messages({"a\\", "\"\"\"", "b"}), ElementsAre("a\n\"\"\"", "b"));  // it is a line of it
  EXPECT_THAT(messages({"a \"\"\" b"}), ElementsAre("a \"\"\" b"));
  EXPECT_THAT(messages({"\"\"\"", "a"}), ElementsAre("a\n (cut)"));
  EXPECT_THAT(messages({"a\\"}), ElementsAre("a\n (cut)"));
}

TEST(MessageLines, WhatIsDroppedLeavesNothing) {
  MessageLines reader;
  std::string message;
  EXPECT_FALSE(reader.add("\"\"\"", &message));
  EXPECT_FALSE(reader.add("a", &message));
  EXPECT_TRUE(reader.open());
  reader.drop();
  EXPECT_FALSE(reader.open());
  EXPECT_TRUE(reader.add("b", &message));
  EXPECT_EQ(message, "b");
}

}  // namespace
}  // namespace fovea::cli
