// Choosing a chat template, and rendering a row with it.
#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tokenizer/assistant_turns.h"
#include "tokenizer/builtin_templates.h"
#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/template.h"
#include "tokenizer/json_reader.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/core/suggest.h"
#include "unsloth/spec/reasoning_names.h"
#include "unsloth/tokenizer/chat.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::tokenizer {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Dict;
using jinja::Items;
using jinja::Value;

void require_tokens(const BuiltinTemplate& chosen, const Tokenizer& tokenizer) {
    for (const std::string_view token : chosen.tokens) {
        if (tokenizer.added_token_id(token)) continue;
        throw Error("template.missing-token",
                    cat("the chat template ", chosen.name, " needs the token ", token, ", which the tokenizer in ",
                        tokenizer.folder().string(), " does not have"),
                    "choose another --data.template (auto takes one that fits the tokenizer)");
    }
    if (chosen.writes_eos) end_of_sequence(tokenizer);
    if (chosen.writes_bos && !tokenizer.bos_id()) {
        throw Error("template.missing-token",
                    cat("the chat template ", chosen.name,
                        " begins with the beginning-of-sequence token, and the tokenizer in ",
                        tokenizer.folder().string(), " names none"),
                    "set bos_token in its tokenizer_config.json, or choose another --data.template");
    }
}

const std::string* own_template(const Tokenizer& tokenizer, std::string_view name) {
    const auto& all = tokenizer.chat_templates();
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.first == name; });
    return found == all.end() ? nullptr : &found->second;
}

std::string_view fitting_builtin(const Tokenizer& tokenizer) {
    if (tokenizer.added_token_id("<|start_header_id|>")) return "llama-3";
    return tokenizer.added_token_id("<|im_start|>") ? "chatml" : "alpaca";
}

/// A template itself, in the place of a name.
bool is_template_text(std::string_view name) {
    return name.find("{{") != std::string_view::npos || name.find("{%") != std::string_view::npos;
}

Error unknown_template(std::string_view name, const Tokenizer& tokenizer) {
    std::vector<std::string> names = {"auto"};
    std::string known = "auto";
    for (const std::string_view builtin : builtin_templates()) {
        names.emplace_back(builtin);
        known += cat(", ", builtin);
    }
    for (const auto& [own, ignored] : tokenizer.chat_templates()) {
        names.push_back(own);
        known += cat(", ", own, " (of the model)");
    }
    const std::string meant = did_you_mean(nearest(std::string(name), names));
    return Error(
        "template.unknown", cat("there is no chat template '", name, "'"),
        cat(meant, meant.empty() ? "" : " ", "known: ", known, "; or a path to a .jinja file, or the template itself"));
}

bool calls_tools(const Json& message) {
    const auto calls = message.find("tool_calls");
    return calls != message.end() && calls->is_array() && !calls->empty();
}

/// A message as transformers hands it over: without null members, its reasoning under all names for it. One that calls
/// tools and says nothing has an empty text as content, for templates add to it.
Value message_value(const Json& message, std::size_t i) {
    if (!message.is_object())
        throw Error("data.message-shape", cat("messages[", i, "]: expected an object, found ", shown(message)));
    const auto role = message.find("role");
    if (role == message.end()) throw Error("data.message-shape", cat("messages[", i, "]: 'role' is missing"));
    if (!role->is_string())
        throw Error("data.message-shape", cat("messages[", i, "].role: expected a string, found ", shown(*role)));
    const Json* reasoning = nullptr;
    for (const char* name : spec::reasoning_names) {
        const auto found = message.find(name);
        if (!reasoning && found != message.end() && !found->is_null()) reasoning = &*found;
    }
    auto out = std::make_shared<Dict>();
    if (reasoning) out->set(Value("thinking"), jinja::from_json(*reasoning));
    for (const auto& [key, value] : message.items()) {
        if (!value.is_null()) out->set(Value(key), jinja::from_json(value));
    }
    if (reasoning) out->set(Value("reasoning_content"), jinja::from_json(*reasoning));
    if (calls_tools(message) && !out->find(std::string_view("content"))) out->set(Value("content"), Value(""));
    return out;
}

Items message_values(const Json& messages) {
    if (!messages.is_array())
        throw Error("data.message-shape", cat("messages: expected an array, found ", shown(messages)));
    if (messages.empty()) throw Error("data.message-shape", "a conversation without messages");
    Items out;
    for (std::size_t i = 0; i < messages.size(); ++i) out.push_back(message_value(messages[i], i));
    return out;
}

/// The names of a template, and its strings: what it may read of a row or a message.
std::set<std::string, std::less<>> words_of(std::string_view source) {
    std::set<std::string, std::less<>> words;
    for (jinja::Token& token : jinja::tokenize(source))
        if (token.kind == jinja::Token::Kind::name || token.kind == jinja::Token::Kind::string)
            words.insert(std::move(token.text));
    return words;
}

/// A row's chat_template_kwargs; a table has them as JSON text.
Json kwargs_of(const Json& row) {
    const auto found = row.find("chat_template_kwargs");
    if (found == row.end() || found->is_null()) return Json::object();
    Json kwargs = found->is_string() ? try_parse_ordered(found->get_ref<const std::string&>()) : *found;
    if (!kwargs.is_object())
        throw Error("data.column-type", cat("chat_template_kwargs: expected an object, found ", shown(*found)));
    return kwargs;
}

}  // namespace

struct ChatTemplate::Impl {
    jinja::Template main;
    std::optional<jinja::Template> with_tools;  ///< the model's own for conversations with tools
    jinja::Variables variables;                 ///< that every rendering is given
    std::set<std::string, std::less<>> words;   ///< of the templates' sources
    const BuiltinTemplate* builtin = nullptr;
    Tokenizer tokenizer;
    std::optional<Error> syntax_error;  ///< of the model's template, when the user did not name it
    mutable KnownShapes known_shapes;

    explicit Impl(Tokenizer of_model) : tokenizer(std::move(of_model)) {}
    jinja::Template compile(std::string_view source, std::string name);
    void compile_own(const std::string& source, const std::string* tool_use);
    Rendered render(const jinja::Template& chosen, Items messages, bool prompt, jinja::Variables given,
                    TrainedTurns turns) const;
};

namespace {

/// What a built-in template may use besides: see builtin_templates.h.
void add_builtin_variables(const Tokenizer& tokenizer, jinja::Variables& variables) {
    variables["sequence_start"] = leading_bos(tokenizer);
    variables["alpaca_preamble"] = alpaca_preamble({}, false);
    if (tokenizer.eos_id()) variables["eos_token"] = tokenizer.token(*tokenizer.eos_id());
    if (tokenizer.bos_id()) variables["bos_token"] = tokenizer.token(*tokenizer.bos_id());
}

void add_kwargs(std::string_view text, jinja::Variables& variables) {
    const Json kwargs = try_parse_ordered(text);
    if (!kwargs.is_object())
        throw Error("option.invalid-value", cat("chat_template_kwargs: expected a JSON object, found ", text));
    for (const auto& [key, value] : kwargs.items()) {
        if (key == "messages" || key == "add_generation_prompt")
            throw Error("option.invalid-value", cat("chat_template_kwargs: ", key, " is each row's own"),
                        "Leave it out.");
        variables[key] = jinja::from_json(value);
    }
}

/// A template may read any variable: to a template a misspelled name is not an error.
void doubt_kwargs(std::string_view text, const std::set<std::string, std::less<>>& words, const std::string& name) {
    const Json kwargs = try_parse_ordered(text);
    for (const auto& [key, value] : kwargs.items()) {
        if (words.contains(key)) continue;
        const std::string meant = did_you_mean(nearest(key, {words.begin(), words.end()}));
        log::warning("chat_template_kwargs: the chat template ", name, " does not read ", key,
                     meant.empty() ? "" : "; ", meant);
    }
}

}  // namespace

ChatTemplate ChatTemplate::choose(std::string_view name, const Tokenizer& tokenizer, std::string_view kwargs) {
    auto impl = std::make_shared<Impl>(tokenizer);
    for (const auto& [key, text] : tokenizer.special_token_texts()) impl->variables[key] = text;
    const std::string* own = own_template(tokenizer, name == "auto" ? "default" : name);
    const BuiltinTemplate* builtin = nullptr;
    if (!own) builtin = find_builtin_template(name == "auto" ? fitting_builtin(tokenizer) : name);
    if (own && name == "auto") {
        impl->compile_own(*own, own_template(tokenizer, "tool_use"));
    } else if (own) {
        impl->main = impl->compile(*own, cat(name, " (of the model)"));
    } else if (builtin) {
        impl->main = impl->compile(builtin->source(), std::string(builtin->name));
        impl->builtin = builtin;
        add_builtin_variables(tokenizer, impl->variables);
    } else if (is_template_text(name)) {
        impl->main = impl->compile(name, "of the configuration");
    } else if (std::error_code no_path; std::filesystem::is_regular_file(name, no_path)) {
        impl->main = impl->compile(read_file(name), std::string(name));
    } else {
        throw unknown_template(name, tokenizer);
    }
    add_kwargs(kwargs, impl->variables);
    if (!impl->syntax_error) doubt_kwargs(kwargs, impl->words, impl->main.name());
    return ChatTemplate(std::move(impl));
}

void require_template_syntax(std::string_view name) {
    std::error_code no_path;
    if (is_template_text(name))
        jinja::Template::compile(name, "of the configuration");
    else if (!find_builtin_template(name) && std::filesystem::is_regular_file(name, no_path))
        jinja::Template::compile(read_file(name), std::string(name));
}

const std::string& ChatTemplate::name() const {
    return impl_->main.name();
}

bool ChatTemplate::reads(std::string_view word) const {
    return impl_->words.contains(word);
}

jinja::Template ChatTemplate::Impl::compile(std::string_view source, std::string name) {
    jinja::Template made = jinja::Template::compile(source, std::move(name));
    words.merge(words_of(source));
    return made;
}

/// A model's template with an error must not stop a run over rows that have no messages.
void ChatTemplate::Impl::compile_own(const std::string& source, const std::string* tool_use) {
    try {
        main = compile(source, "default (of the model)");
        if (tool_use) with_tools = compile(*tool_use, "tool_use (of the model)");
    } catch (const Error& error) {
        syntax_error = error;
        main = jinja::Template::compile("", "default (of the model)");
    }
}

Rendered ChatTemplate::Impl::render(const jinja::Template& chosen, Items messages, bool prompt, jinja::Variables given,
                                    TrainedTurns turns) const {
    if (syntax_error) throw *syntax_error;
    if (builtin) require_tokens(*builtin, tokenizer);
    TemplateInput input{chosen, tokenizer, std::move(messages), std::move(given), prompt};
    parse_arguments(input);
    jinja::RenderedTemplate out = render_messages(input, input.messages, prompt);
    Rendered rendered{std::move(out.text)};
    rendered.left_out = left_out(input, rendered.text, known_shapes);
    // A template that knows reasoning may drop that of earlier turns.
    const auto known = [&](const char* name) { return words.contains(name); };
    rendered.passes_over_reasoning =
        std::ranges::none_of(spec::reasoning_names, known) && passes_over(input, rendered.text, spec::reasoning_names);
    if (turns == TrainedTurns::none) return rendered;
    // Prefer the marks of a template that marks what the assistant says, unless they are within a value.
    if (chosen.has_generation() && !out.generation_within_value) {
        rendered.trained_bytes = std::move(out.generations);
        std::erase_if(rendered.trained_bytes, [](const auto& range) { return range.first == range.second; });
        if (turns == TrainedTurns::last && rendered.trained_bytes.size() > 1)
            rendered.trained_bytes.erase(rendered.trained_bytes.begin(), rendered.trained_bytes.end() - 1);
    } else {
        rendered.trained_bytes = find_assistant_turns(input, rendered.text, turns == TrainedTurns::last);
    }
    return rendered;
}

Rendered ChatTemplate::render(const Json& row, TrainedTurns turns) const {
    if (!row.is_object() || !row.contains("messages")) throw Error("data.missing-column", "'messages' is missing");
    try {
        bool prompt = false;
        jinja::Variables variables = impl_->variables;
        for (const char* absent : {"tools", "documents"}) variables.try_emplace(absent);
        const auto take = [&](const Json& members) {
            for (const auto& [key, value] : members.items()) {
                if (key == "messages" || key == "chat_template_kwargs" || value.is_null()) continue;
                if (key != "add_generation_prompt")
                    variables[key] = jinja::from_json(value);
                else if (value.is_boolean())
                    prompt = value.template get<bool>();
                else
                    throw Error("data.column-type",
                                cat("add_generation_prompt: expected true or false, found ", shown(value)));
            }
        };
        take(row);
        take(kwargs_of(row));
        const jinja::Template& chosen =
            impl_->with_tools && !variables["tools"].is_none() ? *impl_->with_tools : impl_->main;
        return impl_->render(chosen, message_values(row["messages"]), prompt, std::move(variables), turns);
    } catch (const jinja::Failure& failure) {  // outside the template: the row nests too deep
        throw Error("template.failed", failure.what());
    }
}

Rendered ChatTemplate::render(std::span<const Message> messages, bool add_generation_prompt, TrainedTurns turns) const {
    Json row = {{"messages", Json::array()}, {"add_generation_prompt", add_generation_prompt}};
    for (const Message& message : messages)
        row["messages"].push_back({{"role", message.role}, {"content", message.content}});
    return render(row, turns);
}

void require_whole(const ChatTemplate& chat, const Rendered& rendered) {
    if (rendered.left_out.empty()) return;
    const bool content = rendered.left_out.find("].content") != std::string::npos;
    throw Error("template.omits-content",
                cat("the chat template ", chat.name(), " writes nothing of the row's ", rendered.left_out,
                    ": the model would not see it"),
                content ? "Choose a data.template that writes it, or give the message a role that this one knows; "
                          "a text together with tool_calls may become a message of its own."
                        : "Choose a data.template that writes tools and calls of them, or write them into the "
                          "contents.");
}

std::span<const std::string_view> builtin_templates() {
    static const std::vector<std::string_view> names = [] {
        std::vector<std::string_view> out;
        for (const BuiltinTemplate& entry : builtin_template_table()) out.push_back(entry.name);
        return out;
    }();
    return names;
}

}  // namespace unsloth::tokenizer
