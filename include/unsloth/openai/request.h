// Requests of OpenAI's API as values: every field is checked, and none is ignored in silence.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/grammar/grammar.h"
#include "unsloth/openai/tool_calls.h"
#include "unsloth/spec/sampling.h"

namespace unsloth::openai {

struct ParseOptions {
    int64_t vocab_size = 0;       ///< token ids are below it
    bool accept_unknown = false;  ///< unknown fields are ignored
    bool sees_images = false;     ///< messages may have parts image_url, and an `input` parts input_image
};

/// One of a completion's prompts: a text, or ids.
struct Prompt {
    std::string text;
    std::vector<int32_t> ids;
    bool is_text = false;
};

/// What /v1/completions, /v1/chat/completions and /v1/responses ask for; the fields' meanings are OpenAI's, or vLLM's
/// where OpenAI has none.
struct AnswerRequest {
    std::string model;
    bool is_chat = false;

    // Of completions:
    std::vector<Prompt> prompts;
    bool echo = false;
    bool add_special_tokens = true;
    // Of chats: what the template renders (tokenizer::ChatTemplate::render).
    std::shared_ptr<nlohmann::ordered_json> row;
    bool add_generation_prompt = true, continue_final_message = false;

    std::optional<int64_t> max_tokens;  ///< of completions 16 unless said otherwise; of chats as many as there is room
    int64_t min_tokens = 0;
    int64_t n = 1;
    std::optional<int64_t> logprobs;  ///< number of most likely tokens to report of each token, may be 0; nullopt: none
    std::vector<std::string> stop;
    std::vector<int32_t> stop_token_ids;
    bool include_stop = false, ignore_eos = false;
    std::optional<int64_t> seed;
    bool stream = false, include_usage = false, continuous_usage = false;

    double temperature = 1, top_p = 1, min_p = 0;
    int64_t top_k = 0;
    double presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
    std::vector<std::pair<int32_t, float>> logit_bias;  ///< -100 is minus infinity

    std::optional<grammar::Pattern> pattern;  ///< what the output must look like, where a field says that
    std::string pattern_field;                ///< which one
    std::vector<Tool> tools;                  ///< also in `row`
    ToolChoice tool_choice;
    bool parallel_tool_calls = true;

    /// Of /v1/responses: what its answer repeats; else nullptr.
    std::shared_ptr<nlohmann::ordered_json> response;

    spec::Sampling sampling() const;
    /// Whether the model decides about calls, and their arguments must fit nevertheless.
    bool calls_strictly() const;
    /// The field that has the prompt.
    const char* prompt_field() const { return response ? "input" : is_chat ? "messages" : "prompt"; }
};

/// ApiError 400, with the field's name, for JSON or fields that are wrong, unknown or not offered.
AnswerRequest parse_completion(std::string_view body, const ParseOptions& options);
AnswerRequest parse_chat(std::string_view body, const ParseOptions& options);
/// A conversation that nothing stores: 'store' must be false.
AnswerRequest parse_response(std::string_view body, const ParseOptions& options);

/// vLLM's /tokenize: a prompt or messages.
struct TokenizeRequest {
    std::string model, prompt;
    bool add_special_tokens = true, return_token_strs = false;
    std::shared_ptr<nlohmann::ordered_json> row;  ///< nullptr: `prompt`
    bool add_generation_prompt = true, continue_final_message = false;
};
TokenizeRequest parse_tokenize(std::string_view body, const ParseOptions& options);

/// vLLM's /detokenize.
struct DetokenizeRequest {
    std::string model;
    std::vector<int32_t> tokens;
};
DetokenizeRequest parse_detokenize(std::string_view body, const ParseOptions& options);

/// vLLM's /v1/load_lora_adapter and /v1/unload_lora_adapter.
struct AdapterRequest {
    std::string name, path;
    bool load_inplace = false;
};
/// JSON Schemas of the bodies that the functions here and parse_decision read, made from the same tables.
nlohmann::ordered_json completion_schema();
nlohmann::ordered_json chat_schema();
nlohmann::ordered_json response_schema();
nlohmann::ordered_json decision_schema();
nlohmann::ordered_json tokenize_schema();
nlohmann::ordered_json detokenize_schema();
nlohmann::ordered_json load_adapter_schema();
nlohmann::ordered_json unload_adapter_schema();

AdapterRequest parse_load_adapter(std::string_view body, const ParseOptions& options);
AdapterRequest parse_unload_adapter(std::string_view body, const ParseOptions& options);

}  // namespace unsloth::openai
