// The template engine against transformers' own (tests/golden/jinja/make.py), and its limits.
#include <chrono>

#include "tokenizer/jinja/template.h"
#include "tokenizer/support.h"

namespace unsloth::test {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson read_ordered(const std::string& name) {
    return OrderedJson::parse(read_text(golden("jinja/" + name)));
}

tokenizer::jinja::Variables variables_of(const OrderedJson& object) {
    tokenizer::jinja::Variables out = {{"tools", {}}, {"documents", {}}, {"add_generation_prompt", false}};
    for (const auto& [key, value] : object.items()) out[key] = tokenizer::jinja::from_json(value);
    return out;
}

std::string render(const std::string& source, const tokenizer::jinja::Variables& variables = {}) {
    return tokenizer::jinja::Template::compile(source, "test").render(variables).text;
}

void expect_row(const json& row, const std::string& source, const tokenizer::jinja::Variables& variables) {
    const std::string shown = source.substr(0, 300);
    try {
        const tokenizer::jinja::RenderedTemplate out =
            tokenizer::jinja::Template::compile(source, "test").render(variables);
        ASSERT_FALSE(row.contains("error")) << shown << "\nrendered as " << out.text;
        EXPECT_EQ(out.text, row["text"].get<std::string>()) << shown;
        EXPECT_EQ(json(out.generations), row.value("generations", json::array())) << shown;
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_TRUE(row.contains("error")) << shown << "\n" << error.what();
    }
}

TEST(Jinja, ExpressionsAndStatementsAsTheReference) {
    const tokenizer::jinja::Variables variables = variables_of(read_ordered("variables.json"));
    int rendered = 0, refused = 0;
    for (const json& row : read_rows(golden("jinja/expressions.jsonl"))) {
        expect_row(row, row["template"], variables);
        ++(row.contains("error") ? refused : rendered);
    }
    EXPECT_GT(rendered, 220);
    EXPECT_GT(refused, 150);
}

TEST(Jinja, WholeTemplatesAsTheReference) {
    const OrderedJson conversations = read_ordered("conversations.json");
    int rows = 0;
    for (const json& row : read_rows(golden("jinja/templates.jsonl"))) {
        OrderedJson variables = conversations[row["conversation"].get<std::size_t>()];
        variables["add_generation_prompt"] = row["add_generation_prompt"].get<bool>();
        expect_row(row, read_text(golden("jinja/templates/" + row["file"].get<std::string>())),
                   variables_of(variables));
        ++rows;
    }
    EXPECT_GE(rows, 50);
}

std::string refusal(const std::string& source, const tokenizer::jinja::Variables& variables = {}) {
    return error_of("template.failed", [&] { render(source, variables); });
}

TEST(Jinja, ErrorsNameTheLineAndColumn) {
    const auto expect = [](const std::string& source, const std::string& line, const std::string& reason) {
        const std::string message = refusal(source);
        EXPECT_NE(message.find("chat template test, " + line), std::string::npos) << message;
        EXPECT_NE(message.find(reason), std::string::npos) << message;
    };
    expect("a\n{{ 1 }}\n{{ x.y }}", "line 3", "'x' is undefined");
    expect("{% if true %}\n\n{{ raise_exception('roles must alternate') }}{% endif %}", "line 3",
           "roles must alternate");
    expect("{% for m in [1] %}\n{{ m +\n 'a' }}\n{% endfor %}", "line 2", "unsupported operand");
    expect("{% macro m() %}\n{{ [].x.y }}\n{% endmacro %}\n{{ m() }}", "line 2", "'list object' has no attribute 'x'");
    expect("a\n{% if x %}\nb", "line 3", "'elif' or 'else' or 'endif'");
    expect("\n{% set x = %}", "line 2", "expected an expression, got '%}'");
    expect("a\n{{ 1 | nosuch }}", "line 2", "the filter 'nosuch' is not supported");
    expect("{{ 1 | pprint }}", "line 1", "not supported");
    expect("{#\n\nx", "line 1", "comment");
    expect("a\n\n{{ 'x\n", "line 3", "unexpected char");
    for (const auto& [source, place] :
         {std::pair{"{{ m[0.x }}", "line 1, column 10: unexpected '}', expected ']'"},
          {"é{% for m in x %}\n äö {{ m }\n{% endfor %}", "line 2, column 10: unexpected '}'"},
          {"a\n{% if x %}\n  {% endfor %}", "line 3, column 6: "},
          {"{% if x }", "line 1, column 9: unexpected '}'"},
          {"ab {# ", "line 1, column 4: missing end of comment tag"},
          {"{{ nothing.more }}", "line 1, column 11: 'nothing' is undefined"},
          {"a\n{{ 1 }}{{ 1 + 'a' }}", "line 2, column 13: unsupported operand"},
          {"äö {{ 1 | nosuch }}", "line 1, column 11: the filter 'nosuch'"},
          {"{% macro m() %}\n {{ [].x.y }}\n{% endmacro %}\n{{ m() }}", "line 2, column 9: 'list object'"}})
        EXPECT_NE(refusal(source).find(place), std::string::npos) << refusal(source);
    EXPECT_NE(refusal("a\n  {{ nothing.more }}  \nb").find("template line 2: {{ nothing.more }}"), std::string::npos);
    EXPECT_NE(error_of("template.failed", [] { render("a\xff"); }).find("UTF-8 at byte 1"), std::string::npos);
}

/// What published templates do not use: the message names it, and the template's line.
TEST(Jinja, TheRestIsRefusedByName) {
    const std::pair<const char*, const char*> cases[] = {
        {"{% with a = 1 %}{% endwith %}", "{% with %}"},
        {"{% block a %}{% endblock %}", "{% block %}"},
        {"{% print 1 %}", "{% print %}"},
        {"{% nosuch %}", "{% nosuch %}"},
        {"{% include 'x' %}", "{% include %}"},
        {"{% for x in [1] recursive %}{% endfor %}", "a recursive loop"},
        {"{% set x | upper %}a{% endset %}", "a {% set %} block with filters"},
        {"{{ 7 // 2 }}", "the operator //"},
        {"{{ 2 ** 3 }}", "the operator **"},
        {"{{ 1.5 }}", "numbers other than whole decimal ones"},
        {"{{ 0x1F }}", "numbers other than whole decimal ones"},
        {"{{ 1_000 }}", "numbers other than whole decimal ones"},
        {"{{ '\\101' }}", "the escape \\1"},
        {"{{ f * 2 }}", "calculating with fractions"},
        {"{{ 'a'.replace('', 'b') }}", "replacing an empty text"},
        {"{{ [1] < [2] }}", "'<' between 'list' and 'list'"},
        {"{{ [1] | sum }}", "the filter 'sum'"},
        {"{{ ['x'] | map('center') | list }}", "the filter 'center'"},
        {"{% raw %}a{% endraw %}", "{% raw %}"},
        {"{{ [1] | max }}", "the filter 'max'"},
        {"{{ 1 is odd }}", "the test 'odd'"},
        {"{{ 1 is gt 2 }}", "the test 'gt'"},
        {"{{ [1] | select('odd') | list }}", "the test 'odd'"},
        {"{{ 'a'.zfill(5) }}", "'zfill'"},
        {"{{ [1].append(1) }}", "'append'"},
        {"{{ {}.update({}) }}", "the attribute 'update' of 'dict' objects"},
        {"{{ ''.__class__ ~ ''.__class__.x }}", "the attribute '__class__'"},
        {"{{ '%05d' % 1 }}", "string formatting other than %s "},
        {"{{ '{}'.format('a') }}", "'format'"},
        {"{{ ','.join([]) }}", "'join'"},
        {"{{ {'a': 1}.values() }}", "'values'"},
        {"{{ range(3) }}", "a range as text"},
        {"{{ {}.items() }}", "a dict view as text"},
        {"{{ namespace(**{'a': 1}) }}", "**"},
        {"{% for x in [1] %}{{ loop.cycle('a') }}{% endfor %}", "loop.cycle"},
        {"{% for x in [1] %}{{ loop.revindex + 1 }}{% endfor %}", "loop.revindex"},
    };
    for (const auto& [source, named] : cases) {
        const std::string message = refusal(std::string("\n") + source, {{"f", tokenizer::jinja::Value(1.5)}});
        EXPECT_NE(message.find("line 2"), std::string::npos) << message;
        EXPECT_NE(message.find(named), std::string::npos) << message;
        EXPECT_NE(message.find("supported in chat templates"), std::string::npos) << message;
    }
}

std::string repeated(const std::string& part, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += part;
    return out;
}

TEST(Jinja, DeepNestingIsAnErrorAndNotACrash) {
    constexpr int deep = 10'000;
    const std::string sources[] = {
        "{{ " + repeated("(", deep) + "1" + repeated(")", deep) + " }}",
        "{{ " + repeated("[", deep) + repeated("]", deep) + " }}",
        "{{ " + repeated("{1:", deep) + "1" + repeated("}", deep) + " }}",
        "{{ " + repeated("not ", deep) + "1 }}",
        "{{ " + repeated("- ", deep) + "1 }}",
        "{{ 1" + repeated(" + 1", deep) + " }}",
        "{{ 1" + repeated(" or 1", deep) + " }}",
        "{{ x" + repeated(".a", deep) + " }}",
        "{{ x" + repeated("|trim", deep) + " }}",
        "{{ x" + repeated("[0]", deep) + " }}",
        "{{ " + repeated("f(", deep) + repeated(")", deep) + " }}",
        "{{ " + repeated("1 if 1 else ", deep) + "1 }}",
        repeated("{% if 1 %}", deep) + repeated("{% endif %}", deep),
        repeated("{% for x in y %}", deep) + repeated("{% endfor %}", deep),
        repeated("{% macro m() %}", deep) + repeated("{% endmacro %}", deep),
        repeated("{% set x %}", deep) + repeated("{% endset %}", deep),
        "{% for " + repeated("(", deep) + "x" + repeated(")", deep) + " in y %}{% endfor %}",
    };
    for (const std::string& source : sources) {
        const std::string message = refusal(source);
        EXPECT_TRUE(message.find("deep") != std::string::npos || message.find("in a row") != std::string::npos)
            << source.substr(0, 40) << ": " << message.substr(0, 200);
    }
    // Long is not deep.
    EXPECT_EQ(render(repeated("{% if 1 %}x{% endif %}", 2000)), std::string(2000, 'x'));
    EXPECT_EQ(render("{{ 'a'" + repeated(" ~ 'a'", deep) + " }}"), std::string(deep + 1, 'a'));
    EXPECT_EQ(render("{% if 0 %}" + repeated("{% elif 0 %}", 2000) + "{% else %}x{% endif %}"), "x");
}

TEST(Jinja, DeepValuesAreAnErrorAndNotACrash) {
    const std::string nested =
        "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    EXPECT_EQ(render(nested + "done"), "done");  // and destroyed again
    EXPECT_NE(refusal(nested + "{{ ns.x }}").find("deeper"), std::string::npos);
    EXPECT_NE(refusal(nested + "{{ ns.x | tojson }}").find("deeper"), std::string::npos);
    EXPECT_NE(refusal(nested + "{{ ns.x == [ns.x] }}").find("deeper"), std::string::npos);
    EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.y = [ns] %}{{ ns.y | length }}"), "1");
    EXPECT_EQ(render("{% set ns = namespace() %}{% for i in range(90000) %}{% set n = namespace(p=ns.x) %}{% "
                     "set ns.x = n %}"
                     "{% endfor %}done"),
              "done");
}

TEST(Jinja, WorkIsBounded) {
    const auto started = std::chrono::steady_clock::now();
    const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    EXPECT_NE(refusal(loops).find("too long"), std::string::npos);
    EXPECT_NE(refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("calls itself"), std::string::npos);
    EXPECT_NE(refusal("{{ 'x' * 70000000 }}").find("more than"), std::string::npos);
    EXPECT_NE(refusal("{{ [0] * 1000001 }}").find("more than"), std::string::npos);
    EXPECT_FALSE(
        refusal("{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}")
            .empty());
    EXPECT_FALSE(refusal("{% set s = 'x' * 60000000 %}{% for i in range(60) %}{{ s }}{% endfor %}").empty());
    EXPECT_FALSE(
        refusal("{% set s = 'x' * 60000000 %}{% for i in range(9999) %}{{ s.upper() | length }}{% endfor %}").empty());
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(120));
}

// Each of these took hours or all memory once: the work is done within one step of the evaluation.
TEST(Jinja, WorkWithinOneStepIsBounded) {
    const auto started = std::chrono::steady_clock::now();
    const auto refused = [](const std::string& source) {
        SCOPED_TRACE(source.substr(0, 200));
        return error_of("template.failed",
                        [&] { tokenizer::jinja::Template::compile(source, "test").render({}, 2'000'000); });
    };
    const auto nested = [](const std::string& pair, const std::string& use) {  // 2^60 values, of which 60 are in memory
        return "{% set n = namespace(a=" + pair + ", b=" + pair +
               ") %}{% for i in range(60) %}{% set n.a = (n.a, n.a) %}"
               "{% set n.b = (n.b, n.b) %}{% endfor %}{{ " +
               use + " }}";
    };
    for (const char* use : {"n.a == n.b", "n.a in [n.b]", "{n.a: 1}", "n.a", "n.a | tojson", "[n.a] | join",
                            "[n.a, n.b] | unique | list"})
        EXPECT_NE(refused(nested("(1,)", use)).find("too long"), std::string::npos) << use;
    const std::string many = "'a' * 6000000";
    for (const char* use : {"('a' * 3000000 ~ 'b') in s", "s.find('a' * 3000000 ~ 'b')", "s.rfind('b' ~ 'a' * 3000000)",
                            "s.replace('a' * 3000000 ~ 'b', 'c')", "s.split('a' * 3000000 ~ 'b')",
                            "s.strip('b' * 3000000 ~ 'a')", "s == t", "s < t", "{s: 1}", "s[2999999]", "s[:9]",
                            "s | length", "s.upper()", "s | trim", "s | tojson", "s | escape"}) {
        const std::string source = "{% set s = " + many + " %}{% set t = " + many +
                                   " %}{% for i in range(99999) %}{% set x = " + use + " %}{% endfor %}";
        EXPECT_NE(refused(source).find("too long"), std::string::npos) << use;
    }
    for (const char* source : {"{{ ('x' * 60000000) | list }}", "{% for c in 'x' * 60000000 %}{% endfor %}",
                               "{{ ('x ' * 30000000).split() }}", "{{ ('x' * 60000000).split('x') }}",
                               "{{ ('\n' * 60000000) | indent }}", "{{ ('a' * 60000000) | replace('a', 'bb') }}",
                               "{{ [[[1]]] | tojson(indent=1001) }}", "{{ ('%s' * 999) % (('x' * 999999,) * 999) }}"})
        EXPECT_FALSE(refused(source).empty());
    std::string variables;
    for (int i = 0; i < 5000; ++i) variables += "{% set v" + std::to_string(i) + " = 1 %}";
    EXPECT_NE(refused(variables + "{% for i in range(99999) %}{{ other }}{% endfor %}").find("too long"),
              std::string::npos);
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(300));
}

/// One compiled template serves several threads, and one rendering leaves nothing behind for the next.
TEST(Jinja, RenderingsAreIndependent) {
    const tokenizer::jinja::Template t = tokenizer::jinja::Template::compile(
        "{% set ns = namespace(n=0) %}{% for i in range(n) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n "
        "}}{{ x is defined }}",
        "test");
    const auto sum = [&](int n) { return t.render({{"n", tokenizer::jinja::Value(n)}}).text; };
    EXPECT_EQ(sum(5), "10False");
    EXPECT_EQ(t.render({{"n", tokenizer::jinja::Value(2)}, {"x", tokenizer::jinja::Value(1)}}).text, "1True");
    EXPECT_EQ(sum(3), "3False");
}

TEST(Jinja, GenerationWithinAValueIsTold) {
    const auto within = [](const std::string& source) {
        return tokenizer::jinja::Template::compile(source, "test").render({}).generation_within_value;
    };
    EXPECT_FALSE(within("{% generation %}a{% endgeneration %}"));
    EXPECT_TRUE(within("{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x }}"));
    EXPECT_TRUE(within("{% macro m() %}{% generation %}a{% endgeneration %}{% endmacro %}{{ m() }}"));
}

TEST(Jinja, StrftimeNowIsToday) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char year[8];
    std::strftime(year, sizeof year, "%Y", &local);
    EXPECT_EQ(render("{{ strftime_now('%Y') }}"), year);
}

TEST(Jinja, DocumentsKeepOrderAndNumbers) {
    const auto document = OrderedJson::parse(
        R"({"z": 1, "a": [18446744073709551615, -9223372036854775808, 1.0, 1e400]})", nullptr, false);
    const auto plain =
        OrderedJson::parse(R"({"z": 1, "a": [18446744073709551615, -9223372036854775808, 1.0], "z": 2})");
    EXPECT_TRUE(document.is_discarded());  // no number
    EXPECT_EQ(render("{{ d | tojson }}", {{"d", tokenizer::jinja::from_json(plain)}}),
              R"({"z": 2, "a": [18446744073709551615, -9223372036854775808, 1.0]})");
}

}  // namespace
}  // namespace unsloth::test
