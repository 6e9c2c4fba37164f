#include "server/request_decoder.h"

#include "server/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fovea::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

CompletionCall chat(const std::string& body) {
  const auto call = decode_chat(body, {});
  EXPECT_TRUE(call.ok()) << call.status().message();
  return call.ok() ? *call : CompletionCall{};
}

CompletionCall completion(const std::string& body) {
  const auto call = decode_completion(body, {});
  EXPECT_TRUE(call.ok()) << call.status().message();
  return call.ok() ? *call : CompletionCall{};
}

// A chat whose other fields are these.
std::string ask(const std::string& fields) { return R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}"; }

std::string error_of(const std::string& body, const DecodeLimits& limits = {}) {
  const auto call = decode_chat(body, limits);
  return call.ok() ? "" : call.status().message();
}

TEST(RequestDecoder, AChatWithEverything) {
  const CompletionCall c = chat(ask(R"("model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1,
      "repetition_penalty": 1.1, "frequency_penalty": -1, "presence_penalty": 2, "seed": -1, "n": 3, "max_tokens": 5,
      "max_completion_tokens": 7, "stop": ["a", "b"], "stop_token_ids": [1, 2], "ignore_eos": true, "min_tokens": 2, "logprobs": true,
      "top_logprobs": 4, "logit_bias": {"3": -100, "5": 1.5}, "cache_salt": "s", "stream": true,
      "stream_options": {"include_usage": true}, "chat_template_kwargs": {"enable_thinking": false}, "user": "u",
      "fovea": {"decode_method": "gsa", "prefill_method": "dense", "budget_tokens": 64})"));
  EXPECT_TRUE(c.is_chat);
  EXPECT_EQ(c.model, "m");
  const SamplingParams s = c.sampling.over({});
  EXPECT_FLOAT_EQ(s.temperature, 0.5f);
  EXPECT_FLOAT_EQ(s.top_p, 0.9f);
  EXPECT_EQ(s.top_k, 40);
  EXPECT_FLOAT_EQ(s.min_p, 0.1f);
  EXPECT_FLOAT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_FLOAT_EQ(s.frequency_penalty, -1);
  EXPECT_FLOAT_EQ(s.presence_penalty, 2);
  EXPECT_EQ(s.seed, ~uint64_t{0});
  EXPECT_EQ(s.n, 3);
  EXPECT_EQ(c.max_tokens, 7);
  EXPECT_THAT(s.stop, ElementsAre("a", "b"));
  EXPECT_THAT(s.stop_token_ids, ElementsAre(1, 2));
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.min_tokens, 2);
  EXPECT_EQ(s.logprobs, 4);
  EXPECT_THAT(s.logit_bias, ElementsAre(std::pair(3, -100.0f), std::pair(5, 1.5f)));
  EXPECT_EQ(c.cache_salt, "s");
  EXPECT_TRUE(c.stream && c.include_usage);
  EXPECT_EQ(c.chat.variables, R"({"enable_thinking":false})");
  EXPECT_EQ(c.decode_method, "gsa");
  EXPECT_EQ(c.prefill_method, "dense");
  EXPECT_EQ(c.budget_tokens, 64);
}

TEST(RequestDecoder, WhatIsLeftOutOrNullIsTheModels) {
  SamplingParams model;
  model.temperature = 0.7f;
  model.top_k = 20;
  const CompletionCall c = chat(ask(R"("temperature": null, "stop": null, "n": null, "stream": null, "tools": null)"));
  const SamplingParams s = c.sampling.over(model);
  EXPECT_FLOAT_EQ(s.temperature, 0.7f);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.n, 1);
  EXPECT_FALSE(c.max_tokens);
  EXPECT_FALSE(c.stream);
  EXPECT_EQ(chat(ask(R"("top_k": -1)")).sampling.over(model).top_k, 0);
}

TEST(RequestDecoder, MessagesAndTools) {
  const CompletionCall c = chat(R"({"messages": [
      {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
      {"role": "tool", "content": "c", "tool_call_id": "1"}], "tools": [{"type": "function", "function": {"name": "f"}}]})");
  ASSERT_EQ(c.chat.messages.size(), 3u);
  EXPECT_EQ(c.chat.messages[0].content, "a\nb");
  EXPECT_EQ(c.chat.messages[1].fields, R"({"tool_calls":[{"id":"1"}]})");
  EXPECT_EQ(c.chat.messages[2].fields, R"({"tool_call_id":"1"})");
  EXPECT_EQ(c.chat.tools, R"([{"type":"function","function":{"name":"f"}}])");
  EXPECT_THAT(c.tools, ElementsAre("f"));
  EXPECT_EQ(c.tool_schema, "");
  EXPECT_EQ(chat(ask(R"("tools": [{}], "tool_choice": "none")")).chat.tools, "");
}

TEST(RequestDecoder, ACallThatIsRequired) {
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}}},
                                         {"type": "function", "function": {"name": "g"}}], )";
  const auto schema = [&](const char* choice) { return nlohmann::json::parse(chat(ask((tools + choice).c_str())).tool_schema); };
  const auto both = schema(R"("tool_choice": "required")")["anyOf"];
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["properties"]["name"]["const"], "f");
  EXPECT_EQ(both[0]["properties"]["arguments"]["required"][0], "a");
  EXPECT_EQ(both[1]["properties"]["arguments"], nlohmann::json({{"type", "object"}}));
  const auto one = schema(R"("tool_choice": {"type": "function", "function": {"name": "g"}})")["anyOf"];
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0]["properties"]["name"]["const"], "g");
}

TEST(RequestDecoder, DefinitionsOfAToolStandAtItsSchemasRoot) {
  const CompletionCall call = chat(ask(R"("tool_choice": "required", "tools": [{"type": "function", "function":
      {"name": "f", "parameters": {"$ref": "#/$defs/a", "$defs": {"a": {}}}}}])"));
  EXPECT_EQ(nlohmann::json::parse(call.tool_schema), nlohmann::json::parse(R"({"$defs": {"a": {}}, "anyOf": [{"type": "object",
      "properties": {"name": {"const": "f"}, "arguments": {"$ref": "#/$defs/a"}}, "required": ["name", "arguments"],
      "additionalProperties": false}]})"));
}

TEST(RequestDecoder, DocumentsThatArePutAndAsked) {
  const auto call =
      decode_document(R"({"text": "abc", "name": "n", "system": "s", "cache_salt": "t", "expires_after_s": 60, "wait": false,
                                        "fovea": {"prefill_method": "xattention"}})",
                      {});
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call->text + call->name + call->system + call->cache_salt + call->prefill_method, "abcnstxattention");
  EXPECT_EQ(call->expires_after_s, 60);
  EXPECT_FALSE(call->wait);
  const auto refused = [](const char* body) { return decode_document(body, {}).status().message(); };
  EXPECT_EQ(refused("{}"), "text: is missing");
  EXPECT_EQ(refused(R"({"text": 1})"), "text: must be a string");
  EXPECT_EQ(refused(R"({"text": "a", "expires_after_s": -1})"), "expires_after_s: must lie in [0, 3162240000]");
  EXPECT_EQ(refused(R"({"text": "a", "fovea": {"prefill_method": 1}})"), "fovea.prefill_method: must be a string");
  EXPECT_EQ(chat(ask(R"("fovea": {"document": "doc-1"})")).document, "doc-1");
}

TEST(RequestDecoder, Prompts) {
  EXPECT_THAT(completion(R"({"prompt": "a"})").prompts, ElementsAre(Prompt("a")));
  EXPECT_THAT(completion(R"({"prompt": ["a", "b"]})").prompts, ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(completion(R"({"prompt": [1, 2]})").prompts, ElementsAre(Prompt(std::vector<TokenId>{1, 2})));
  EXPECT_THAT(completion(R"({"prompt": [[1], [2, 3]]})").prompts,
              ElementsAre(Prompt(std::vector<TokenId>{1}), Prompt(std::vector<TokenId>{2, 3})));
  EXPECT_EQ(completion(R"({"prompt": "a"})").max_tokens, 16);
  EXPECT_EQ(completion(R"({"prompt": "a", "max_tokens": 0, "logprobs": 2})").sampling.rest.logprobs, 2);
  for (const char* bad :
       {R"({"prompt": 1})", R"({"prompt": []})", R"({"prompt": [[]]})", R"({"prompt": [1, "a"]})", R"({"prompt": [-1]})",
        R"({"prompt": [1.5]})", R"({"prompt": [4294967297]})", R"({"prompt": [{}]})", "{}"}) {
    const auto call = decode_completion(bad, {});
    ASSERT_FALSE(call.ok()) << bad;
    EXPECT_EQ(field_of(call.status().message()), "prompt") << bad;
  }
}

TEST(RequestDecoder, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature": -0.1)", "temperature"},
      {R"("temperature": 2.1)", "temperature"},
      {R"("temperature": true)", "temperature"},
      {R"("temperature": 1e999)", ""},
      {R"("top_p": 0)", "top_p"},
      {R"("top_p": 1.01)", "top_p"},
      {R"("min_p": 2)", "min_p"},
      {R"("top_k": -2)", "top_k"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("top_k": 99999999999)", "top_k"},
      {R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("frequency_penalty": 3)", "frequency_penalty"},
      {R"("presence_penalty": -3)", "presence_penalty"},
      {R"("n": 0)", "n"},
      {R"("n": 257)", "n"},
      {R"("seed": "x")", "seed"},
      {R"("seed": 18446744073709551615)", "seed"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": -5)", "max_tokens"},
      {R"("max_completion_tokens": "5")", "max_completion_tokens"},
      {R"("min_tokens": -1)", "min_tokens"},
      {R"("stop": "")", "stop"},
      {R"("stop": [1])", "stop"},
      {R"("stop": {})", "stop"},
      {R"("stop_token_ids": [1.5])", "stop_token_ids"},
      {R"("stop_token_ids": 1)", "stop_token_ids"},
      {R"("ignore_eos": 1)", "ignore_eos"},
      {R"("logprobs": 1)", "logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("logit_bias": [])", "logit_bias"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {"1": 101})", "logit_bias"},
      {R"("logit_bias": {"1": 1, "01": 1})", "logit_bias"},
      {R"("model": 1)", "model"},
      {R"("stream": "yes")", "stream"},
      {R"("stream_options": {})", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage"},
      {R"("fovea": 1)", "fovea"},
      {R"("fovea": {"budget_tokens": -1})", "fovea.budget_tokens"},
      {R"("fovea": {"decode_method": 1})", "fovea.decode_method"},
      {R"("response_format": {"type": "xml"})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema.schema"},
      {R"("tools": {})", "tools"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tool_choice": "some")", "tool_choice"},
      {R"("tool_choice": {"type": "function", "function": {}})", "tool_choice"},
      {R"("tools": [{"function": {"name": "f"}}], "tool_choice": {"function": {"name": "g"}})", "tool_choice"},
      {R"("tools": [{}], "tool_choice": "required")", "tools[0].function.name"},
      {R"("tools": [{"function": {"name": "f", "parameters": 1}}], "tool_choice": "required")", "tools[0].function.parameters"},
      {R"("tools": [{"function": {"name": "f", "parameters": {"$defs": {"a": 1}}}},
                    {"function": {"name": "g", "parameters": {"$defs": {"a": 2}}}}], "tool_choice": "required")", "tools"},
      {R"("best_of": 2)", "best_of"},
      {R"("functions": [{}])", "functions"},
      {R"("modalities": ["audio"])", "modalities"},
      {R"("chat_template_kwargs": [])", "chat_template_kwargs"},
      {R"("echo": true)", "echo"}};
  for (const auto& [fields, name] : cases) {
    const std::string error = error_of(ask(fields));
    EXPECT_NE(error, "") << fields;
    EXPECT_EQ(field_of(error), name) << error;
  }
}

TEST(RequestDecoder, MessagesThatAreNone) {
  for (const auto& [body, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({})", "messages"},
           {R"({"messages": []})", "messages"},
           {R"({"messages": "x"})", "messages"},
           {R"({"messages": ["x"]})", "messages[0]"},
           {R"({"messages": [{"role": "", "content": "x"}]})", "messages[0].role"},
           {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content"},
           {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages[0].content[0]"},
           {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "messages[0].content[0].text"}}) {
    EXPECT_EQ(field_of(error_of(body)), name) << body;
  }
}

TEST(RequestDecoder, ErrorsNeverRepeatThePrompt) {
  for (const char* body :
       {R"({"messages": "secret)", R"({"messages": [{"role": "user", "content": "secret" "x"}]})", "secret", "\"secret\""})
    EXPECT_THAT(error_of(body), Not(HasSubstr("secret")));
}

TEST(RequestDecoder, EachLimitIsMet) {
  DecodeLimits limits;
  limits.json_depth = 4;
  EXPECT_EQ(error_of(ask(R"("a": [[[]]])"), limits), "");
  EXPECT_THAT(error_of(ask(R"("a": [[[[]]]])"), limits), HasSubstr("deeper than 4"));
  EXPECT_EQ(error_of(ask(R"("a": "[[[[[[[[\"[[[[")"), limits), "");
  std::string keys = "{";
  for (int i = 0; i < 2049; ++i) keys += "\"" + std::to_string(i) + "\":0,";
  EXPECT_THAT(error_of(keys + "\"x\":0}"), HasSubstr("keys"));
  limits = {};
  limits.messages = 1;
  EXPECT_EQ(error_of(ask("\"a\": 1"), limits), "");
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": "x"}]})", limits),
              StartsWith("messages: "));
  limits = {};
  limits.prompt_bytes = 3;
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user", "content": "four"}]})", limits), StartsWith("messages: "));
  EXPECT_FALSE(decode_completion(R"({"prompt": "four"})", limits).ok());
  EXPECT_TRUE(decode_completion(R"({"prompt": "thr"})", limits).ok());
  limits = {};
  limits.prompt_tokens = 2;
  EXPECT_TRUE(decode_completion(R"({"prompt": [1, 2]})", limits).ok());
  EXPECT_FALSE(decode_completion(R"({"prompt": [[1, 2], [3]]})", limits).ok());
  EXPECT_FALSE(decode_detokenize(R"({"tokens": [1, 2, 3]})", limits).ok());
  limits = {};
  limits.prompts = 2;
  EXPECT_FALSE(decode_completion(R"({"prompt": ["a", "b", "c"]})", limits).ok());
  limits = {};
  limits.answers = 4;
  EXPECT_TRUE(decode_completion(R"({"prompt": ["a", "b"], "n": 2})", limits).ok());
  EXPECT_FALSE(decode_completion(R"({"prompt": ["a", "b"], "n": 3})", limits).ok());
  limits = {};
  limits.stops = 1;
  limits.stop_bytes = 2;
  EXPECT_EQ(error_of(ask(R"("stop": ["ab"])"), limits), "");
  EXPECT_THAT(error_of(ask(R"("stop": ["a", "b"])"), limits), StartsWith("stop: "));
  EXPECT_THAT(error_of(ask(R"("stop": "abc")"), limits), StartsWith("stop: "));
}

TEST(RequestDecoder, FieldOfAnError) {
  EXPECT_EQ(field_of("messages[0].content: x"), "messages[0].content");
  EXPECT_EQ(field_of("the body: x"), "");
  EXPECT_EQ(field_of("nothing"), "");
  EXPECT_EQ(field_of(": x"), "");
}

}  // namespace
}  // namespace fovea::server
