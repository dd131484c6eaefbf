#include "train/generation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/tokenizer/chat.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::train {
namespace {

Prompt encode_row(const nlohmann::ordered_json& row, const tokenizer::Tokenizer& tokenizer,
                  const tokenizer::ChatTemplate& chat, const std::string& where) {
    for (const char* const plain : {"text", "prompt"})
        if (row.contains(plain) && row[plain].is_string()) return tokenizer.encode(row[plain].get<std::string>(), true);
    if (!row.contains("messages") || !row["messages"].is_array())
        throw input_error(cat(where, ": expected {\"text\"}, {\"prompt\"} or {\"messages\"}"));
    try {
        nlohmann::ordered_json prompt = row;
        tokenizer::put_system_first(prompt);
        prompt["add_generation_prompt"] = true;
        const tokenizer::Rendered rendered = chat.render(prompt, tokenizer::TrainedTurns::none);
        tokenizer::require_whole(chat, rendered);
        return tokenizer::encode_rendered(tokenizer, rendered).ids;
    } catch (const Error& error) {
        throw Error(error.kind(), cat(where, ": ", error.what()));
    }
}

std::string adapter_of(const nlohmann::ordered_json& row, const std::string& where) {
    const auto named = row.find("adapter");
    if (named == row.end() || named->is_null()) return "";
    if (!named->is_string() || named->get<std::string>().empty())
        throw input_error(cat(where, ": \"adapter\" is ", named->dump(), ", expected a name or null"));
    return named->get<std::string>();
}

}  // namespace

std::vector<Prompt> read_prompts(const std::filesystem::path& file, const tokenizer::Tokenizer& tokenizer,
                                 const config::DataOptions& data, std::vector<NamedAt>* adapters) {
    const tokenizer::ChatTemplate chat =
        tokenizer::ChatTemplate::choose(data.template_name, tokenizer, data.chat_template_kwargs);
    const std::string content = read_file(file);
    const std::size_t first = content.find_first_not_of(" \t\r\n");
    if (first == std::string::npos)
        throw input_error(cat(file.string(), ": the file is empty"),
                          "Write a line for each prompt, {\"text\": \"…\"}, {\"prompt\": \"…\"} or {\"messages\": "
                          "[…]}, or one as it is.");
    if (content[first] != '{') {
        if (adapters != nullptr) adapters->push_back({"", file.string()});
        return {tokenizer.encode(content, true)};
    }
    std::vector<Prompt> prompts;
    std::istringstream lines(content);
    std::string line;
    for (int64_t number = 1; std::getline(lines, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const std::string where = cat(file.string(), ":", number);
        const auto row = tokenizer::try_parse_ordered(line);
        if (!row.is_object()) throw input_error(cat(where, ": not a JSON object"));
        prompts.push_back(encode_row(row, tokenizer, chat, where));
        if (adapters != nullptr) adapters->push_back({adapter_of(row, where), where});
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

int64_t longest_of(const std::vector<Prompt>& prompts) {
    std::size_t longest = 1;
    for (const Prompt& prompt : prompts) {
        if (prompt.empty()) throw input_error("a prompt has no tokens, and the tokenizer adds none");
        longest = std::max(longest, prompt.size());
    }
    return static_cast<int64_t>(longest);
}

}  // namespace unsloth::train
