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
      Result<std::string> got = parsed.ok() ? (*parsed)->render(goldens["contexts"][expected["context"]], now)
                                            : Result<std::string>(parsed.status());
      ++renders;
      if (expected.contains("output")) {
        ASSERT_TRUE(got.ok()) << got.status().message();
        EXPECT_EQ(*got, expected["output"].get<std::string>());
      } else {
        ASSERT_FALSE(got.ok()) << *got;
        EXPECT_NE(got.status().message().find(expected["error"].get<std::string>()), std::string::npos)
            << got.status().message();
      }
    }
  }
  EXPECT_GE(renders, 350);
}

TEST(ChatTemplate, ErrorsNameTheTemplateAndTheLine) {
  EXPECT_EQ(error_of("a\n{{ raise_exception('roles must alternate') }}"), "t:2: roles must alternate");
  EXPECT_EQ(error_of("\n\n{{ 1 + }}"), "t:3: unexpected 'end of print statement'");
  EXPECT_EQ(error_of("x\n{% if a %}\n"), "t:2: unexpected end of template: the innermost open block is 'if'");
  EXPECT_EQ(error_of("{{ a.b.c }}", {{"a", ordered_json::object()}}),
            "t:1: 'dict object' has no attribute 'b'");
  EXPECT_EQ(error_of("{% macro m() %}\n{{ nope.x }}{% endmacro %}\n\n{{ m() }}"), "t:2: 'nope' is undefined");
  EXPECT_EQ(error_of("{{ 'a' | nope }}"), "t:1: no filter named 'nope'");
  EXPECT_EQ(error_of("\xff{{ 1 }}"), "t: invalid UTF-8 at byte 0");
  EXPECT_EQ(error_of("{{ 1 }}", ordered_json::array()), "t: the context must be a JSON object");
  EXPECT_EQ(render("{{ raise_exception('x') }}").status().code(), StatusCode::invalid_argument);
}

TEST(ChatTemplate, LimitsStopWhatExpands) {
  ChatTemplateLimits limits;
  limits.max_steps = 300'000;  // the bounds below are found sooner; the default's are the same bounds
  const auto code = [&](std::string_view source) {
    return render(source, ordered_json::object(), limits).status().code();
  };
  for (const char* source : {
           "{{ 'a' * 10**9 }}",
           "{{ 'a' * 10**30 }}",
           "{{ [0] * 10**9 }}",
           "{{ [0] * 10**30 }}",
           "{{ range(10**9) }}",
           "{{ range(10**30) }}",
           "{{ 2 ** 4000 }}",
           "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
           "{% set ns = namespace(s='ab') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
           "{% set ns = namespace(l=[1]) %}{% for a in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor "
           "%}{{ ns.l }}",
           "{% set ns = namespace(l=[1]) %}{% for a in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor "
           "%}{{ ns.l | tojson }}",
           "{% set ns = namespace(l=[1]) %}{% for a in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}",
           "{% set ns = namespace(l=[1]) %}{% for a in range(999) %}{% set ns.l = ns.l | map('string') %}{% "
           "endfor %}",
           "{% set ns = namespace(l=[]) %}{% for a in range(99999) %}{% set ns.l = ns.l + ['x' * 60000] %}{% "
           "endfor %}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}",
           "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
           "{% set ns = namespace() %}{% set ns.a = ns %}{% set ns.b = [ns] %}{{ ns }}",
           "{{ '%99999999999d' % 1 }}",
           "{{ '{:>999999999}'.format(1) }}",
           "{{ 'a'.center(10**12) }}",
           "{{ ('a\\n' * 1000) | indent(10**9) }}",
           "{{ [1] | tojson(indent=10**9) }}",
           "{{ ('a' * 9999999).replace('', 'b' * 9999) }}",
           "{{ ','.join(['a' * 60000] * 99999) }}",
           "{{ [1] | batch(10**9, 0) | list }}",
           "{{ [1] | slice(10**9) | list }}",
           "{% set a = 'a' * 9999999 %}{% for i in range(99999) %}{% if a ~ 'b' in a %}{% endif %}{% endfor "
           "%}",
       }) {
    EXPECT_NE(code(source), StatusCode::ok) << source;
  }
  EXPECT_EQ(code("{{ 'a' * 10**9 }}"), StatusCode::resource_exhausted);
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
       {"{{ " + nested(5000, "(", "") + "1" + nested(5000, ")", "") + " }}",
        "{{ " + nested(5000, "[", "]") + " }}", nested(5000, "{% if a %}", "{% endif %}"),
        "{{ " + nested(5000, "not ", "") + "1 }}", "{{ " + nested(5000, "-", "") + "1 }}",
        "{{ " + nested(5000, "1 if 1 else ", "") + "1 }}",
        "{% set " + nested(5000, "(", "") + "a" + nested(5000, ")", "") + " = 1 %}",
        "{{ 1 is " + nested(5000, "a(", ")") + " }}"}) {
    EXPECT_FALSE(render(source).ok()) << source.substr(0, 40);
  }
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
  EXPECT_EQ(error_of("0123456789a", ordered_json::object(), limits),
            "t:1: the output is longer than 10 bytes");
  limits = {};
  limits.max_steps = 100;
  EXPECT_EQ(error_of("{% for i in range(1000) %}{% endfor %}", ordered_json::object(), limits),
            "t:1: the template takes more than 100 steps");
  limits = {};
  limits.max_value_bytes = 4096;
  EXPECT_EQ(error_of("{{ m | length }}", {{"m", std::string(5000, 'x')}}, limits),
            "t:1: the template's values take more than 4096 bytes");
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
  EXPECT_TRUE(
      render("{% set ns = namespace() %}{% set ns.me = [ns] %}{% macro m() %}{% endmacro %}{% set ns.m = m %}"
             "{% for i in [1, 2] %}{% set ns.loop = loop %}{{ loop.changed(loop) }}{% set ns.g = [ns] | "
             "map('list') %}"
             "{% endfor %}")
          .ok());
  // A loop that outlives its statement, its filter included.
  EXPECT_EQ(
      *render("{% set ns = namespace() %}{% for i in [0] %}{% set k = 2 %}{% for j in range(9) if j > k %}"
              "{% set ns.loop = loop %}{% break %}{% endfor %}{% endfor %}{{ ns.loop.nextitem }}{{ "
              "ns.loop.length }}"),
      "46");
}

TEST(ChatTemplate, LettersOfSafeTextsArePlainUnlessSubscripted) {
  EXPECT_EQ(*render("{{ ('<' | e) | list }}{{ 'b<' | e | sort }}{{ 'ba' | e | max is escaped }}"),
            "['&', 'l', 't', ';']['&', ';', 'b', 'l', 't']False");
  EXPECT_EQ(
      *render(
          "{{ 'ab' | e | first is escaped }}{{ 'ab' | e | last is escaped }}{{ ('ab' | e)[0] is escaped }}"),
      "FalseTrueTrue");
}

TEST(ChatTemplate, TruncateLeavesShortListsAlone) {
  EXPECT_EQ(
      *render("{{ [1, 'a'] | truncate(3) }}{{ {'a': 1} | truncate(4, true) }}{{ range(2) | truncate }}"),
      "[1, 'a']{'a': 1}range(0, 2)");
  EXPECT_EQ(error_of("{{ ([1] * 9) | truncate(3) }}"), "t:1: truncate needs a string, not list");
  EXPECT_EQ(error_of("{{ 5 | truncate(3) }}"), "t:1: truncate needs a string, not int");
}

// A scope owns the names it assigns before it reads them; a scope inside that runs sooner finds them
// undefined.
TEST(ChatTemplate, NamesAreBoundWhereTheirScopeAssignsThem) {
  const ordered_json context = {{"s", "S"}};
  const auto out = [&](std::string_view source) { return *render(source, context); };
  EXPECT_EQ(out("{% for i in [1, 2] %}[{{ s }}]{% endfor %}{% set s = 1 %}{{ s }}{% for i in [1] %}{{ s }}{% "
                "endfor %}"),
            "[][]11");
  EXPECT_EQ(out("{{ s }}{% for i in [1] %}{{ s }}{% endfor %}{% set s = 1 %}{{ s }}"), "SS1");
  EXPECT_EQ(out("{% macro m() %}[{{ s }}]{% endmacro %}{{ m() }}{% set s = 1 %}{{ m() }}"), "[][1]");
  EXPECT_EQ(out("{% macro m() %}[{{ s }}]{% endmacro %}{{ m() }}{% set s = s ~ 1 %}{{ m() }}"), "[S][S1]");
  EXPECT_EQ(out("{% with %}{{ s }}{% endwith %}{% set x %}{{ s }}{% endset %}{{ x }}{% set s = 1 %}{{ s }}"),
            "1");
  EXPECT_EQ(out("{% for i in [1] %}{% for j in [1] %}{{ s }}{% endfor %}{% set s = 2 %}{{ s }}{% endfor %}"),
            "2");
  EXPECT_EQ(out("{% for i in [1, 2] if s %}{{ i }}{% endfor %}{% set s = 1 %}"), "");
  // An assignment in a branch, which may not run, leaves the context's value.
  EXPECT_EQ(out("{% for i in [1] %}{{ s }}{% endfor %}{% if i %}{% set s = 1 %}{% endif %}{{ s }}"), "SS");
  EXPECT_EQ(out("{% for i in [1] %}{{ s }}{% endfor %}{% if i %}{% set s = 1 %}{% else %}{% set s = 2 %}{% "
                "endif %}{{ s }}"),
            "S2");
  EXPECT_EQ(out("{% block b %}{{ s }}{% endblock %}{% set s = 2 %}{% block c %}{{ s }}{% endblock %}"), "S2");
  EXPECT_EQ(error_of("{% for i in [1] %}{{ s.x.y }}{% endfor %}{% set s = 1 %}", context),
            "t:1: 's' is undefined");
}

TEST(ChatTemplate, ElseOfALoopRunsWhenNoBodyCameToItsEnd) {
  EXPECT_EQ(*render("{% for x in [1, 2] %}{{ x }}{% continue %}{% else %}E{% endfor %}"), "12E");
  EXPECT_EQ(*render("{% for x in [1, 2] %}{% break %}{% else %}E{% endfor %}"), "E");
  EXPECT_EQ(
      *render("{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}E{% endfor %}"),
      "1");
  EXPECT_EQ(
      *render("{% for x in [1, 2] %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% else %}E{% endfor %}"),
      "2");
  EXPECT_EQ(
      *render("{% for x in [1, 2] %}{% for y in [1] %}{% continue %}{% else %}{% break %}{% endfor %}{{ x }}"
              "{% else %}E{% endfor %}"),
      "E");
}

TEST(ChatTemplate, LoopsPrintTheirPlace) {
  EXPECT_EQ(*render("{% for i in [4, 5] %}{{ loop }}{% endfor %}"), "<LoopContext 1/2><LoopContext 2/2>");
  EXPECT_EQ(
      *render("{% for i in range(9) if i is odd %}{% if loop.last %}{{ loop ~ '' }}{% endif %}{% endfor %}"),
      "<LoopContext 4/4>");
}

TEST(ChatTemplate, FilteredLoopsSeeTheirNeighboursAsTheTargetHoldsThem) {
  EXPECT_EQ(*render("{% for a, b in [[1, 2], [3, 4], [5, 6]] if a > 1 %}{{ loop.previtem }}{{ loop.nextitem "
                    "}}{% endfor %}"),
            "(5, 6)(3, 4)");
  EXPECT_EQ(*render("{% for a, (b, c) in [[1, [2, 3]], [4, [5, 6]]] if a %}{{ loop.nextitem }}{% endfor %}"),
            "(4, (5, 6))");
  EXPECT_EQ(*render("{% for a, b in [[1, 2], [3, 4]] %}{{ loop.nextitem }}{% endfor %}"), "[3, 4]");
  EXPECT_EQ(*render("{% for a in [[1, 2], [3, 4]] if a %}{{ loop.nextitem }}{% endfor %}"), "[3, 4]");
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
    path_ =
        std::filesystem::temp_directory_path() /
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
  ChatInput input;
  input.messages = ordered_json::parse(R"([{"role": "user", "content": "Where?"}])");
  input.add_generation_prompt = true;
  EXPECT_EQ(*(*parsed)->render(chat_context(*source, input), 0),
            "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(SourceTest, NamedTemplatesAndTokensAsObjects) {
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": null,
    "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})");
  write("special_tokens_map.json", R"({"bos_token": "other", "eos_token": {"content": "</s>"}})");
  const auto source = load_chat_template(path_.string());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(source->text_for(false), "D");
  EXPECT_EQ(source->text_for(true), "T");
  EXPECT_EQ(source->special_tokens.dump(), R"({"bos_token":"<s>","eos_token":"</s>"})");
}

TEST_F(SourceTest, AFileOfItsOwnComesFirst) {
  write("tokenizer_config.json", R"({"chat_template": "config", "eos_token": "e"})");
  write("chat_template.jinja", "file");
  write("additional_chat_templates/tool_use.jinja", "tools");
  const auto source = load_chat_template(path_.string());
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(source->text_for(false), "file");
  EXPECT_EQ(source->text_for(true), "tools");
  EXPECT_EQ(source->name, (path_ / "chat_template.jinja").string());
}

TEST_F(SourceTest, BadFilesAreNamed) {
  EXPECT_EQ(load_chat_template(path_.string()).status().code(), StatusCode::not_found);
  const std::string config = (path_ / "tokenizer_config.json").string();
  const auto message = [&](const std::string& text) {
    write("tokenizer_config.json", text);
    return load_chat_template(path_.string()).status().message();
  };
  EXPECT_EQ(message("{"), config + ": not a JSON object");
  EXPECT_EQ(message(R"({"chat_template": 5})"), config + ": chat_template must be a string or a list");
  EXPECT_EQ(message(R"({"chat_template": []})"), config + ": chat_template: no entry is named 'default'");
  EXPECT_EQ(message(R"({"chat_template": "x", "bos_token": 3})"),
            config + ": bos_token must be a string or have a string 'content'");
  EXPECT_EQ(message("{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}"),
            config + ": nested deeper than 100");
}

TEST(ChatContext, AbsentToolsAreNullAndReasoningHasAllItsNames) {
  ChatTemplateSource source;
  source.special_tokens["bos_token"] = "<s>";
  ChatInput input;
  input.messages =
      ordered_json::parse(R"([{"role": "assistant", "content": "a", "reasoning": "r"}, {"role": "user"}])");
  input.extra = {{"enable_thinking", false}, {"bos_token", "<x>"}};
  EXPECT_EQ(
      chat_context(source, input).dump(),
      R"({"bos_token":"<x>","enable_thinking":false,"messages":[{"thinking":"r","role":"assistant","content":"a",)"
      R"("reasoning":"r","reasoning_content":"r"},{"role":"user"}],"tools":null,"documents":null,)"
      R"("add_generation_prompt":false})");
}

}  // namespace
}  // namespace fovea
