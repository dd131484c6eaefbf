#include "unsloth/session/generation.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/data/seen_prompt.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::session {
namespace {

/// A row of {"prompt"} with images as one of messages.
nlohmann::ordered_json with_message(nlohmann::ordered_json row) {
    const auto images = row.find("images");
    const std::size_t count = images != row.end() && images->is_array() ? images->size() : 1;
    row["messages"] = nlohmann::ordered_json::array();
    row["messages"].push_back(
        {{"role", "user"}, {"content", data::with_image_places(row["prompt"].get<std::string>(), count)}});
    row.erase("prompt");
    return row;
}

SeenPrompt encode_row(const nlohmann::ordered_json& row, const PromptEncoder& encoder,
                      const std::filesystem::path& folder, const std::string& where) {
    const auto has_text = [&](const char* key) { return row.contains(key) && row[key].is_string(); };
    const bool shows = data::shows_images(row);
    if (has_text("text") && shows)
        throw Error("data.prompt-shape", cat(where, ": a row of {\"text\"} has images"),
                    "Write {\"prompt\": \"…\", \"images\": […]}, or messages with image parts.");
    if (has_text("text")) return encoder.text(row["text"].get<std::string>());
    if (has_text("prompt") && !shows) return encoder.prompt(row["prompt"].get<std::string>());
    if (!has_text("prompt") && (!row.contains("messages") || !row["messages"].is_array()))
        throw Error("data.prompt-shape", cat(where, ": expected {\"text\"}, {\"prompt\"} or {\"messages\"}"));
    try {
        return encoder.seen_messages(has_text("prompt") ? with_message(row) : row, folder);
    } catch (const Error& error) {
        throw Error(error.id(), cat(where, ": ", error.what()));
    }
}

std::string adapter_of(const nlohmann::ordered_json& row, const std::string& where) {
    const auto named = row.find("adapter");
    if (named == row.end() || named->is_null()) return "";
    if (!named->is_string() || named->get<std::string>().empty())
        throw Error("data.prompt-shape", cat(where, ": \"adapter\" is ", named->dump(), ", expected a name or null"));
    return named->get<std::string>();
}

bool has_template(const tokenizer::Tokenizer& tokenizer) {
    const auto& own = tokenizer.chat_templates();
    return std::any_of(own.begin(), own.end(), [](const auto& entry) { return entry.first == "default"; });
}

/// Alpaca rows have the three-section prompt where no template is named, whatever the model has.
std::string template_for(const std::string& named, const std::string& rows) {
    return named == "auto" && rows == "alpaca" ? rows : named;
}

}  // namespace

PromptEncoder::PromptEncoder(const tokenizer::Tokenizer& tokenizer, const config::DataOptions& data,
                             const std::string& rows, Sight sight)
    : tokenizer_(tokenizer),
      chat_(tokenizer::ChatTemplate::choose(template_for(data.template_name, rows), tokenizer,
                                            data.chat_template_kwargs)),
      image_root_(data.image_root),
      sight_(std::move(sight)) {
    const bool named = template_for(data.template_name, rows) != "auto", own = has_template(tokenizer);
    const bool chats = rows == "messages" || rows == "sharegpt", texts = rows == "text" || rows == "prompt_completion";
    guessed_ = !named && !own && !chats;
    raw_ = !named && !chats && (texts || !own);
}

namespace {

nlohmann::ordered_json conversation_of(nlohmann::ordered_json message) {
    return {{"messages", nlohmann::ordered_json::array({std::move(message)})}};
}

}  // namespace

std::vector<std::string> absolute(std::vector<std::string> files) {
    for (std::string& file : files) file = std::filesystem::absolute(file).string();
    return files;
}

SeenPrompt PromptEncoder::prompt(const std::string& text, const std::vector<std::string>& images) const {
    if (raw_) return this->text(text, images);
    return sight_.read(conversation_of(data::user_message(text, absolute(images))), anywhere,
                       [this](const nlohmann::ordered_json& row) { return render(row); });
}

SeenPrompt PromptEncoder::text(const std::string& text, const std::vector<std::string>& images) const {
    if (images.empty()) return {tokenizer_.encode(text, true)};
    return sight_.read(conversation_of(data::user_message("", absolute(images))), anywhere,
                       [&](const nlohmann::ordered_json&) { return tokenizer_.encode(text, true); });
}

SeenPrompt PromptEncoder::seen_messages(const nlohmann::ordered_json& row, const std::filesystem::path& folder) const {
    return sight_.read(row, image_root_.empty() ? folder : std::filesystem::path(image_root_),
                       [this](const nlohmann::ordered_json& shown) { return render(shown); });
}

Prompt PromptEncoder::messages(const nlohmann::ordered_json& row) const {
    return Sight().read(row, {}, [this](const nlohmann::ordered_json& shown) { return render(shown); }).ids;
}

Prompt PromptEncoder::render(nlohmann::ordered_json row) const {
    tokenizer::put_system_first(row);
    row["add_generation_prompt"] = true;
    const tokenizer::Rendered rendered = chat_.render(row, tokenizer::TrainedTurns::none);
    tokenizer::require_whole(chat_, rendered);
    return tokenizer::encode_rendered(tokenizer_, rendered).ids;
}

namespace {

std::string read_standard_input() {
    std::ostringstream content;
    content << std::cin.rdbuf();
    return content.str();
}

}  // namespace

std::vector<SeenPrompt> read_prompts(const std::filesystem::path& file, const PromptEncoder& encoder,
                                     std::vector<NamedAt>* adapters) {
    const std::string content = file == "-" ? read_standard_input() : read_file(file);
    const std::size_t first = content.find_first_not_of(" \t\r\n");
    if (first == std::string::npos)
        throw Error("data.empty", cat(file.string(), ": the file is empty"),
                    "Write a line for each prompt, {\"text\": \"…\"}, {\"prompt\": \"…\"} or {\"messages\": "
                    "[…]}, or one as it is.");
    if (content[first] != '{') {
        if (adapters != nullptr) adapters->push_back({"", file.string()});
        return {encoder.text(content)};
    }
    std::vector<SeenPrompt> prompts;
    std::istringstream lines(content);
    std::string line;
    for (int64_t number = 1; std::getline(lines, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const std::string where = cat(file.string(), ":", number);
        const auto row = tokenizer::try_parse_ordered(line);
        if (!row.is_object()) throw Error("data.prompt-shape", cat(where, ": not a JSON object"));
        prompts.push_back(encode_row(row, encoder, file.parent_path(), where));
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

std::shared_ptr<generate::StepLatencyModel> step_latency_model(at::Device device, const config::Config& config,
                                                               const OpenedModel& opened) {
    if (!device.is_cuda()) return std::make_shared<generate::StepLatencyModel>();
    const bool in_4bit = config.model.load_in_4bit || opened.file->tensors.quantised_linears() > 0;
    const planner::Card card = placement::machine_of(device).card;
    return std::make_shared<generate::StepLatencyModel>(planner::DecodingTime::of(card, opened.file->spec, in_4bit));
}

int64_t longest_of(const std::vector<SeenPrompt>& prompts) {
    int64_t longest = 1;
    for (const SeenPrompt& prompt : prompts) {
        if (prompt.ids.empty()) throw Error("data.empty-row", "a prompt has no tokens, and the tokenizer adds none");
        longest = std::max(longest, prompt.size());
    }
    return longest;
}

}  // namespace unsloth::session
