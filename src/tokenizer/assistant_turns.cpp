#include "tokenizer/assistant_turns.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer {
namespace {

using jinja::Dict;
using jinja::Items;
using jinja::Value;

/// Two answers that share no character at either end, and that no template has a reason to treat as special.
constexpr std::string_view probes[2] = {"Qxvjkwq", "Zmbtgfz"};

/// What a template writes before and after an answer.
struct Around {
    std::string before, after;
};

std::size_t size_without_space(std::string_view text) {
    return jinja::text::strip(text, jinja::text::Side::right).size();
}

std::string_view common_prefix(std::string_view a, std::string_view b) {
    return a.substr(0,
                    static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin()));
}

bool is_assistant(const Value& message) {
    const Value* role = find_member(message, "role");
    return role && role->is_string() && role->string() == "assistant";
}

bool calls_tools(const Value& message) {
    const Value* calls = find_member(message, "tool_calls");
    return calls && jinja::truthy(*calls);
}

class TurnFinder {
  public:
    TurnFinder(const TemplateInput& conversation, const std::string& text)
        : conversation_(conversation), messages_(conversation.messages), text_(text) {
        const auto plain = cut(messages_.size(), false), prompted = cut(messages_.size(), true);
        if (plain && prompted && prompted->starts_with(*plain)) prompt_ = prompted->substr(plain->size());
    }

    std::pair<std::size_t, std::size_t> turn(std::size_t i, std::size_t previous_end) {
        const std::size_t begin = begin_of(i, previous_end);
        return {begin, std::max(begin, end_of(i, begin))};
    }

  private:
    /// The first `count` messages rendered; nullopt where the template refuses them.
    const std::optional<std::string>& cut(std::size_t count, bool prompt) {
        if (count == messages_.size() && prompt == conversation_.add_generation_prompt) {
            if (!whole_) whole_ = text_;
            return whole_;
        }
        const auto [it, added] = cuts_.try_emplace({count, prompt});
        if (added)
            it->second =
                attempt(Items(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(count)), prompt);
        return it->second;
    }

    std::optional<std::string> attempt(Items messages, bool prompt) const {
        return try_render(conversation_, std::move(messages), prompt);
    }

    /// The text around the content of message i, when the first `count` messages are rendered.
    std::optional<Around> around(std::size_t i, std::size_t count, bool prompt) const {
        std::string rendered[2];
        for (int k = 0; k < 2; ++k) {
            Items messages(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(count));
            messages[i] = with_content(messages[i], probes[k]);
            auto text = attempt(std::move(messages), prompt);
            if (!text) return std::nullopt;
            rendered[k] = std::move(*text);
        }
        const auto differ =
            std::mismatch(rendered[0].begin(), rendered[0].end(), rendered[1].begin(), rendered[1].end()).first;
        const auto at = static_cast<std::size_t>(differ - rendered[0].begin());
        Around out{rendered[0].substr(0, at), {}};
        if (rendered[0].compare(at, probes[0].size(), probes[0]) != 0) return std::nullopt;
        out.after = rendered[0].substr(at + probes[0].size());
        if (rendered[1] != cat(out.before, probes[1], out.after))
            return std::nullopt;  // it occurs twice, or is changed
        return out;
    }
    const std::optional<Around>& around_whole(std::size_t i) {
        const auto [it, added] = around_.try_emplace(i);
        if (added) it->second = around(i, messages_.size(), conversation_.add_generation_prompt);
        return it->second;
    }

    /// Where the rendering of the first `count` messages ends in the text, found by the text after the content of
    /// message i - 1. Used if the front differs (Mistral moves the system message into the last user's), and
    /// if answer i has no content (calls of tools).
    std::optional<std::size_t> end_by_previous(std::size_t i, std::size_t count, bool prompt) {
        if (i == 0) return std::nullopt;
        const auto& whole = around_whole(i - 1);
        const std::optional<Around> alone = around(i - 1, count, prompt);
        if (!whole || !alone || !text_.ends_with(whole->after)) return std::nullopt;
        const std::size_t size = prompt ? alone->after.size() : size_without_space(alone->after);
        if (!whole->after.starts_with(std::string_view(alone->after).substr(0, size))) return std::nullopt;
        return text_.size() - whole->after.size() + size;
    }

    /// How much of `common`, the text after an answer whatever follows it, belongs to the turn: up to the
    /// first token that ends a generation, else the first special one.
    std::size_t size_of_turn_end(std::string_view common) const {
        const Tokenizer& tokenizer = conversation_.tokenizer;
        const Encoding tokens = tokenizer.encode_with_offsets(common, false);
        std::size_t special = 0;
        for (std::size_t t = 0; t < tokens.ids.size(); ++t) {
            const int32_t id = tokens.ids[t];
            const std::size_t end = tokens.offsets[t].second;
            if (std::find(tokenizer.stop_ids().begin(), tokenizer.stop_ids().end(), id) != tokenizer.stop_ids().end())
                return end;
            if (special == 0 && tokenizer.is_special(id)) special = end;
        }
        return special;
    }

    /// The end of a last answer, if the template writes the header of another one after it without being asked to:
    /// the conversation before the answer ends with that header too, and a following user message removes it.
    std::optional<std::size_t> end_before_header(std::size_t i) {
        if (const auto& plain = cut(i + 1, false); !plain || *plain != text_) return std::nullopt;
        Items longer = messages_;
        longer.push_back(with_member(with_member(std::make_shared<Dict>(), "role", "user"), "content", probes[0]));
        const std::optional<std::string> followed = attempt(std::move(longer), false);
        if (!followed) return std::nullopt;
        const std::string_view common = common_prefix(text_, *followed);
        const std::string_view header = std::string_view(text_).substr(common.size());
        if (size_without_space(header) == 0) return std::nullopt;  // most templates, found by this one rendering
        const auto& front = cut(i, false);
        if (!front || !text_.starts_with(*front) || !front->ends_with(header)) return std::nullopt;
        const auto& place = around_whole(i);
        if (!place || !text_.ends_with(place->after)) return std::nullopt;
        const std::size_t content_end = text_.size() - place->after.size();
        if (common.size() < content_end) return std::nullopt;
        return content_end + size_of_turn_end(common.substr(content_end));
    }

    std::size_t begin_of(std::size_t i, std::size_t previous_end) {
        const bool prompts = prompt_ && !prompt_->empty();
        if (const auto& front = cut(i, true); front && text_.starts_with(*front) && front->size() >= previous_end) {
            if (prompts) return front->size();
            // A template without a generation prompt may still write a header in front of the answer.
            const auto& place = around_whole(i);
            if (!place || !text_.starts_with(place->before) || place->before.size() < front->size())
                return front->size();
            const std::string_view between = std::string_view(place->before).substr(front->size());
            return size_without_space(between) == 0 ? front->size() : place->before.size();
        }
        const auto& place = around_whole(i);
        if (!place) return begin_by_previous(i, previous_end);
        const std::size_t limit = common_prefix(text_, place->before).size();
        std::size_t from = previous_end;
        if (i > 0) {
            if (const auto& other = around_whole(i - 1); other && text_.ends_with(other->after))
                from = std::max(from, text_.size() - other->after.size());
        }
        // Between the content in front and this one stand the template's own words alone.
        if (prompts && from <= limit) {
            const std::string_view between = std::string_view(text_).substr(from, limit - from);
            const std::size_t at = between.find(*prompt_);
            if (at != std::string_view::npos && between.find(*prompt_, at + 1) == std::string_view::npos)
                return from + at + prompt_->size();
        }
        const bool whole = limit == place->before.size() && limit >= previous_end;
        if (const auto begin = end_by_previous(i, i, true); begin && *begin >= previous_end && *begin <= limit) {
            const std::string_view between = std::string_view(text_).substr(*begin, limit - *begin);
            if (prompts || (whole && size_without_space(between) == 0)) return *begin;
        }
        if (whole) return limit;
        return where_prompt_ends(i, previous_end);
    }

    /// Where the text departs from what a generation at this place would be given, if only that has more to
    /// say (an empty reasoning block, say) than the header.
    std::size_t where_prompt_ends(std::size_t i, std::size_t previous_end) {
        const auto &front = cut(i, false), &prompt = cut(i, true);
        if (!front || !prompt || !text_.starts_with(*front)) return begin_by_previous(i, previous_end);
        const std::size_t end = common_prefix(text_, *prompt).size();
        if (end <= front->size() || end < previous_end) return begin_by_previous(i, previous_end);
        std::size_t boundary = end;  // of a character
        while (boundary < text_.size() && (text_[boundary] & 0xC0) == 0x80) --boundary;
        return boundary;
    }

    std::size_t begin_by_previous(std::size_t i, std::size_t previous_end) {
        const auto begin = end_by_previous(i, i, true);
        if (!begin || *begin < previous_end) refuse(i);
        return *begin;
    }

    std::size_t end_of(std::size_t i, std::size_t begin) {
        const bool last = i + 1 == messages_.size();
        if (last) {
            if (const auto end = end_before_header(i); end && *end >= begin) return *end;
        }
        if (const auto& front = cut(i + 1, false); front && front->size() >= begin && text_.starts_with(*front))
            return size_without_space(*front);
        const auto& place = around_whole(i);
        const std::optional<Around> alone =
            last && !conversation_.add_generation_prompt ? place : around(i, i + 1, false);
        const bool placed = place && alone && text_.ends_with(place->after);
        if (placed) {
            const std::string_view tail = std::string_view(alone->after).substr(0, size_without_space(alone->after));
            if (place->after.starts_with(tail)) return text_.size() - place->after.size() + tail.size();
        }
        if (const auto end = end_by_previous(i, i + 1, false); end && *end >= begin) return *end;
        if (!placed || calls_tools(messages_[i])) refuse(i);  // calls may follow the common part
        const std::string_view common = common_prefix(alone->after, place->after);
        return text_.size() - place->after.size() + size_of_turn_end(common);
    }

    [[noreturn]] void refuse(std::size_t i) const {
        throw Error(
            "template.unclear-turns",
            cat("chat template ", conversation_.chat_template.name(), ": cannot tell which part of the text messages[",
                i, "] is: the template renders it differently depending on what follows"),
            "put {% generation %} … {% endgeneration %} around the answer in the template, choose another "
            "one, or train on the whole text (train_on_prompt)");
    }

    const TemplateInput& conversation_;
    const Items& messages_;
    const std::string& text_;
    std::optional<std::string> prompt_;  ///< what add_generation_prompt appends
    std::optional<std::string> whole_;
    std::map<std::pair<std::size_t, bool>, std::optional<std::string>> cuts_;
    std::map<std::size_t, std::optional<Around>> around_;
};

}  // namespace

const Value* find_member(const Value& value, std::string_view key) {
    return value.is(Value::Kind::dict) ? value.dict().find(key) : nullptr;
}

Value with_member(const Value& object, std::string_view key, Value value) {
    auto changed = std::make_shared<Dict>(object.dict());
    changed->set(Value(key), std::move(value));
    return changed;
}

Value with_content(const Value& message, std::string_view content) {
    const Value* old = find_member(message, "content");
    if (!old || !old->is_sequence(jinja::Sequence::Kind::list)) return with_member(message, "content", Value(content));
    Items parts;
    bool replaced = false;
    for (const Value& part : old->items()) {
        if (!find_member(part, "text")) {
            parts.push_back(part);
        } else if (!std::exchange(replaced, true)) {
            parts.push_back(with_member(part, "text", Value(content)));
        }
    }
    return with_member(message, "content", Value::list(std::move(parts)));
}

jinja::RenderedTemplate render_messages(const TemplateInput& conversation, Items messages, bool add_generation_prompt) {
    jinja::Variables variables = conversation.variables;
    variables["messages"] = Value::list(std::move(messages));
    variables["add_generation_prompt"] = add_generation_prompt;
    return conversation.chat_template.render(variables);
}

std::optional<std::string> try_render(const TemplateInput& conversation, Items messages, bool add_generation_prompt) {
    try {
        return render_messages(conversation, std::move(messages), add_generation_prompt).text;
    } catch (const Error&) {
        return std::nullopt;
    }
}

std::vector<std::pair<std::size_t, std::size_t>> find_assistant_turns(const TemplateInput& conversation,
                                                                      const std::string& text, bool last_only) {
    std::vector<std::size_t> turns;
    for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
        if (is_assistant(conversation.messages[i])) turns.push_back(i);
    }
    if (turns.empty()) return {};
    if (last_only) turns.erase(turns.begin(), turns.end() - 1);
    TurnFinder finder(conversation, text);
    std::vector<std::pair<std::size_t, std::size_t>> out;
    std::size_t previous_end = 0;
    for (const std::size_t i : turns) {
        const auto [begin, end] = finder.turn(i, previous_end);
        previous_end = end;
        if (end > begin) out.emplace_back(begin, end);
    }
    return out;
}

}  // namespace unsloth::tokenizer
