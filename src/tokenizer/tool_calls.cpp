// Calls of tools in a conversation: the form of their arguments.
#include <nlohmann/json.hpp>
#include <string_view>

#include "tokenizer/assistant_turns.h"
#include "unsloth/core/error.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::tokenizer {
namespace {

using jinja::Dict;
using jinja::Items;
using jinja::Value;

/// An object's text with quotes, which a template that writes texts as values would escape.
constexpr std::string_view probe = R"({"Qxvjkwq": "Zmbtgfz"})";

const Items* calls_of(const Value& message) {
    const Value* const calls = find_member(message, "tool_calls");
    return calls && calls->is_sequence(jinja::Sequence::Kind::list) ? &calls->sequence().items : nullptr;
}

/// The call with `change(text)` in place of arguments that are a text; OpenAI's {function: {name, arguments}} or the
/// inner object alone.
template <class Change>
Value with_arguments(const Value& call, const Change& change) {
    if (const Value* inner = find_member(call, "function"); inner && inner->is(Value::Kind::dict))
        return with_member(call, "function", with_arguments(*inner, change));
    const Value* const arguments = find_member(call, "arguments");
    return arguments && arguments->is_string() ? with_member(call, "arguments", change(arguments->string())) : call;
}

/// `change(text, place)` for all arguments that are texts.
template <class Change>
Items with_all_arguments(const Items& messages, const Change& change) {
    Items out = messages;
    for (std::size_t i = 0; i < out.size(); ++i) {
        const Items* const calls = calls_of(out[i]);
        if (!calls) continue;
        Items changed;
        for (std::size_t k = 0; k < calls->size(); ++k)
            changed.push_back(with_arguments((*calls)[k], [&](const std::string& text) {
                return change(text, cat("messages[", i, "].tool_calls[", k, "].arguments"));
            }));
        out[i] = with_member(out[i], "tool_calls", Value::list(std::move(changed)));
    }
    return out;
}

Value parsed_object(const std::string& text, const std::string& place) {
    const nlohmann::ordered_json object = try_parse_ordered(text);
    if (!object.is_object())
        throw Error("data.tool-calls",
                    cat(place, ": expected a JSON object, which the chat template writes out, found a text that is ",
                        object.is_discarded() ? "not JSON" : object.type_name()),
                    "Write the arguments as an object.");
    return jinja::from_json(object);
}

}  // namespace

void parse_arguments(TemplateInput& input) {
    bool texts = false;
    Items probed = with_all_arguments(input.messages, [&](const std::string&, const std::string&) {
        texts = true;
        return Value(probe);
    });
    if (!texts) return;
    if (const auto text = try_render(input, std::move(probed), input.add_generation_prompt);
        text && text->find(probe) != std::string::npos)
        return;
    input.messages = with_all_arguments(input.messages, parsed_object);
}

}  // namespace unsloth::tokenizer
