#include <algorithm>
#include <iostream>

#include <nlohmann/json.hpp>

#include "train/generation.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/tokenizer/chat.h"
#include "unsloth/train/commands.h"
#include "unsloth/train/session.h"

namespace unsloth::train {
namespace {

/// --prompt as a user's message, or as it is for a model without a template that someone chose for it.
Prompt encode_prompt(const config::GenerateRequest& request, const tokenizer::Tokenizer& tokenizer,
                     const config::DataOptions& data) {
    const tokenizer::ChatTemplate chat =
        tokenizer::ChatTemplate::choose(data.template_name, tokenizer, data.chat_template_kwargs);
    const auto& own = tokenizer.chat_templates();
    const bool chats = data.template_name != "auto" ||
                       std::any_of(own.begin(), own.end(), [](const auto& entry) { return entry.first == "default"; });
    if (request.raw || !chats) return tokenizer.encode(request.prompt, true);
    log::info("the prompt is a user's message to chat template ", chat.name(), " (--raw: the text as it is)");
    const tokenizer::Message message{"user", request.prompt};
    return tokenizer::encode_rendered(
               tokenizer, chat.render({&message, 1}, /*add_generation_prompt=*/true, tokenizer::TrainedTurns::none))
        .ids;
}

}  // namespace

void run_generate(const config::LoadedConfig& loaded, const config::GenerateRequest& request) {
    const spec::Sampling& sampling = request.sampling;
    if (sampling.temperature != 0 || sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
        !sampling.logit_bias.empty() || request.n != 1 || !request.stop.empty() || request.stream || request.chat ||
        request.logprobs || request.kv_bytes != 0 || request.max_context != 0)
        throw usage_error("sampling, --n, --stop, --stream, --chat, --logprobs and the cache's size do not work yet");
    const OpenedModel opened = open_model(loaded.config);
    const tokenizer::Tokenizer tokenizer = opened.tokenizer();
    const config::DataOptions& data = loaded.config.data;
    const std::vector<Prompt> prompts = request.file.empty()
                                            ? std::vector<Prompt>{encode_prompt(request, tokenizer, data)}
                                            : read_prompts(request.file, tokenizer, data);
    const int64_t longest = longest_of(prompts), room = longest + request.max_new_tokens;
    if (room > opened.file->spec.max_position_embeddings)
        throw usage_error(cat("prompt and max_new_tokens take ", room, " positions, the model allows ",
                              opened.file->spec.max_position_embeddings));
    const LoadedModel loaded_model = load_for_inference(loaded, opened, longest, 1, 1, /*fewest_tokens=*/1, room);
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
