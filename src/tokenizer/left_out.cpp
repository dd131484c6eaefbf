// What a template does not write of a conversation, asked by rendering it with and without each part.
#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/assistant_turns.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer {
namespace {

using jinja::Dict;
using jinja::Items;
using jinja::Value;

Value without_member(const Value& object, std::string_view key) {
    auto changed = std::make_shared<Dict>();
    for (const auto& [name, value] : object.dict().entries())
        if (!name.is_string() || name.string() != key) changed->set(name, value);
    return changed;
}

bool is_blank(const std::string& text) {
    return jinja::text::strip(text, jinja::text::Side::both).empty();
}

/// Whether a message has a text that a template should write, as its content or in a part of it.
bool has_text(const Value& message) {
    const Value* const content = find_member(message, "content");
    if (!content) return false;
    if (content->is_string()) return !is_blank(content->string());
    if (!content->is_sequence(jinja::Sequence::Kind::list)) return false;
    return std::ranges::any_of(content->items(), [](const Value& part) {
        const Value* const text = find_member(part, "text");
        return text && text->is_string() && !is_blank(text->string());
    });
}

/// All that a template may choose a message's form by, but for the contents themselves: the roles, and which members
/// and variables there are.
uint64_t shape_of(const TemplateInput& input) {
    uint64_t shape = 0;
    const auto add = [&](std::string_view name, bool flag) {
        shape = shape * 0x9e3779b97f4a7c15 + 2 * std::hash<std::string_view>()(name) + flag;
    };
    for (const auto& [name, value] : input.variables) add(name, jinja::truthy(value));
    for (const Value& message : input.messages) {
        add(find_member(message, "role")->string(), has_text(message));
        for (const auto& [name, value] : message.dict().entries())
            if (name.is_string()) add(name.string(), jinja::truthy(value));
    }
    add("add_generation_prompt", input.add_generation_prompt);
    return shape;
}

/// A text that occurs in no other probe, for the content of message i.
std::string probe_of(std::size_t i) {
    return cat("Qxvjkwq", i, "Zmbtgfz");
}

/// The first message whose content could be another without any effect on `text`.
std::optional<std::size_t> unwritten_content(const TemplateInput& input, const std::string& text) {
    Items probed = input.messages;
    for (std::size_t i = 0; i < probed.size(); ++i)
        if (has_text(probed[i])) probed[i] = with_content(probed[i], probe_of(i));
    const auto all = try_render(input, std::move(probed), input.add_generation_prompt);
    for (std::size_t i = 0; i < input.messages.size(); ++i) {
        if (!has_text(input.messages[i]) || (all && all->find(probe_of(i)) != std::string::npos)) continue;
        Items changed = input.messages;
        changed[i] = with_content(changed[i], probe_of(i));
        if (try_render(input, std::move(changed), input.add_generation_prompt) == text) return i;
    }
    return std::nullopt;
}

}  // namespace

bool KnownShapes::contains(uint64_t shape) const {
    const std::shared_lock lock(mutex_);
    return shapes_.contains(shape);
}

void KnownShapes::add(uint64_t shape) {
    constexpr std::size_t most = 10'000;
    const std::unique_lock lock(mutex_);
    if (shapes_.size() < most) shapes_.insert(shape);
}

std::string left_out(const TemplateInput& input, const std::string& text, KnownShapes& known) {
    if (const auto tools = input.variables.find("tools");
        tools != input.variables.end() && jinja::truthy(tools->second)) {
        TemplateInput without = input;
        without.variables["tools"] = Value();
        if (try_render(without, without.messages, without.add_generation_prompt) == text) return "tools";
    }
    for (std::size_t i = 0; i < input.messages.size(); ++i)
        for (const char* const calls : {"tool_calls", "function_call"}) {
            const Value* const value = find_member(input.messages[i], calls);
            if (!value || !jinja::truthy(*value)) continue;
            Items messages = input.messages;
            messages[i] = without_member(messages[i], calls);
            if (try_render(input, std::move(messages), input.add_generation_prompt) == text)
                return cat("messages[", i, "].", calls);
        }
    const uint64_t shape = shape_of(input);
    if (known.contains(shape)) return {};
    if (const auto i = unwritten_content(input, text))
        return cat("messages[", *i, "].content (role ", find_member(input.messages[*i], "role")->string(), ")");
    known.add(shape);
    return {};
}

bool passes_over(const TemplateInput& input, const std::string& text, std::span<const char* const> members) {
    const auto has = [](const Value& message, const char* name) {
        const Value* const value = find_member(message, name);
        return value && jinja::truthy(*value);
    };
    const auto has_some = [&](const Value& message) {
        return std::ranges::any_of(members, [&](const char* name) { return has(message, name); });
    };
    if (std::ranges::none_of(input.messages, has_some)) return false;
    Items without = input.messages;
    for (Value& message : without)
        for (const char* const name : members)
            if (has(message, name)) message = without_member(message, name);
    return try_render(input, std::move(without), input.add_generation_prompt) == text;
}

}  // namespace unsloth::tokenizer
