#include <algorithm>
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/tokenizer/chat.h"
#include "unsloth/tokenizer/ordered_row.h"
#include "unsloth/train/commands.h"
#include "unsloth/train/session.h"

namespace unsloth::train {
namespace {

using Prompt = std::vector<int32_t>;

Prompt encode_row(const nlohmann::ordered_json& row, const tokenizer::Tokenizer& tokenizer,
                  const tokenizer::ChatTemplate& chat, const std::string& where) {
    if (row.contains("text") && row["text"].is_string()) return tokenizer.encode(row["text"].get<std::string>(), true);
    if (!row.contains("messages") || !row["messages"].is_array())
        throw input_error(cat(where, ": expected {\"text\"} or {\"messages\"}"));
    nlohmann::ordered_json prompt = row;
    prompt["add_generation_prompt"] = true;
    return tokenizer::encode_rendered(tokenizer, chat.render(prompt, tokenizer::TrainedTurns::none)).ids;
}

/// --prompt as a user's message, or as it is for a model without a template that someone chose for it.
Prompt encode_prompt(const config::GenerateRequest& request, const tokenizer::Tokenizer& tokenizer,
                     const tokenizer::ChatTemplate& chat, const std::string& template_name) {
    const auto& own = tokenizer.chat_templates();
    const bool chats = template_name != "auto" ||
                       std::any_of(own.begin(), own.end(), [](const auto& entry) { return entry.first == "default"; });
    if (request.raw || !chats) return tokenizer.encode(request.prompt, true);
    log::info("the prompt is a user's message to chat template ", chat.name(), " (--raw: the text as it is)");
    const tokenizer::Message message{"user", request.prompt};
    return tokenizer::encode_rendered(
               tokenizer, chat.render({&message, 1}, /*add_generation_prompt=*/true, tokenizer::TrainedTurns::none))
        .ids;
}

/// JSON Lines of {"text"} or {"messages"}; anything that does not begin with an object is one prompt of plain text.
std::vector<Prompt> read_prompts(const config::GenerateRequest& request, const tokenizer::Tokenizer& tokenizer,
                                 const config::DataOptions& data) {
    const tokenizer::ChatTemplate chat =
        tokenizer::ChatTemplate::choose(data.template_name, tokenizer, data.chat_template_kwargs);
    if (request.file.empty()) return {encode_prompt(request, tokenizer, chat, data.template_name)};
    const std::string content = read_file(request.file);
    const std::size_t first = content.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) throw input_error(cat(request.file, ": the file is empty"));
    if (content[first] != '{') return {tokenizer.encode(content, true)};
    std::vector<Prompt> prompts;
    std::istringstream lines(content);
    std::string line;
    for (int64_t number = 1; std::getline(lines, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const std::string where = cat(request.file, ":", number);
        const auto row = tokenizer::try_parse_ordered(line);
        if (!row.is_object()) throw input_error(cat(where, ": not a JSON object"));
        prompts.push_back(encode_row(row, tokenizer, chat, where));
    }
    return prompts;
}

std::vector<int32_t> stop_ids(const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec) {
    std::vector<int32_t> stops = tokenizer.stop_ids();
    for (const int64_t id : spec.eos_token_ids) stops.push_back(static_cast<int32_t>(id));
    // Chat models end a turn with a token of its own.
    for (const char* name : {"<|eot_id|>", "<|im_end|>"})
        if (const auto id = tokenizer.added_token_id(name)) stops.push_back(*id);
    return stops;
}

std::vector<int32_t> continue_prompt(model::Model& model, const Prompt& prompt, int64_t max_new_tokens,
                                     const std::vector<int32_t>& stops) {
    std::vector<model::KvCache> caches = model.make_caches(static_cast<int64_t>(prompt.size()) + max_new_tokens);
    std::vector<int32_t> made, next = prompt;
    while (static_cast<int64_t>(made.size()) < max_new_tokens) {
        const int32_t id = model.next_token(next, caches);
        if (std::find(stops.begin(), stops.end(), id) != stops.end()) break;
        made.push_back(id);
        next = {id};
    }
    return made;
}

}  // namespace

void run_generate(const config::LoadedConfig& loaded, const config::GenerateRequest& request) {
    const OpenedModel opened = open_model(loaded.config);
    const tokenizer::Tokenizer tokenizer = opened.tokenizer();
    const std::vector<Prompt> prompts = read_prompts(request, tokenizer, loaded.config.data);
    std::size_t longest = 1;
    for (const Prompt& prompt : prompts) {
        if (prompt.empty()) throw input_error("a prompt has no tokens, and the tokenizer adds none");
        longest = std::max(longest, prompt.size());
    }
    const auto room = static_cast<int64_t>(longest) + request.max_new_tokens;
    if (room > opened.file->spec.max_position_embeddings)
        throw usage_error(cat("prompt and max_new_tokens take ", room, " positions, the model allows ",
                              opened.file->spec.max_position_embeddings));
    const LoadedModel loaded_model =
        load_for_inference(loaded, opened, static_cast<int64_t>(longest), 1, 1, /*fewest_tokens=*/1, room);
    const std::vector<int32_t> stops = stop_ids(tokenizer, opened.file->spec);
    for (const Prompt& prompt : prompts) {
        const std::vector<int32_t> ids = continue_prompt(*loaded_model.model, prompt, request.max_new_tokens, stops);
        const std::string text = tokenizer.decode(ids, /*skip_special=*/true);
        if (request.json) {
            std::cout << nlohmann::ordered_json{{"prompt_ids", prompt}, {"ids", ids}, {"text", text}}.dump() << "\n";
        } else {
            std::cout << text << "\n";
        }
    }
    if (!std::cout.flush()) throw runtime_failure("cannot write to standard output");
}

}  // namespace unsloth::train
