#include "server/reply_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace fovea::server {
namespace {

using Json = nlohmann::ordered_json;

Output text_event(int32_t index, const std::string& text, TokenId token = 1) {
  Output out;
  out.index = index;
  out.text = text;
  out.tokens = {token};
  return out;
}

Output last_event(int32_t index, const std::string& text, FinishReason reason = FinishReason::stop) {
  Output out = text_event(index, text);
  out.finished = true;
  out.reason = reason;
  out.stats.prompt_tokens = 10;
  out.stats.cached_tokens = 4;
  out.stats.loaded_tokens = 2;
  out.stats.output_tokens = 3;
  out.stats.kv_bytes_read = 25;
  out.stats.kv_bytes_dense = 100;
  return out;
}

ReplyOptions options(bool is_chat, bool stream) {
  ReplyOptions o;
  o.is_chat = is_chat;
  o.stream = stream;
  o.include_usage = stream;
  o.id = "id";
  o.model = "m";
  o.prompt_tokens = {10};
  o.token_bytes = [](TokenId t) { return t == 9 ? std::string("\xC3") : "t" + std::to_string(t); };
  return o;
}

// The JSON of each event; what is no event fails.
std::vector<Json> events_of(std::string stream) {
  std::vector<Json> events;
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n"));
  stream.resize(stream.size() - std::min<size_t>(stream.size(), 14));
  while (!stream.empty()) {
    const size_t end = stream.find("\n\n");
    EXPECT_TRUE(stream.starts_with("data: ") && end != std::string::npos) << stream;
    events.push_back(Json::parse(stream.substr(6, end - 6)));
    stream.erase(0, end + 2);
  }
  return events;
}

TEST(ReplyWriter, AStreamSaysWhatTheWholeReplySays) {
  for (const bool is_chat : {true, false}) {
    ReplyOptions whole_options = options(is_chat, false), stream_options = options(is_chat, true);
    whole_options.answers = stream_options.answers = 2;
    whole_options.prompt_tokens = stream_options.prompt_tokens = {10, 5};
    ReplyWriter whole(whole_options), stream(stream_options);
    const std::pair<int32_t, Output> outputs[] = {{0, text_event(0, "a")},      {1, text_event(1, "x\n\n")},
                                                  {0, text_event(0, "")},       {0, last_event(0, "b")},
                                                  {1, last_event(1, "data: ")}, {0, last_event(1, "", FinishReason::length)},
                                                  {1, last_event(0, "c")}};
    std::string sent;
    for (const auto& [prompt, out] : outputs) {
      EXPECT_FALSE(whole.finished());
      EXPECT_EQ(whole.take(prompt, out), "");
      sent += stream.take(prompt, out);
    }
    ASSERT_TRUE(whole.finished() && stream.finished());
    const Json reply = Json::parse(whole.end());
    std::map<int, std::string> texts, reasons;
    const std::vector<Json> events = events_of(sent + stream.end());
    for (const Json& e : events) {
      EXPECT_EQ(e["id"], "id");
      for (const Json& c : e["choices"]) {
        texts[c["index"]] += is_chat ? c["delta"].value("content", "") : c["text"].get<std::string>();
        if (!c["finish_reason"].is_null()) reasons[c["index"]] = c["finish_reason"];
      }
    }
    for (const Json& c : reply["choices"]) {
      EXPECT_EQ(texts[c["index"]], is_chat ? c["message"]["content"] : c["text"]);
      EXPECT_EQ(reasons[c["index"]], c["finish_reason"]);
    }
    EXPECT_EQ(reply["choices"].size(), 4u);
    EXPECT_EQ(reply["choices"][1]["finish_reason"], "length");
    EXPECT_EQ(events.back()["usage"], reply["usage"]);
    EXPECT_EQ(reply["usage"]["prompt_tokens"], 15);
    EXPECT_EQ(reply["usage"]["completion_tokens"], 12);
    EXPECT_EQ(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 12);
    EXPECT_EQ(reply["fovea"]["kv_bytes_share"], 0.25);
    EXPECT_EQ(events[events.size() - 2]["fovea"], reply["fovea"]);
  }
}

TEST(ReplyWriter, EchoComesOnce) {
  for (const bool stream : {true, false}) {
    ReplyOptions o = options(false, stream);
    o.echo = {"prompt"};
    ReplyWriter w(o);
    std::string sent = w.take(0, text_event(0, "a"));
    sent += w.take(0, last_event(0, "b"));
    std::string text;
    if (!stream) text = Json::parse(w.end())["choices"][0]["text"];
    for (const Json& e : stream ? events_of(sent + w.end()) : std::vector<Json>()) {
      if (!e["choices"].empty()) text += e["choices"][0]["text"];
    }
    EXPECT_EQ(text, "promptab");
  }
}

TEST(ReplyWriter, Logprobs) {
  Output out = last_event(0, "ab");
  out.logprobs = {{{1, -0.5f, 1}, {{1, -0.5f, 1}, {2, -INFINITY, 2}}}, {{9, -1.5f, 3}, {{1, -0.25f, 1}}}};
  ReplyWriter chat(options(true, false)), text(options(false, false));
  chat.take(0, out);
  text.take(0, out);
  const Json content = Json::parse(chat.end())["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "t1");
  EXPECT_EQ(content[0]["top_logprobs"][1]["logprob"], -9999.0);
  EXPECT_EQ(content[1]["bytes"], Json::array({0xC3}));
  const Json lists = Json::parse(text.end())["choices"][0]["logprobs"];
  EXPECT_EQ(lists["tokens"][0], "t1");
  EXPECT_EQ(lists["token_logprobs"], Json::array({-0.5, -1.5}));
  EXPECT_EQ(lists["text_offset"], Json::array({0, 2}));
  EXPECT_EQ(lists["top_logprobs"][0]["t1"], -0.5);
}

TEST(ReplyWriter, EchoedLogprobsBeginWithThePrompts) {
  ReplyOptions o = options(false, false);
  o.echo = {"p"};
  o.logprobs = true;
  ReplyWriter w(o);
  Output out = last_event(0, "a");
  out.prompt_logprobs = {{{5, 0, 0}, {}}, {{6, -2, 1}, {{6, -2, 1}}}};
  out.logprobs = {{{7, -1, 1}, {}}};
  w.take(0, out);
  const Json lists = Json::parse(w.end())["choices"][0]["logprobs"];
  EXPECT_EQ(lists["tokens"], Json::array({"t5", "t6", "t7"}));
  EXPECT_EQ(lists["token_logprobs"], Json::array({nullptr, -2.0, -1.0}));
  EXPECT_TRUE(lists["top_logprobs"][0].is_null());
}

TEST(ReplyWriter, LogprobsOfPromptsByVllmsField) {
  for (const bool is_chat : {false, true}) {
    ReplyOptions o = options(is_chat, false);
    o.prompt_logprobs = true;
    o.answers = 2;
    o.token_bytes = [](TokenId t) { return "t" + std::to_string(t); };
    Output out = last_event(0, "a");
    out.prompt_logprobs = {{{5, 0, 0}, {}}, {{6, -2, 2}, {{7, -1, 1}}}};
    const Json want = Json::parse(R"([null, {"6": {"logprob": -2.0, "rank": 2, "decoded_token": "t6"},
                                             "7": {"logprob": -1.0, "rank": 1, "decoded_token": "t7"}}])");
    ReplyWriter whole(o);
    whole.take(0, out);
    whole.take(0, last_event(1, "b"));
    const Json reply = Json::parse(whole.end());
    EXPECT_EQ((is_chat ? reply : reply["choices"][0])["prompt_logprobs"], want);
    if (!is_chat) {
      EXPECT_EQ(reply["choices"][1]["prompt_logprobs"], want);
    }
    EXPECT_TRUE(reply["choices"][0]["logprobs"].is_null());
    o.stream = true;
    ReplyWriter stream(o);
    Output first = text_event(0, "");
    first.prompt_logprobs = out.prompt_logprobs;
    const std::vector<Json> events = events_of(stream.take(0, first) + stream.end());
    const Json& told = events[is_chat ? 1 : 0];  // behind the role
    EXPECT_EQ((is_chat ? told : told["choices"][0])["prompt_logprobs"], want);
  }
}

// Whichever answer it belongs to: what an echo repeats has its logprobs.
TEST(ReplyWriter, EveryEchoHasThePromptsLogprobs) {
  ReplyOptions o = options(false, false);
  o.echo = {"xy"};
  o.answers = 2;
  o.logprobs = true;
  o.token_bytes = [](TokenId t) { return "t" + std::to_string(t); };
  ReplyWriter w(o);
  Output out = last_event(0, "a");
  out.prompt_logprobs = {{{5, 0, 0}, {}}, {{6, -2, 1}, {}}};
  out.logprobs = {{{7, -1, 1}, {}}};
  w.take(0, out);
  Output second = last_event(1, "b");
  second.logprobs = {{{8, -1, 1}, {}}};
  w.take(0, second);
  const Json choices = Json::parse(w.end())["choices"];
  EXPECT_EQ(choices[0]["logprobs"]["tokens"], Json::array({"t5", "t6", "t7"}));
  EXPECT_EQ(choices[1]["logprobs"]["tokens"], Json::array({"t5", "t6", "t8"}));
}

TEST(ReplyWriter, CallsOfToolsAreNoText) {
  ReplyOptions whole_options = options(true, false), stream_options = options(true, true);
  whole_options.tools = stream_options.tools = {"f"};
  ReplyWriter whole(whole_options), stream(stream_options);
  std::string sent;
  for (const Output& out : {text_event(0, "I ask. <tool"), text_event(0, "_call>{\"name\": \"f\", "),
                            text_event(0, "\"arguments\": {\"a\": 1}}"), last_event(0, "</tool_call>")}) {
    whole.take(0, out);
    sent += stream.take(0, out);
  }
  const Json choice = Json::parse(whole.end())["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "I ask. ");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Json& call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"], (Json{{"name", "f"}, {"arguments", "{\"a\":1}"}}));
  const std::vector<Json> events = events_of(sent + stream.end());
  const Json& last = events[events.size() - 2]["choices"][0];
  EXPECT_EQ(last["finish_reason"], "tool_calls");
  EXPECT_EQ(last["delta"]["tool_calls"][0]["function"], call["function"]);
  EXPECT_EQ(last["delta"]["tool_calls"][0]["id"], call["id"]);
  EXPECT_EQ(events[1]["choices"][0]["delta"]["content"], "I ask. ");
}

TEST(ReplyWriter, AFailureIsNoReply) {
  ReplyWriter w(options(true, true));
  Output out;
  out.finished = true;
  out.reason = FinishReason::failed;
  out.error = Status::invalid_argument("prompt: too long");
  EXPECT_EQ(w.take(0, out), "");
  EXPECT_TRUE(w.finished());
  EXPECT_FALSE(w.began());
  EXPECT_EQ(w.error().message(), "prompt: too long");
  const std::vector<Json> events = events_of(ReplyWriter::end_with_error(400, "prompt: too long", "prompt"));
  EXPECT_EQ(events[0]["error"]["param"], "prompt");
  EXPECT_EQ(events[0]["error"]["type"], "invalid_request_error");
}

TEST(ReplyWriter, WhatWasReadComesInRanges) {
  ReplyOptions o = options(true, true);
  o.reading_map = true;
  o.block_tokens = 32;
  o.decode_method = "gsa";
  ReplyWriter w(o);
  std::string sent = w.progress(0, 3);
  const std::vector<int32_t> read = {0, 1, 2, 7, 9, 10};
  sent += w.take(0, text_event(0, "a"), &read);
  sent += w.take(0, last_event(0, "b"));
  const std::vector<Json> events = events_of(sent + w.end());
  EXPECT_EQ(events[0]["fovea"], (Json{{"prompt_tokens", 10}, {"block_tokens", 32}}));
  EXPECT_EQ(events[1]["fovea"], (Json{{"computed_tokens", 3}, {"prompt_tokens", 10}}));
  EXPECT_EQ(events[2]["fovea"]["read"], Json::parse("[[0,2],[7,7],[9,10]]"));
  EXPECT_FALSE(events[3]["fovea"].contains("read"));
  o.decode_method = "dense";
  ReplyWriter dense(o);
  EXPECT_NE(dense.take(0, text_event(0, "a"), &read).find(R"("read":"all")"), std::string::npos);
}

TEST(ReplyWriter, ErrorsHaveOpenAisShape) {
  const Json e = Json::parse(error_body(404, "model: no \"x\"\n", "model"))["error"];
  EXPECT_EQ(e["message"], "model: no \"x\"\n");
  EXPECT_EQ(e["param"], "model");
  EXPECT_EQ(e["code"], 404);
  EXPECT_TRUE(Json::parse(error_body(500, "\xFF"))["error"]["param"].is_null());
  EXPECT_EQ(http_status_of(Status::busy("x")), 429);
  EXPECT_EQ(http_status_of(Status::internal("x")), 500);
  EXPECT_EQ(http_status_of(Status::unsupported("x")), 400);
}

}  // namespace
}  // namespace fovea::server
