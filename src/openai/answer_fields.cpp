// The fields of /v1/completions and /v1/chat/completions.
#include "openai/constraint_fields.h"
#include "openai/field_table.h"
#include "openai/messages.h"

namespace unsloth::openai {
namespace {

/// `logprobs` and the limits of chats become those of completions.
struct Answer : AnswerRequest {
    bool reports = false;
    std::optional<int64_t> top_logprobs, completion_tokens;
    bool has_stream_options = false, has_tool_choice = false;
};

constexpr int64_t most_choices = 128, most_top_logprobs = 20, most_prompts = 4096;
constexpr std::size_t most_stops = 64, most_biases = 4096;
constexpr int64_t usual_tokens = 16;
constexpr double forbids = -100;
constexpr const char* nothing = R"([[], {}, ""])";

void read_prompt(Answer& to, const Json& value, const std::string& name, const ParseOptions& options) {
    const auto text = [](const Json& one) { return Prompt{one.get<std::string>(), {}, true}; };
    const auto ids = [&](const Json& one) { return Prompt{{}, ids_of(one, name, options.vocab_size), false}; };
    if (value.is_string()) {
        to.prompts.push_back(text(value));
    } else if (value.is_array() && !value.empty() && value.front().is_number()) {
        to.prompts.push_back(ids(value));
    } else if (value.is_array() && !value.empty()) {
        if (value.size() > static_cast<std::size_t>(most_prompts))
            refuse_range(name, cat("at most ", most_prompts, " prompts"), value);
        for (const Json& one : value) {
            if (one.is_string() != value.front().is_string()) refuse_type(name, "prompts of one kind", value);
            to.prompts.push_back(one.is_string() ? text(one) : ids(one));
        }
    } else {
        refuse_type(name, "a string, a list of strings, or one or more lists of token ids", value);
    }
}

Json prompt_schema() {
    const Json text = {{"type", "string"}};
    return any_schema({text, list_schema(text, most_prompts), ids_schema(), list_schema(ids_schema(), most_prompts)});
}

void read_stop(Answer& to, const Json& value, const std::string& name, const ParseOptions&) {
    const auto add = [&](const Json& one) {
        if (!one.is_string()) refuse_type(name, "a string or a list of strings", one);
        if (one == "") refuse_range(name, "texts that are not empty", value);
        to.stop.push_back(one.get<std::string>());
    };
    if (!value.is_array()) return add(value);
    if (value.size() > most_stops) refuse_range(name, cat("at most ", most_stops, " texts"), value);
    for (const Json& one : value) add(one);
}

Json stop_schema() {
    const Json text = {{"type", "string"}, {"minLength", 1}};
    return any_schema({text, list_schema(text, most_stops)});
}

void read_stop_ids(Answer& to, const Json& value, const std::string& name, const ParseOptions& options) {
    to.stop_token_ids = ids_of(value, name, options.vocab_size);
    if (to.stop_token_ids.size() > most_stops) refuse_range(name, cat("at most ", most_stops, " ids"), value);
}

void read_bias(Answer& to, const Json& value, const std::string& name, const ParseOptions& options) {
    if (!value.is_object()) refuse_type(name, "an object of token ids and biases", value);
    if (value.size() > most_biases) refuse_range(name, cat("at most ", most_biases, " ids"), value);
    for (const auto& [key, bias] : value.items()) {
        const bool digits = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
        const int64_t id = digits ? std::stoll(key) : -1;
        if (id < 0 || id >= options.vocab_size)
            throw invalid(cat("Invalid value for '", name, "': '", key.substr(0, 20), "' is no token id from 0 to ",
                              options.vocab_size - 1, "."),
                          name);
        const double number = number_of(bias, name);
        if (number < -100 || number > 100) refuse_range(name, "biases from -100 to 100", bias);
        to.logit_bias.emplace_back(static_cast<int32_t>(id), number == forbids ? -std::numeric_limits<float>::infinity()
                                                                               : static_cast<float>(number));
    }
}

Json bias_schema() {
    return {{"type", "object"},
            {"propertyNames", {{"pattern", "^[0-9]{1,9}$"}}},
            {"additionalProperties", {{"type", "number"}, {"minimum", -100}, {"maximum", 100}}}};
}

struct StreamOptions {
    bool include_usage = false, continuous_usage = false;
};
const Field<StreamOptions> stream_fields[] = {
    {"include_usage", Flag<StreamOptions>{&StreamOptions::include_usage}},
    {"continuous_usage_stats", Flag<StreamOptions>{&StreamOptions::continuous_usage}},
    {"include_obfuscation", NoEffect{}},
};

void read_stream_options(Answer& to, const Json& value, const std::string& name, const ParseOptions& options) {
    if (!value.is_object()) refuse_type(name, "an object", value);
    StreamOptions read;
    read_fields<StreamOptions>(value, {stream_fields}, options, read, name + ".");
    to.include_usage = read.include_usage;
    to.continuous_usage = read.continuous_usage;
    to.has_stream_options = true;
}

/// vLLM's -1 is OpenAI's absence, and so is 0.
void read_top_k(Answer& to, const Json& value, const std::string& name, const ParseOptions&) {
    to.top_k = whole_of(value, name);
    if (to.top_k < -1) refuse_range(name, "at least -1", value);
    to.top_k = std::max<int64_t>(to.top_k, 0);
}

void read_best_of(Answer& to, const Json& value, const std::string& name, const ParseOptions&) {
    if (whole_of(value, name) != to.n)
        throw unsupported("'best_of': only the value of 'n' is supported. All completions are returned.", name);
}

template <void (*read)(AnswerRequest& to, const Json& value, const std::string& name)>
void read_by(Answer& to, const Json& value, const std::string& name, const ParseOptions&) {
    read(to, value, name);
}
void read_choice_of_tools(Answer& to, const Json& value, const std::string& name, const ParseOptions&) {
    to.has_tool_choice = true;
    read_tool_choice(to, value, name);
}

const Field<Answer> shared_fields[] = {
    {"model", Text<Answer>{&Answer::model}},
    {"n", Whole<Answer>{&Answer::n, 1, most_choices}},
    {"temperature", Number<Answer>{&Answer::temperature, 0, 2}},
    {"top_p", Number<Answer>{&Answer::top_p, 0, 1, /*above=*/true}},
    {"top_k", Other<Answer>{read_top_k, [] { return Json{{"type", "integer"}, {"minimum", -1}}; }}},
    {"min_p", Number<Answer>{&Answer::min_p, 0, 1}},
    {"presence_penalty", Number<Answer>{&Answer::presence_penalty, -2, 2}},
    {"frequency_penalty", Number<Answer>{&Answer::frequency_penalty, -2, 2}},
    {"repetition_penalty", Number<Answer>{&Answer::repetition_penalty, 0, 2, /*above=*/true}},
    {"logit_bias", Other<Answer>{read_bias, bias_schema}},
    {"seed", Whole<Answer>{&Answer::seed}},
    {"stop", Other<Answer>{read_stop, stop_schema}},
    {"stop_token_ids", Other<Answer>{read_stop_ids, ids_schema}},
    {"include_stop_str_in_output", Flag<Answer>{&Answer::include_stop}},
    {"ignore_eos", Flag<Answer>{&Answer::ignore_eos}},
    {"min_tokens", Whole<Answer>{&Answer::min_tokens, 0}},
    {"stream", Flag<Answer>{&Answer::stream}},
    {"stream_options",
     Other<Answer>{read_stream_options, [] { return object_schema<StreamOptions>({stream_fields}); }}},
    {"skip_special_tokens", Only{"[true]", "texts come without special tokens."}},
    {"spaces_between_special_tokens", Only{"[true]", "texts come without special tokens."}},
    {"response_format", Other<Answer>{read_by<read_response_format>, response_format_schema}},
    {"structured_outputs", Other<Answer>{read_by<read_structured_outputs>, structured_outputs_schema}},
    {"store", Only{"[false]", "answers are not stored."}},
    {"service_tier", Only{R"(["auto", "default"])", "there is one tier."}},
    {"user", NoEffect{}},
    {"metadata", NoEffect{}},
    {"prompt_cache_key", NoEffect{}},
    {"safety_identifier", NoEffect{}},
};

const Field<Answer> completion_fields[] = {
    {"prompt", Other<Answer>{read_prompt, prompt_schema}, /*required=*/true},
    {"max_tokens", Whole<Answer>{&Answer::max_tokens, 0}},
    {"echo", Flag<Answer>{&Answer::echo}},
    {"logprobs", Whole<Answer>{&Answer::logprobs, 0, most_top_logprobs}},
    {"best_of", Other<Answer>{read_best_of, [] { return Json{{"type", "integer"}}; }}},
    {"add_special_tokens", Flag<Answer>{&Answer::add_special_tokens}},
    {"suffix", Only{R"([""])", "the model has no fill-in-the-middle prompt."}},
};

void read_chat_messages(Answer& to, const Json& value, const std::string& name, const ParseOptions& options) {
    (*to.row)["messages"] = read_messages(value, name, options);
}
void read_template_kwargs(Answer& to, const Json& value, const std::string& name, const ParseOptions&) {
    if (!value.is_object()) refuse_type(name, "an object", value);
    (*to.row)["chat_template_kwargs"] = value;
}
void read_effort(Answer& to, const Json& value, const std::string& name, const ParseOptions&) {
    if (!value.is_string()) refuse_type(name, "a string", value);
    (*to.row)["reasoning_effort"] = value;
}
void read_documents(Answer& to, const Json& value, const std::string& name, const ParseOptions&) {
    if (!value.is_array()) refuse_type(name, "a list of objects", value);
    (*to.row)["documents"] = value;
}

const Field<Answer> chat_fields[] = {
    {"messages", Other<Answer>{read_chat_messages, messages_schema}, /*required=*/true},
    {"max_completion_tokens", Whole<Answer>{&Answer::completion_tokens, 1}},
    {"max_tokens", Whole<Answer>{&Answer::max_tokens, 1}},
    {"logprobs", Flag<Answer>{&Answer::reports}},
    {"top_logprobs", Whole<Answer>{&Answer::top_logprobs, 0, most_top_logprobs}},
    {"chat_template_kwargs", Other<Answer>{read_template_kwargs, [] { return Json{{"type", "object"}}; }}},
    {"documents", Other<Answer>{read_documents, [] { return Json{{"type", "array"}}; }}},
    {"reasoning_effort", Other<Answer>{read_effort, [] { return Json{{"type", "string"}}; }}},
    {"add_generation_prompt", Flag<Answer>{&Answer::add_generation_prompt}},
    {"continue_final_message", Flag<Answer>{&Answer::continue_final_message}},
    {"tools", Other<Answer>{read_by<read_tools>, tools_schema}},
    {"tool_choice", Other<Answer>{read_choice_of_tools, tool_choice_schema}},
    {"parallel_tool_calls", Flag<Answer>{&Answer::parallel_tool_calls}},
    {"functions", Only{nothing, "use 'tools'."}},
    {"function_call", Only{R"(["none", "auto"])", "use 'tool_choice'."}},
    {"modalities", Only{R"([["text"]])", "answers are text."}},
    {"audio", Only{nothing, "answers are text."}},
    {"prediction", Only{nothing, "predicted outputs are not supported."}},
    {"web_search_options", Only{nothing, "there is no web search."}},
    {"verbosity", Only{R"(["medium"])", "there is one verbosity, medium."}},
};

/// What no single field can say.
void check_together(Answer& request) {
    check_constraints(request, request.has_tool_choice);
    if (request.has_stream_options && !request.stream)
        throw invalid("'stream_options' needs 'stream': true.", "stream_options");
    if (request.max_tokens && request.min_tokens > *request.max_tokens)
        throw invalid(cat("'min_tokens' is ", request.min_tokens, ", and 'max_tokens' ", *request.max_tokens, "."),
                      "min_tokens");
}

}  // namespace

spec::Sampling AnswerRequest::sampling() const {
    return {.temperature = temperature,
            .top_k = top_k,
            .top_p = top_p,
            .min_p = min_p,
            .repetition_penalty = repetition_penalty,
            .presence_penalty = presence_penalty,
            .frequency_penalty = frequency_penalty,
            .logit_bias = logit_bias};
}

Json completion_schema() {
    return object_schema<Answer>({shared_fields, completion_fields});
}

Json chat_schema() {
    return object_schema<Answer>({shared_fields, chat_fields});
}

AnswerRequest parse_completion(std::string_view body, const ParseOptions& options) {
    Answer request;
    read_fields<Answer>(parse_body(body), {shared_fields, completion_fields}, options, request);
    if (!request.max_tokens) request.max_tokens = usual_tokens;
    if (*request.max_tokens == 0 && !request.echo)
        throw invalid("'max_tokens': 0 needs 'echo': true, which scores the prompt.", "max_tokens");
    check_together(request);
    return request;
}

AnswerRequest parse_chat(std::string_view body, const ParseOptions& options) {
    Answer request;
    request.is_chat = true;
    request.row = std::make_shared<Json>(Json::object());
    read_fields<Answer>(parse_body(body), {shared_fields, chat_fields}, options, request);
    if (request.completion_tokens) request.max_tokens = request.completion_tokens;
    if (request.top_logprobs && !request.reports)
        throw invalid("'top_logprobs' needs 'logprobs': true.", "top_logprobs");
    if (request.reports) request.logprobs = request.top_logprobs.value_or(0);
    check_together(request);
    finish_row(*request.row, request.add_generation_prompt, request.continue_final_message);
    return request;
}

}  // namespace unsloth::openai
