// Choosing templates, built-in ones, and finding the assistant's turns in templates that do not mark them.
#include <nlohmann/json.hpp>

#include "tokenizer/chat_template_support.h"

namespace unsloth::test {
namespace {

using Ordered = nlohmann::ordered_json;

TEST_F(ChatTemplates, GetWhatTransformersGives) {
    EXPECT_EQ(text("{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ tools is none }}{{ documents "
                   "is none }}"
                   "{{ add_generation_prompt }}{{ extra }}",
                   R"({"messages": [{"role": "user"}], "extra": 5})"),
              "<|begin_of_text|><|eot_id|>FalseTrueTrueFalse5");
    EXPECT_EQ(text("{{ bos_token }}{{ tools | tojson }}",
                   R"({"messages": [{"role": "user"}], "bos_token": "B", "tools": [{"z": 1, "a": 2}]})"),
              R"(B[{"z": 1, "a": 2}])");
    EXPECT_EQ(text("{{ messages | tojson }}",
                   R"({"messages": [{"role": "assistant", "content": null, "reasoning": "R", "name": "n"}]})"),
              R"([{"thinking": "R", "role": "assistant", "reasoning": "R", "name": "n", "reasoning_content": "R"}])");
    const std::string message = error_of(
        "template.failed", [&] { text("a\n{{ raise_exception('no') }}", R"({"messages": [{"role": "user"}]})"); });
    EXPECT_NE(message.find("default (of the model), line 2, column 19: no"), std::string::npos) << message;
}

TEST_F(ChatTemplates, AreChosenByName) {
    folder.write("mine.jinja", "file");
    std::filesystem::create_directory(folder.path() / "additional_chat_templates");
    folder.write("additional_chat_templates/tool_use.jinja", "with tools");
    folder.write("additional_chat_templates/zephyr.jinja", "the model's zephyr");
    folder.write("additional_chat_templates/bad.jinja", "a\n{% if %}");
    const tokenizer::Tokenizer model = tokenizer("own");
    const auto row = Ordered::parse(R"({"messages": [{"role": "user", "content": "x"}]})");
    const auto with_tools = Ordered::parse(R"({"messages": [{"role": "user", "content": "x"}], "tools": []})");
    const auto rendered = [&](const std::string& name, const Ordered& r) {
        return tokenizer::ChatTemplate::choose(name, model).render(r).text;
    };
    EXPECT_EQ(rendered("auto", row), "own");
    EXPECT_EQ(rendered("auto", with_tools), "with tools");
    EXPECT_EQ(rendered("default", with_tools), "own");
    EXPECT_EQ(rendered("tool_use", row), "with tools");
    EXPECT_EQ(rendered("zephyr", row), "the model's zephyr");
    EXPECT_EQ(rendered((folder.path() / "mine.jinja").string(), row), "file");
    EXPECT_NE(error_of("template.unknown", [&] { rendered("nosuch", row); }).find("tool_use (of the model)"),
              std::string::npos);
    EXPECT_NE(error_of("template.failed", [&] { rendered("bad", row); }).find("line 2"), std::string::npos);
}

/// A run over plain texts need not care about the model's template.
TEST_F(ChatTemplates, AMistakeInTheModelsTemplateShowsWhenItIsUsed) {
    const tokenizer::ChatTemplate chat = tokenizer::ChatTemplate::choose("auto", tokenizer("{% nosuch %}"));
    const auto row = Ordered::parse(R"({"messages": [{"role": "user", "content": "x"}]})");
    EXPECT_NE(error_of("template.failed", [&] { chat.render(row); }).find("nosuch"), std::string::npos);
}

TEST_F(ChatTemplates, BuiltinOnes) {
    const tokenizer::Tokenizer model = tokenizer();
    const auto row = Ordered::parse(
        R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": " Q1"},
        {"role": "assistant", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "1"}]},
        {"role": "user", "content": "Q2"}, {"role": "assistant", "content": "A2"}], "add_generation_prompt": true})");
    const auto rendered = [&](const char* name) {
        return marked(tokenizer::ChatTemplate::choose(name, model).render(row));
    };
    const std::string b = "<|begin_of_text|>", e = "<|eot_id|>";
    EXPECT_EQ(rendered("llama-2"),
              b + "[INST] <<SYS>>\nS\n<</SYS>>\n\nQ1 [/INST]⟦ A1 " + e + "⟧" + b + "[INST] Q2 [/INST]⟦ A2 " + e + "⟧");
    EXPECT_EQ(rendered("mistral"), b + "[INST] S\n\n Q1 [/INST]⟦ A1" + e + "⟧[INST] Q2 [/INST]⟦ A2" + e + "⟧");
    EXPECT_EQ(rendered("zephyr"), "<|system|>\nS" + e + "\n<|user|>\n Q1" + e + "\n<|assistant|>\n⟦A1" + e +
                                      "⟧\n<|user|>\nQ2" + e + "\n<|assistant|>\n⟦A2" + e + "⟧\n<|assistant|>\n");
    const std::string h = "<|start_header_id|>", t = "<|end_header_id|>\n\n";
    EXPECT_EQ(rendered("llama-3"), b + h + "system" + t + "S" + e + h + "user" + t + "Q1" + e + h + "assistant" + t +
                                       "⟦A1" + e + "⟧" + h + "user" + t + "Q2" + e + h + "assistant" + t + "⟦A2" + e +
                                       "⟧" + h + "assistant" + t);
    const tokenizer::Tokenizer qwen_model = tokenizer::Tokenizer::load(golden("tokenizer/qwen_small"));
    const std::vector<tokenizer::Message> one = {{"user", "Q"}};
    EXPECT_EQ(tokenizer::ChatTemplate::choose("qwen", qwen_model).render(one, true).text,
              "<|im_start|>system\nYou are a helpful "
              "assistant.<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n");
    for (const std::string_view name : tokenizer::builtin_templates()) {
        const tokenizer::Tokenizer& fitting = name == "chatml" || name == "qwen" ? qwen_model : model;
        const auto call = Ordered::parse(R"({"messages": [{"role": "user", "content": "Q"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]})");
        const std::string message =
            error_of("template.failed", [&] { tokenizer::ChatTemplate::choose(name, fitting).render(call); });
        EXPECT_NE(message.find("tool calls"), std::string::npos) << name << message;
    }
    for (const char* name : {"llama-2", "mistral"}) {
        const std::vector<tokenizer::Message> twice = {{"user", "a"}, {"user", "b"}};
        EXPECT_NE(
            error_of("template.failed", [&] { tokenizer::ChatTemplate::choose(name, model).render(twice, false); })
                .find("in turn"),
            std::string::npos);
        EXPECT_NE(error_of("template.missing-token",
                           [&] { tokenizer::ChatTemplate::choose(name, qwen_model).render(one, false); })
                      .find("names none"),
                  std::string::npos);
    }
}

/// A question and a call; `arguments` as JSON.
std::string call_row(const std::string& arguments) {
    return R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": null, "tool_calls":
        [{"type": "function", "function": {"name": "f", "arguments": )" +
           arguments + "}}]}]}";
}

constexpr const char* calls_by =
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% for c in m.tool_calls or [] %}";

TEST_F(ChatTemplates, ArgumentsThatAreTextsArriveAsTheTemplateWritesThem) {
    const auto call = [&](const std::string& written, const std::string& arguments) {
        return text(calls_by + written + "{% endfor %}{% endfor %}", call_row(arguments));
    };
    const std::string as_text = R"("{\"n\":1, \"s\":\"x\"}")", as_object = R"({"n":1, "s":"x"})";
    const std::string front = "[user] Q[assistant] ";
    EXPECT_EQ(call("{{ c.function | tojson }}", as_text), front + R"({"name": "f", "arguments": {"n": 1, "s": "x"}})");
    EXPECT_EQ(call("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}", as_text),
              front + "n=1;s=x;");
    // The template takes the text as it is, and an object beside it.
    const std::string either = "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}";
    EXPECT_EQ(call(either, as_text), front + R"({"n":1, "s":"x"})");
    EXPECT_EQ(call(either, as_object), front + R"({"n": 1, "s": "x"})");
    EXPECT_EQ(call("{{ 'args: ' + c.function.arguments }}", as_text), front + R"(args: {"n":1, "s":"x"})");
    const std::string refusal =
        error_of("data.tool-calls", [&] { call("{{ c.function | tojson }}", R"("n is one")"); });
    EXPECT_NE(refusal.find("messages[1].tool_calls[0].arguments: expected a JSON object"), std::string::npos)
        << refusal;
}

TEST_F(ChatTemplates, ACallWithoutContentHasAnEmptyOne) {
    const std::string source =
        "{% for m in messages %}{{ m.role + ':' + m.content + (m.tool_calls | default([])) | tojson }}{% endfor %}";
    EXPECT_EQ(text(source, R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [1]}]})"),
              "assistant:[1]");
    EXPECT_EQ(text(source, R"({"messages": [{"role": "assistant", "tool_calls": [1]}]})"), "assistant:[1]");
}

TEST_F(ChatTemplates, SayWhatTheyLeaveOut) {
    const auto left_out = [&](const std::string& source, std::string row, bool tools) {
        if (tools) row.insert(1, R"("tools": [{"name": "f"}], )");
        return tokenizer::ChatTemplate::choose("auto", tokenizer(source)).render(Ordered::parse(row)).left_out;
    };
    const std::string row = call_row(R"({"n": 1})"),
                      plain_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}|";
    const std::string calls = calls_by + std::string("{{ c.function.name }}{% endfor %}|");
    EXPECT_EQ(left_out(plain_template + "{% endfor %}", row, true), "tools");
    EXPECT_EQ(left_out(plain_template + "{% endfor %}", row, false), "messages[1].tool_calls");
    EXPECT_EQ(left_out("{{ tools | tojson }}" + plain_template + "{% endfor %}", row, true), "messages[1].tool_calls");
    EXPECT_EQ(left_out("{{ tools | tojson }}" + calls + "{% endfor %}", row, true), "");
    EXPECT_EQ(left_out(calls + "{% endfor %}", row, false), "");
    // Without its calls a message is one that this template refuses.
    EXPECT_EQ(left_out(plain_template +
                           "{% if m.role == 'assistant' and not m.tool_calls %}{{ raise_exception('no') }}{% endif %}"
                           "{% endfor %}",
                       row, false),
              "");
}

TEST_F(ChatTemplates, SayWhichContentsTheyLeaveOut) {
    const auto left_out = [&](const std::string& source, const std::string& messages) {
        const auto chat = tokenizer::ChatTemplate::choose("auto", tokenizer(source));
        const auto row = Ordered::parse(R"({"messages": [)" + messages + "]}");
        const std::string found = chat.render(row).left_out;
        EXPECT_EQ(chat.render(row, tokenizer::TrainedTurns::none).left_out, found);
        EXPECT_EQ(chat.render(row).left_out, found) << "whatever was asked before";
        return found;
    };
    const std::string user = R"({"role": "user", "content": "Q"}, )",
                      answer = R"({"role": "assistant", "content": "Q"})";
    const std::string called =
        R"({"role": "assistant", "content": "Let me see.", "tool_calls": [{"function": {"name": "f"}}]})";
    // As Llama 3.1's: calls in place of the content.
    const std::string either =
        "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% elif m.role != 'critic' %}"
        "[{{ m.role }}] {{ m.content | trim }}{% endif %}{% endfor %}";
    EXPECT_EQ(left_out(either, user + answer), "");
    EXPECT_EQ(left_out(either, user + called), "messages[1].content (role assistant)");
    EXPECT_EQ(left_out(either, user + R"({"role": "critic", "content": "Q"}, )" + answer),
              "messages[1].content (role critic)")
        << "another message has the same text";
    EXPECT_EQ(left_out(either, R"({"role": "critic", "content": [{"type": "text", "text": "x"}]}, )" + answer),
              "messages[0].content (role critic)");
    for (const char* nothing : {R"("")", R"(" \n")", "null", "[]"})
        EXPECT_EQ(left_out(either, cat(user, R"({"role": "assistant", "content": )", nothing,
                                       R"(, "tool_calls": [{"function": {"name": "f"}}]})")),
                  "");
    EXPECT_EQ(left_out(either, user + R"({"role": "assistant", "content": "", "function_call": {"name": "f"}})"),
              "messages[1].function_call");
    // Written otherwise, or refused with another content: it is not left out.
    EXPECT_EQ(left_out("{% for m in messages %}{{ m.content | upper }}{% endfor %}", user + answer), "");
    EXPECT_EQ(left_out("{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
                       R"({"role": "user", "content": "a \"b\""}, )" + answer),
              "");
    EXPECT_EQ(left_out("{% for m in messages %}{% if m.content != 'Q' %}{{ raise_exception('no') }}{% endif %}"
                       "{{ m.content }}{% endfor %}",
                       user + answer),
              "");
    // A part of an answer may go, as Qwen 3's earlier thoughts do.
    EXPECT_EQ(left_out("{% for m in messages %}{{ m.content.split('</t>')[-1] }}{% endfor %}",
                       R"({"role": "assistant", "content": "thought</t>"})"),
              "");
}

TEST_F(ChatTemplates, SayWhenTheyKnowNoReasoning) {
    const auto passes_over = [&](const std::string& source, const char* name, const char* value = R"("R")") {
        const std::string row = cat(R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content":
            "A", ")",
                                    name, R"(": )", value, "}]}");
        return tokenizer::ChatTemplate::choose("auto", tokenizer(source))
            .render(Ordered::parse(row), tokenizer::TrainedTurns::none)
            .passes_over_reasoning;
    };
    const std::string blind =
        "Reasoning, thinking: none{% for m in messages %}{{ '[thinking] ' + m.content }}{% endfor %}";
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
        EXPECT_TRUE(passes_over(blind, name)) << name;
        EXPECT_FALSE(passes_over(blind, name, R"("")")) << name;
        // Any of the names is read of all of them, if only of later turns.
        EXPECT_FALSE(
            passes_over("{% for m in messages %}{{ m.content }}{% if false %}{{ m['thinking'] }}{% endif %}"
                        "{% endfor %}",
                        name))
            << name;
        EXPECT_FALSE(passes_over("{{ messages | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}", name));
    }
}

TEST_F(ChatTemplates, ATextInThePlaceOfANameIsTheTemplate) {
    const std::string source = "{% for m in messages %}<{{ m.content }}>{% endfor %}" + std::string(5000, ' ');
    const auto row = Ordered::parse(R"({"messages": [{"role": "user", "content": "hi"}]})");
    const auto chosen = tokenizer::ChatTemplate::choose(source, tokenizer("{{ 'the model has its own' }}"));
    EXPECT_EQ(chosen.name(), "of the configuration");
    EXPECT_EQ(chosen.render(row).text.substr(0, 6), "<hi>  ");
    EXPECT_NE(
        error_of("template.failed", [&] { tokenizer::ChatTemplate::choose("{% for %}", tokenizer("x")).render(row); })
            .find("of the configuration"),
        std::string::npos);
}

TEST_F(ChatTemplates, RowsNestedTooDeepAreRefused) {
    std::string nested(2000, '[');
    nested += std::string(2000, ']');
    const auto row = Ordered::parse(R"({"messages": [{"role": "user", "content": )" + nested + "}]}");
    EXPECT_NE(error_of("template.failed", [&] { tokenizer::ChatTemplate::choose("auto", tokenizer("x")).render(row); })
                  .find("deeper"),
              std::string::npos);
}

}  // namespace
}  // namespace unsloth::test
