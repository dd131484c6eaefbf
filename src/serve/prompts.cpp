#include "serve/prompts.h"

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/text.h"
#include "unsloth/openai/error.h"
#include "unsloth/openai/harmony.h"

namespace unsloth::serve {
namespace {

constexpr const char* white_space = " \t\r\n\f\v";

/// The text up to the end of the last message's content, as transformers' continue_final_message has it: the template
/// may strip white space.
std::string cut_after(const std::string& rendered, const std::string& content) {
    const std::string needle = trimmed(content);
    const std::size_t at = needle.empty() ? std::string::npos : rendered.rfind(needle);
    if (at == std::string::npos)
        throw openai::invalid("'continue_final_message': the chat template does not write the last message as it is.",
                              "continue_final_message");
    const std::size_t lead = content.find_first_not_of(white_space);
    const std::string whole = content.substr(lead);
    const bool keeps_end = rendered.compare(at, whole.size(), whole) == 0;
    return rendered.substr(0, at + (keeps_end ? whole.size() : needle.size()));
}

}  // namespace

std::vector<EncodedPrompt> PromptReader::prompts(const openai::AnswerRequest& request,
                                                 const session::Sight::Bounds& bounds) const {
    if (request.is_chat)
        return {conversation(*request.row, request.continue_final_message, bounds,
                             request.response ? "input" : "messages")};
    std::vector<EncodedPrompt> all;
    for (const openai::Prompt& prompt : request.prompts) {
        EncodedPrompt encoded;
        encoded.ids = prompt.is_text ? text(prompt.text, request.add_special_tokens) : prompt.ids;
        if (encoded.ids.empty())
            throw openai::invalid("Invalid value for 'prompt': it has no tokens, and the tokenizer adds none.",
                                  "prompt");
        if (request.echo)
            encoded.text = prompt.is_text ? prompt.text : tokenizer_.decode(encoded.ids, /*skip_special=*/false);
        all.push_back(std::move(encoded));
    }
    return all;
}

EncodedPrompt PromptReader::conversation(const nlohmann::ordered_json& row, bool continue_final_message,
                                         const session::Sight::Bounds& bounds, const std::string& field) const {
    const auto encode = [&](const nlohmann::ordered_json& shown) {
        return render(shown, continue_final_message, field);
    };
    try {  // all images are data: URLs (openai/messages.h): there is no folder
        session::SeenPrompt seen = sight_.read(row, {}, encode, bounds);
        return {std::move(seen.ids), {}, std::move(seen.images)};
    } catch (const Error& refused) {
        throw openai::ApiError(400, cat("Invalid image in '", field, "': ", refused.what()), field, "invalid_image");
    }
}

std::vector<int32_t> PromptReader::render(const nlohmann::ordered_json& row, bool continue_final_message,
                                          const std::string& field) const {
    try {
        const bool is_harmony = tool_format_ == openai::ToolFormat::harmony;
        tokenizer::Rendered rendered =
            chat_.render(is_harmony ? openai::harmony_row(row) : row, tokenizer::TrainedTurns::none);
        tokenizer::require_whole(chat_, rendered);
        if (continue_final_message)
            rendered.text = cut_after(rendered.text, row["messages"].back()["content"].get<std::string>());
        return tokenizer::encode_rendered(tokenizer_, rendered).ids;
    } catch (const Error& refused) {
        throw openai::invalid(cat("The chat template refuses '", field, "': ", refused.what()), field);
    }
}

openai::DecisionPrompt PromptReader::decision(const nlohmann::ordered_json& messages,
                                              const openai::DecisionQuestion& question,
                                              const std::string& where) const {
    try {
        return openai::decision_prompt(tokenizer_, chat_, messages, question, where);
    } catch (const Error& refused) {
        throw openai::invalid(cat("The chat template refuses 'input': ", refused.what()), "input");
    }
}

std::vector<int32_t> PromptReader::text(const std::string& text, bool add_special_tokens) const {
    try {
        return tokenizer_.encode(text, add_special_tokens);
    } catch (const Error& refused) {
        throw openai::invalid(refused.what(), "prompt");
    }
}

}  // namespace unsloth::serve
