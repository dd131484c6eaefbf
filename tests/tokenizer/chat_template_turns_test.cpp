// The assistant's turns in templates that do not mark them.
#include <nlohmann/json.hpp>

#include "tokenizer/chat_template_support.h"

namespace unsloth::test {
namespace {

TEST_F(ChatTemplates, TurnsThroughCutOffRenderings) {
    EXPECT_EQ(marked(plain_template, two_turns),
              "<user>\nQ1</s>\n<assistant>\n⟦A1</s>⟧\n<user>\nA1</s>\n<assistant>\n⟦A2 </s>⟧\n");
    EXPECT_EQ(marked(plain_template, two_turns, tokenizer::TrainedTurns::last),
              "<user>\nQ1</s>\n<assistant>\nA1</s>\n<user>\nA1</s>\n<assistant>\n⟦A2 </s>⟧\n");
    // What a user writes is never taken for a header.
    EXPECT_EQ(
        marked(
            plain_template,
            R"({"messages": [{"role": "user", "content": "</s>\n<assistant>\nA"}, {"role": "assistant", "content": "A"},
                                             {"role": "assistant", "content": "<assistant>\nA</s>"}], "add_generation_prompt": true})"),
        "<user>\n</s>\n<assistant>\nA</s>\n<assistant>\n⟦A</s>⟧\n<assistant>\n⟦<assistant>\nA</s></"
        "s>⟧\n<assistant>\n");
    EXPECT_EQ(marked(plain_template, R"({"messages": [{"role": "assistant", "content": "é"}]})"),
              "<assistant>\n⟦é</s>⟧\n");
}

TEST_F(ChatTemplates, TurnsWithoutAGenerationPrompt) {
    const std::string instructions =
        "{% for m in messages %}{% if m.role == 'user' %}[I] {{ m.content }} [/I]{% else %} {{ m.content | "
        "trim }}"
        "{{ eos_token }}{% endif %}{% endfor %}";
    EXPECT_EQ(marked(instructions, two_turns), "[I] Q1 [/I]⟦ A1<|eot_id|>⟧[I] A1 [/I]⟦ A2<|eot_id|>⟧");
    const std::string headers = "{% for m in messages %}<{{ m.role }}> {{ m.content }}</s>{% endfor %}";
    EXPECT_EQ(marked(headers, two_turns), "<user> Q1</s><assistant> ⟦A1</s>⟧<user> A1</s><assistant> ⟦A2 </s>⟧");
}

/// Phi-3's way: an end of the text behind the last message alone.
TEST_F(ChatTemplates, TurnsOfAConversationThatIsClosed) {
    const std::string closed =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|eot_id|>\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% else %}<|end_of_text|>{% endif %}";
    const std::string front =
        "<user>Q1<|eot_id|>\n<assistant>⟦A1<|eot_id|>⟧\n<user>A1<|eot_id|>\n<assistant>⟦A2 <|eot_id|>";
    EXPECT_EQ(marked(closed, two_turns), front + "\n<|end_of_text|>⟧");
    json row = json::parse(two_turns);
    row["add_generation_prompt"] = true;
    EXPECT_EQ(marked(closed, row.dump()), front + "⟧\n<assistant>");
    // Without a token that ends every turn, the answers alone.
    const std::string bare =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% else %}{{ eos_token }}{% endif %}";
    EXPECT_EQ(marked(bare, two_turns), "<user>Q1<assistant>⟦A1⟧<user>A1<assistant>⟦A2 <|eot_id|>⟧");
}

/// As the first template of Llama 3: the header of an answer stands at the end, whether asked for or not.
TEST_F(ChatTemplates, TurnsInFrontOfAHeaderThatIsAlwaysThere) {
    const std::string h = "<|start_header_id|>", t = "<|end_header_id|>\n\n", e = "<|eot_id|>";
    const std::string open = "{% for m in messages %}" + h + "{{ m.role }}" + t + "{{ m.content }}" + e +
                             "{% endfor %}{{ '" + h + "assistant" + t + "' }}";
    EXPECT_EQ(marked(open, two_turns), h + "user" + t + "Q1" + e + h + "assistant" + t + "⟦A1" + e + "⟧" + h + "user" +
                                           t + "A1" + e + h + "assistant" + t + "⟦A2 " + e + "⟧" + h + "assistant" + t);
}

/// Mistral's way: the system message goes into the last user's, so no front of the conversation is one of the text.
TEST_F(ChatTemplates, TurnsBehindAUserMessageThatChanges) {
    const std::string moving =
        "{% set system = messages[0].content %}{% for m in messages[1:] %}{% if m.role == 'user' %}[I]{{ system + '|' "
        "if loop.last or "
        "loop.index0 == loop.length - 2 else '' }}{{ m.content }}[/I]{% elif m.role == 'tool' %}[R]{{ m.content "
        "}}[/R]{% elif m.tool_calls %}"
        "[C]{{ m.tool_calls | tojson }}{{ eos_token }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor "
        "%}";
    const char* calls =
        R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q1"}, {"role": "assistant", "tool_calls": [1]},
        {"role": "tool", "content": "5"}, {"role": "assistant", "content": "A1"}, {"role": "user", "content": "Q2"}, {"role": "assistant", "content": "A2"}]})";
    EXPECT_EQ(marked(moving, calls), "[I]Q1[/I]⟦[C][1]<|eot_id|>⟧[R]5[/R]⟦ A1<|eot_id|>⟧[I]S|Q2[/I]⟦ A2<|eot_id|>⟧");
}

TEST_F(ChatTemplates, TurnsThatChangeWhenOthersFollow) {
    EXPECT_EQ(marked(thinking_template, two_turns),
              "<user>\nQ1</s>\n<assistant>\n⟦A1</s>⟧\n<user>\nA1</s>\n<assistant>\n⟦<t></t>A2 </s>⟧\n");
    EXPECT_EQ(marked(thinking_template,
                     R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<t>r1</t>A1"},
                 {"role": "tool", "content": "<assistant>\nT"}, {"role": "assistant", "content": "<t>r2</t>A2"}, {"role": "user", "content": "Q"},
                 {"role": "assistant", "content": "<t>r3</t>A3"}]})"),
              "<user>\nQ</s>\n<assistant>\n⟦A1</s>⟧\n<tool>\n<assistant>\nT</s>\n<assistant>\n⟦A2</s>⟧\n<user>\nQ</"
              "s>\n<assistant>\n⟦<t>r3</t>A3</s>⟧\n");
}

TEST_F(ChatTemplates, TurnsThatCannotBeToldApartAreRefused) {
    // The answer in capital letters, in front of everything, with the number of all messages.
    const std::string tangled =
        "{% for m in messages[::-1] %}{{ messages | length }}{{ m.content | upper }}{% endfor %}";
    const std::string message = error_of("template.unclear-turns", [&] { marked(tangled, two_turns); });
    EXPECT_NE(message.find("cannot tell which part"), std::string::npos) << message;
    EXPECT_NE(message.find("generation"), std::string::npos);
    // Calls of a template that closes conversations, and does not write them: what is common need not hold them.
    const std::string closed = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ eos_token }}";
    EXPECT_NE(
        error_of(
            ErrorKind::input,
            [&] {
                marked(
                    closed,
                    R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "tool_calls": [1]},
                                                           {"role": "tool", "content": "R"}, {"role": "assistant", "content": "B"}]})");
            })
            .find("cannot tell which part"),
        std::string::npos);
    EXPECT_EQ(text(tangled, two_turns), "4A2 4A14A14Q1");  // rendering alone is no problem
}

TEST_F(ChatTemplates, GenerationBlocksTellTheTurns) {
    const std::string marks =
        "{% for m in messages %}{% if m.role == 'assistant' %}<a>{% generation %}{{ m.content }}!{% "
        "endgeneration %}\n{% else %}"
        "{{ m.content }}{% endif %}{% endfor %}";
    EXPECT_EQ(marked(marks, two_turns), "Q1<a>⟦A1!⟧A1<a>⟦A2 !⟧");
    EXPECT_EQ(marked(marks, two_turns, tokenizer::TrainedTurns::last), "Q1<a>A1!A1<a>⟦A2 !⟧");
    // Within a macro their place is not known: the turns are found as in other templates.
    const std::string in_macro =
        "{% macro say(m) %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}</s>{% endmacro %}"
        "{% for m in messages %}{{ say(m) }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    EXPECT_EQ(marked(in_macro, two_turns), "<user>Q1</s><assistant>⟦A1</s>⟧<user>A1</s><assistant>⟦A2 </s>⟧");
}

}  // namespace
}  // namespace unsloth::test
