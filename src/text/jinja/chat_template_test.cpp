#include "text/jinja/chat_template.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace fovea {
namespace {

using nlohmann::ordered_json;

std::string dir(const std::string& name) { return std::string(FOVEA_SOURCE_DIR) + "/" + name; }

ordered_json read_json(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return ordered_json::parse(file);
}

Result<std::string> render(std::string_view source, const ordered_json& context = ordered_json::object(),
                           const ChatTemplateLimits& limits = {}) {
  auto parsed = ChatTemplate::parse(source, "t", limits);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->render(context, 0);
}

std::string error_of(std::string_view source, const ordered_json& context = ordered_json::object(),
                     const ChatTemplateLimits& limits = {}) {
  const auto result = render(source, context, limits);
  return result.ok() ? "no error, but: " + *result : result.status().message();
}

// Every template and context of tools/template_cases, as jinja2 renders them.
TEST(ChatTemplate, EqualsJinja2OnTheGoldens) {
  const ordered_json goldens = read_json(dir("tests/data/chat_template/goldens.json"));
  const auto now = goldens["now"].get<std::time_t>();
  int renders = 0;
  for (const ordered_json& row : goldens["templates"]) {
    const auto parsed = ChatTemplate::parse(row["source"].get<std::string>(), row["name"].get<std::string>());
    for (const ordered_json& expected : row["results"]) {
      SCOPED_TRACE(row["name"].get<std::string>() + " on " + expected["context"].get<std::string>() + ": " +
                   row["source"].get<std::string>().substr(0, 300));
      Result<std::string> got =
          parsed.ok() ? (*parsed)->render(goldens["contexts"][expected["context"]], now) : Result<std::string>(parsed.status());
      ++renders;
      if (expected.contains("output")) {
        ASSERT_TRUE(got.ok()) << got.status().message();
        EXPECT_EQ(*got, expected["output"].get<std::string>());
      } else {
        ASSERT_FALSE(got.ok()) << *got;
        EXPECT_NE(got.status().message().find(expected["error"].get<std::string>()), std::string::npos) << got.status().message();
      }
    }
  }
  EXPECT_GE(renders, 330);
}

TEST(ChatTemplate, ErrorsNameTheTemplateAndTheLine) {
  EXPECT_EQ(error_of("a\n{{ raise_exception('roles must alternate') }}"), "t:2: roles must alternate");
  EXPECT_EQ(error_of("\n\n{{ 1 + }}"), "t:3: unexpected 'end of print statement'");
  EXPECT_EQ(error_of("x\n{% if a %}\n"), "t:2: unexpected end of template: the innermost open block is 'if'");
  EXPECT_EQ(error_of("{{ a.b.c }}", {{"a", ordered_json::object()}}), "t:1: 'dict object' has no attribute 'b'");
  EXPECT_EQ(error_of("{% macro m() %}\n{{ nope.x }}{% endmacro %}\n\n{{ m() }}"), "t:2: 'nope' is undefined");
  EXPECT_EQ(error_of("{{ 'a' | nope }}"), "t:1: no filter named 'nope'");
  EXPECT_EQ(error_of("\xff{{ 1 }}"), "t: invalid UTF-8 at byte 0");
  EXPECT_EQ(error_of("{{ 1 }}", ordered_json::array()), "t: the context must be a JSON object");
  EXPECT_EQ(render("{{ raise_exception('x') }}").status().code(), StatusCode::invalid_argument);
}

TEST(ChatTemplate, LimitsStopWhatExpands) {
  ChatTemplateLimits limits;
  limits.max_steps = 300'000;  // the bounds below are found sooner; the default's are the same bounds
  const auto code = [&](std::string_view source) { return render(source, ordered_json::object(), limits).status().code(); };
  for (const char* source : {
           "{{ 'a' * 1000000000 }}",
           "{{ [0] * 1000000000 }}",
           "{{ 'ab' * 9223372036854775807 }}",
           "{{ [0, 1] * 9223372036854775807 }}",
           "{{ 9223372036854775807 + 1 }}",
           "{{ -9223372036854775807 - 2 }}",
           "{{ 9223372036854775807 * 2 }}",
           "{{ 9223372036854775808 }}",
           "{{ range(1000000000) }}",
           "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
           "{% set ns = namespace(s='ab') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
           "{% set ns = namespace(l=[1]) %}{% for a in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor "
           "%}{{ ns.l }}",
           "{% set ns = namespace(l=[1]) %}{% for a in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor "
           "%}{{ ns.l | tojson }}",
           "{% set ns = namespace(l=[1]) %}{% for a in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}",
           "{% set ns = namespace(l=[]) %}{% for a in range(99999) %}{% set ns.l = ns.l + ['x' * 60000] %}{% "
           "endfor %}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}",
           "{{ ('a\\n' * 1000) | indent(1000000000) }}",
           "{{ [1] | tojson(indent=1000000000) }}",
           "{{ ('a' * 9999999).replace('a', 'b' * 9999) }}",
           "{{ ','.join(['a' * 60000] * 99999) }}",
           "{% set a = 'a' * 9999999 %}{% for i in range(99999) %}{% if a ~ 'b' in a %}{% endif %}{% endfor "
           "%}",
       }) {
    EXPECT_NE(code(source), StatusCode::ok) << source;
  }
  EXPECT_EQ(code("{{ 'a' * 1000000000 }}"), StatusCode::resource_exhausted);
  EXPECT_EQ(code("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), StatusCode::resource_exhausted);
}

TEST(ChatTemplate, NestingAndSizeOfTheSourceAreBounded) {
  const auto nested = [](size_t n, const char* open, const char* close) {
    std::string source;
    for (size_t i = 0; i < n; ++i) source += open;
    for (size_t i = 0; i < n; ++i) source += close;
    return source;
  };
  EXPECT_TRUE(render("{{ " + nested(60, "(", "") + "1" + nested(60, ")", "") + " }}").ok());
  for (const std::string& source :
       {"{{ " + nested(5000, "(", "") + "1" + nested(5000, ")", "") + " }}", "{{ " + nested(5000, "[", "]") + " }}",
        nested(5000, "{% if a %}", "{% endif %}"), "{{ " + nested(5000, "not ", "") + "1 }}",
        "{{ " + nested(5000, "-", "") + "1 }}", "{{ " + nested(5000, "1 if 1 else ", "") + "1 }}",
        "{% set " + nested(5000, "(", "") + "a" + nested(5000, ")", "") + " = 1 %}",
        "{{ 1 is " + nested(5000, "a(", ")") + " }}"}) {
    EXPECT_FALSE(render(source).ok()) << source.substr(0, 40);
  }
  EXPECT_EQ(error_of("{{ 1 " + nested(200000, "if 1 ", "") + "}}"), "t:1: the template is nested deeper than 64");
  // Long chains are not deep.
  EXPECT_EQ(*render("{{ 1" + nested(20000, "+1", "") + " }}"), "20001");
  EXPECT_EQ(*render("{{ 'a'" + nested(500, " | upper", "") + " }}"), "A");
  EXPECT_EQ(*render("{% if 0 %}" + nested(2000, "{% elif 0 %}", "") + "{% else %}x{% endif %}"), "x");
  ChatTemplateLimits limits;
  limits.max_source_bytes = 10;
  EXPECT_EQ(error_of("0123456789a", {}, limits), "t: the template has 11 bytes, the limit is 10");
}

TEST(ChatTemplate, LimitsAreTheCallers) {
  ChatTemplateLimits limits;
  limits.max_output_bytes = 10;
  EXPECT_EQ(*render("0123456789", ordered_json::object(), limits), "0123456789");
  EXPECT_EQ(error_of("0123456789a", ordered_json::object(), limits), "t:1: the output is longer than 10 bytes");
  limits = {};
  limits.max_steps = 100;
  EXPECT_EQ(error_of("{% for i in range(1000) %}{% endfor %}", ordered_json::object(), limits),
            "t:1: the template takes more than 100 steps");
  limits = {};
  limits.max_value_bytes = 4096;
  EXPECT_EQ(error_of("{{ m | length }}", {{"m", std::string(5000, 'x')}}, limits),
            "t:1: the template's values take more than 4096 bytes");
}

// Names, parameters and attributes are found by going through them: many of them are refused, or count as the work they are.
TEST(ChatTemplate, ManyNamesCountAsWork) {
  const auto many = [](int n, const char* before, const char* between, const char* after) {
    std::string out = before;
    for (int i = 0; i < n; ++i) out += (i > 0 ? between : "") + ("a" + std::to_string(i)) + after;
    return out;
  };
  EXPECT_EQ(
      *render("{% macro m(" + many(255, "", ",", "") + ") %}{{ a254 }}{% endmacro %}{{ m(" + many(255, "", ",", "=1") + ") }}"),
      "1");
  EXPECT_EQ(error_of("{% macro m(" + many(256, "", ",", "") + ") %}{% endmacro %}"), "t:1: a macro has more than 255 parameters");
  EXPECT_EQ(error_of("{{ dict(" + many(256, "", ",", "=1") + ") }}"), "t:1: a call has more than 255 keyword arguments");
  EXPECT_TRUE(render(many(1000, "{% set ", "{% set ", " = 1 %}")).ok());
  for (const std::string& source :
       {many(20000, "{% set ", "{% set ", " = 1 %}"), many(20000, "{% set ns = namespace() %}{% set ns.", "{% set ns.", " = 1 %}"),
        many(2000, "{% set ", "{% set ", " = 1 %}") + "{% for i in range(99999) %}{{ a1999 }}{% endfor %}"}) {
    EXPECT_EQ(render(source).status().code(), StatusCode::resource_exhausted) << source.substr(0, 60);
  }
}

// A message of a megabyte, through what templates do to messages, is far inside the default limits.
TEST(ChatTemplate, LongDocumentsAreFine) {
  std::string text;
  while (text.size() < (4u << 20)) text += "A line of the document, é.\n";
  const ordered_json context = {{"m", {{"content", text}}}};
  const auto out = render(
      "{{ m.content | trim ~ '!' }}{{ m['content'].split('</think>')[-1].lstrip('\n') | tojson }}"
      "{{ m.content.startswith('A') and m.content.endswith('x') }}{{ m.content[:3] | upper }}",
      context);
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_GT(out->size(), 2 * text.size());
}

TEST(ChatTemplate, ValuesThatHoldThemselvesAreFreed) {  // the leak checker of the sanitizer build looks on
  EXPECT_TRUE(render("{% set ns = namespace() %}{% set ns.me = [ns] %}{% macro m() %}{% endmacro %}{% set ns.m = m %}"
                     "{% for i in [1, 2] %}{% set ns.loop = loop %}{% set ns.g = [ns] | map('default', 1) %}{% endfor %}")
                  .ok());
  EXPECT_EQ(error_of("{% set ns = namespace() %}{% for j in range(9) if j > 2 %}{% set ns.loop = loop %}{% endfor %}"
                     "{{ ns.loop.nextitem }}"),
            "t:1: 'loop' is used after its loop");
}

// What no published template uses is refused, by its name and line.
TEST(ChatTemplate, WhatIsNotSupportedIsNamed) {
  const std::pair<const char*, const char*> kCases[] = {
      {"\n{% with x = 1 %}{% endwith %}", "t:2: the tag 'with' is not supported"},
      {"\n{% include 'a' %}", "t:2: the tag 'include' is not supported"},
      {"{% call m() %}{% endcall %}", "t:1: the tag 'call' is not supported"},
      {"{% for x in [1] recursive %}{% endfor %}", "t:1: 'recursive' of a for loop is not supported"},
      {"{% macro m() %}\n{{ caller() }}{% endmacro %}", "t:2: 'caller' in a macro is not supported"},
      {"{{ [1] | groupby('a') }}", "t:1: no filter named 'groupby'"},
      {"{{ 1 is sameas 1 }}", "t:1: no test named 'sameas'"},
      {"\n{{ '%d' % 1 }}", "t:2: the operator % on a text is not supported"},
      {"{{ '{:>5}'.format(1) }}", "t:1: format(): only the fields {} are supported"},
      {"{{ '%d' | format(1) }}", "t:1: format: only %s and %% are supported"},
      {"{{ strftime_now('%j') }}", "t:1: strftime_now: the conversion %j is not supported"},
      {"{{ 'a'.zfill(3) }}", "t:1: 'str object' has no attribute 'zfill'"},
      {"{{ {'a': 1}.copy() }}", "t:1: the method 'copy' of a dict is not supported"},
      {"{% for x in [1] %}{{ loop.cycle(1) }}{% endfor %}", "t:1: 'loop.cycle' is not supported"},
      {"{{ {1.5: 2} }}", "t:1: a key of a dict must be a string or an integer, not float"},
      {"{{ 1e5 }}", "t:1: a number written as '1e' is not supported"},
      {"{{ '\\101' }}", "t:1: the escape '\\1' in a string is not supported"},
      {"{{ range(3) }}", "t:1: printing a value of type 'range' is not supported"},
      {"{{ 2 ** 3 }}", "t:1: unexpected '*'"},
  };
  for (const auto& [source, message] : kCases) EXPECT_EQ(error_of(source), message) << source;
  EXPECT_EQ(error_of("{{ big }}", {{"big", uint64_t{18446744073709551615u}}}),
            "t:1: the number 18446744073709551615 needs more than 64 bits");
  EXPECT_EQ(render("{% with %}{% endwith %}").status().code(), StatusCode::unsupported);
  // In a branch that is not taken, an unknown filter is none, as in jinja2.
  EXPECT_EQ(*render("{% if false %}{{ 1 | nope }}{% endif %}x"), "x");
}

TEST(ChatTemplate, TheTestOfALoopDoesNotLookAhead) {
  const std::string begin = "{% set ns = namespace(l=none, once=false) %}{% macro m() %}{% if ns.once %}{% set ns.once = false %}",
                    end =
                        "{% endif %}1{% endmacro %}{% for x in [1, 2, 3] if m() %}{% set ns.l = loop %}{% set ns.once = true %}"
                        "{{ x }}{% endfor %}";
  for (const char* ahead : {"{{ ns.l.length }}", "{{ ns.l.last }}", "{{ ns.l.nextitem }}", "{{ ns.l.revindex }}"}) {
    EXPECT_EQ(error_of(begin + ahead + end), "t:1: the test of a loop asks for what lies ahead in the loop") << ahead;
  }
  EXPECT_EQ(*render(begin + "{% set ns.i = ns.l.index %}" + end), "123");
}

// The test of a loop is run as the loop comes to an item: it sees what the body did.
TEST(ChatTemplate, TheTestOfALoopRunsBetweenItsBodies) {
  EXPECT_EQ(*render("{% set ns = namespace(n=0) %}{% for x in range(9) if x > ns.n %}{{ x }}{% set ns.n = x + 1 %}{% endfor %}"),
            "1357");
  EXPECT_EQ(*render("{% for x in range(9) if x is odd %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}"),
            "1/4False 2/4False 3/4False 4/4True ");
  EXPECT_EQ(*render("{% for x in range(6) if x is odd %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }} {% endfor %}"),
            "<1<3 1<3<5 3<5< ");
}

TEST(ChatTemplate, ElseOfALoopRunsWhenNoBodyCameToItsEnd) {
  EXPECT_EQ(*render("{% for x in [1, 2] %}{{ x }}{% continue %}{% else %}E{% endfor %}"), "12E");
  EXPECT_EQ(*render("{% for x in [1, 2] %}{% break %}{% else %}E{% endfor %}"), "E");
  EXPECT_EQ(*render("{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}E{% endfor %}"), "1");
  EXPECT_EQ(*render("{% for x in [1, 2] %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% else %}E{% endfor %}"), "2");
  EXPECT_EQ(*render("{% for x in [1, 2] %}{% for y in [1] %}{% continue %}{% else %}{% break %}{% endfor %}{{ x }}"
                    "{% else %}E{% endfor %}"),
            "E");
}

TEST(ChatTemplate, TimeIsTheOnePassedIn) {
  const auto parsed = ChatTemplate::parse("{{ strftime_now('%d %b %Y') }}", "t");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*(*parsed)->render(ordered_json::object(), 0), "01 Jan 1970");
  EXPECT_EQ(*(*parsed)->render(ordered_json::object(), 1709164800), "29 Feb 2024");
}

class SourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            ("fovea_template_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_ / "additional_chat_templates");
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(path_ / name) << text; }
  std::filesystem::path path_;
};

TEST_F(SourceTest, ReadsTheModelOfTheRepo) {
  const auto source = load_chat_template(dir("models/tiny-gqa"));
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(source->special_tokens["eos_token"], "<|im_end|>");
  const auto parsed = ChatTemplate::parse(source->text, source->name);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  TemplateInput input;
  input.messages = ordered_json::parse(R"([{"role": "user", "content": "Where?"}])");
  input.add_generation_prompt = true;
  EXPECT_EQ(*(*parsed)->render(chat_context(*source, input), 0), "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(SourceTest, NamedTemplatesAndTokensAsObjects) {
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": null,
    "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})");
  write("special_tokens_map.json", R"({"bos_token": "other", "eos_token": {"content": "</s>"}})");
  const auto source = load_chat_template(path_.string());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(source->text, "D");
  EXPECT_EQ(source->tool_use_text, "T");
  EXPECT_EQ(source->special_tokens.dump(), R"({"bos_token":"<s>","eos_token":"</s>"})");
}

TEST_F(SourceTest, AFileOfItsOwnComesFirst) {
  write("tokenizer_config.json", R"({"chat_template": "config", "eos_token": "e"})");
  write("chat_template.jinja", "file");
  write("additional_chat_templates/tool_use.jinja", "tools");
  const auto source = load_chat_template(path_.string());
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(source->text, "file");
  EXPECT_EQ(source->tool_use_text, "tools");
  EXPECT_EQ(source->name, (path_ / "chat_template.jinja").string());
}

TEST_F(SourceTest, BadFilesAreNamed) {
  EXPECT_EQ(load_chat_template(path_.string()).status().code(), StatusCode::not_found);
  const std::string config = (path_ / "tokenizer_config.json").string();
  const auto message = [&](const std::string& text) {
    write("tokenizer_config.json", text);
    return load_chat_template(path_.string()).status().message();
  };
  EXPECT_EQ(message("{"), config + ": not valid JSON");
  EXPECT_EQ(message("[]"), config + ": not a JSON object");
  EXPECT_EQ(message(R"({"chat_template": 5})"), config + ": chat_template must be a string or a list");
  EXPECT_EQ(message(R"({"chat_template": []})"), config + ": chat_template: no entry is named 'default'");
  EXPECT_EQ(message(R"({"chat_template": "x", "bos_token": 3})"),
            config + ": bos_token must be a string or have a string 'content'");
  EXPECT_EQ(message("{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}"), config + ": nested deeper than 100");
}

TEST(ChatContext, AbsentToolsAreNullAndReasoningHasAllItsNames) {
  ChatTemplateSource source;
  source.special_tokens["bos_token"] = "<s>";
  TemplateInput input;
  input.messages = ordered_json::parse(R"([{"role": "assistant", "content": "a", "reasoning": "r"}, {"role": "user"}])");
  input.extra = {{"enable_thinking", false}, {"bos_token", "<x>"}};
  EXPECT_EQ(chat_context(source, input).dump(),
            R"({"bos_token":"<x>","enable_thinking":false,"messages":[{"thinking":"r","role":"assistant","content":"a",)"
            R"("reasoning":"r","reasoning_content":"r"},{"role":"user"}],"tools":null,"documents":null,)"
            R"("add_generation_prompt":false})");
}

}  // namespace
}  // namespace fovea
