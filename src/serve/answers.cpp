// The routes that answer prompts.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "serve/call.h"
#include "serve/chosen.h"
#include "serve/constraints.h"
#include "serve/prepared.h"
#include "serve/texts.h"
#include "unsloth/core/error.h"
#include "unsloth/openai/harmony.h"
#include "unsloth/serve/service.h"

namespace unsloth::serve {

using openai::AnswerRequest;
using openai::ApiError;

namespace {

constexpr std::size_t most_sequences = 8192, most_calls = 128;

/// ApiError 400 with both numbers where an answer is longer than a sequence.
int64_t room_for(const AnswerRequest& request, const EncodedPrompt& prompt, int64_t context) {
    const auto size = static_cast<int64_t>(prompt.ids.size());
    const int64_t wanted = request.max_tokens.value_or(std::max<int64_t>(context - size, 1));
    const int64_t tokens = std::max<int64_t>(wanted, 1);  // a prompt that is scored alone chooses one, too
    if (size + tokens > context)
        throw ApiError(400,
                       cat("This model's maximum context length is ", context, " tokens. You requested ", size + tokens,
                           " tokens: ", size, " of the prompt and ", tokens,
                           " of the completion. Shorten the prompt or lower 'max_tokens'."),
                       request.prompt_field(), "context_length_exceeded");
    if (request.min_tokens > tokens)
        throw openai::invalid(cat("'min_tokens' is ", request.min_tokens, ", and there is room for ", tokens, "."),
                              "min_tokens");
    return tokens;
}

uint64_t random_seed() {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32U | device();
}

}  // namespace

session::Sight::Bounds Service::image_bounds() const {
    return {engine_.longest_image(), engine_.most_images(), engine_.context()};
}

Service::Chosen Service::choose(const std::string& model) const {
    if (model.empty() || model == options_.model)
        return {options_.model, options_.fingerprint, nullptr, options_.decision_temperature};
    std::shared_ptr<const LoadedAdapter> adapter = adapters_.find(model);
    if (!adapter)
        throw ApiError(404,
                       cat("The model '", model.substr(0, 200), "' does not exist. GET /v1/models lists the models."),
                       "model", "model_not_found");
    return {model, cat(options_.fingerprint, "-", adapter->hash.substr(0, 16)), adapter, adapter->decision_temperature};
}

Job Service::job_for(const std::string& client, const Chosen& chosen) {
    Job job;
    job.client = client;
    job.adapter = chosen.adapter;
    if (chosen.adapter) job.adapter_name = chosen.name;
    return job;
}

/// What a request's output must look like.
struct Service::Constrained {
    std::shared_ptr<grammar::MaskCache> grammar;  ///< nullptr: it is free
    std::vector<int32_t> begun;                   ///< ids that the prompt ends with
    std::optional<ToolReading> tools;
};

namespace {

/// The form of a harmony answer after the model's reasoning; nullopt: it is free.
std::optional<grammar::Pattern> harmony_pattern(const AnswerRequest& request) {
    std::optional<grammar::Pattern> pattern = request.pattern;
    const bool must_call = request.tool_choice.is_constrained();
    if (request.continue_final_message) {
        if (must_call)
            throw openai::invalid(
                "'tool_choice' cannot be combined with 'continue_final_message', whose message is no call.",
                "tool_choice");
        return pattern;
    }
    if (pattern)
        pattern = openai::in_final_channel(std::move(*pattern));
    else if (request.calls_strictly())
        pattern = openai::any_final_message();
    if (must_call || (pattern && request.tool_choice.kind != openai::ToolChoice::Kind::none)) {
        grammar::Pattern calls = openai::harmony_calls(request.tools, request.tool_choice);
        if (pattern)
            std::ranges::move(calls.alternatives, std::back_inserter(pattern->alternatives));
        else
            pattern = std::move(calls);
    }
    if (pattern) pattern = openai::after_analysis(std::move(*pattern));
    return pattern;
}

}  // namespace

/// How the answer's calls, and harmony's channels, are read. ApiError 400 where the template shows no known format.
std::optional<ToolReading> Service::reading(const AnswerRequest& request) const {
    if (!request.is_chat) return std::nullopt;
    const bool has_tools = request.tool_choice.kind != openai::ToolChoice::Kind::none;
    const std::optional<openai::ToolFormat> format = reader_->tool_format();
    std::optional<generate::HarmonyTokens> harmony;
    if (format == openai::ToolFormat::harmony) harmony = generate::HarmonyTokens::of(reader_->tokenizer());
    if (has_tools && (!format || (format == openai::ToolFormat::harmony && !harmony)))
        throw openai::unsupported(
            "'tools': the chat template writes no calls in a known format: Hermes's, Llama 3's JSON, Mistral's or "
            "harmony.",
            "tools");
    if (!has_tools && !harmony) return std::nullopt;
    ToolReading made{*format, {}, request.parallel_tool_calls ? most_calls : 1, std::move(harmony)};
    if (has_tools)
        for (const openai::Tool& tool : request.tools) made.names.push_back(tool.name);
    return made;
}

/// Compiles the request's grammar. ApiError 400 with the field's name.
Service::Constrained Service::constrain(const AnswerRequest& request) {
    using Kind = openai::ToolChoice::Kind;
    Constrained made;
    made.tools = reading(request);
    std::optional<grammar::Pattern> pattern = request.pattern;
    const std::string field = request.pattern ? request.pattern_field : "tools";
    if (made.tools && made.tools->harmony) {
        pattern = harmony_pattern(request);
    } else if (request.tool_choice.kind != Kind::none) {
        const openai::ToolFormat format = made.tools->format;
        grammar::Pattern calls =
            openai::tool_pattern(format, request.tools, request.tool_choice, request.parallel_tool_calls);
        const auto marker = reader_->tokenizer().added_token_id(openai::mistral_marker);
        if (request.tool_choice.is_constrained()) {
            if (format == openai::ToolFormat::mistral && marker)
                made.begun = {*marker};
            else if (format == openai::ToolFormat::mistral)
                calls.begin = openai::mistral_marker + calls.begin;
            pattern = std::move(calls);
        } else if (!pattern && request.calls_strictly()) {
            pattern = openai::strict_pattern(format, request.tools, request.parallel_tool_calls,
                                             marker ? std::string(1, openai::mistral_byte) : openai::mistral_marker);
        } else if (pattern) {  // or a call instead
            for (std::vector<grammar::Part>& call : calls.alternatives) {
                call.insert(call.begin(), {grammar::Part::Kind::literal, calls.begin});
                call.push_back({grammar::Part::Kind::literal, calls.end});
                pattern->alternatives.push_back(std::move(call));
            }
        }
    }
    if (!pattern) return made;
    try {
        made.grammar = constraints_->compile(*pattern);
    } catch (const grammar::Refused& why) {
        throw openai::unsupported(cat("'", field, "': ", why.what(), "."), field);
    }
    return made;
}

void Service::completions(const Call& call) {
    answer(call, openai::parse_completion(call.request.body, parsing()));
}

void Service::chat(const Call& call) {
    answer(call, openai::parse_chat(call.request.body, parsing()));
}

void Service::responses(const Call& call) {
    answer(call, openai::parse_response(call.request.body, parsing()));
}

void Service::answer(const Call& call, AnswerRequest request) {
    Prepared prepared = prepare(std::move(request), call.client);
    const std::shared_ptr<const nlohmann::ordered_json> response = prepared.request.response;
    auto writer = response ? make_response_answer(call.reply(), head_of(prepared), response)
                           : make_json_answer(call.reply(), head_of(prepared));
    start(std::move(prepared), std::move(writer), *call.response);
}

Service::Prepared Service::prepare(AnswerRequest request, const std::string& client) {
    Chosen chosen = choose(request.model);
    Constrained constrained = constrain(request);
    std::vector<EncodedPrompt> prompts = reader_->prompts(request, image_bounds());
    for (EncodedPrompt& prompt : prompts)
        prompt.ids.insert(prompt.ids.end(), constrained.begun.begin(), constrained.begun.end());
    if (prompts.size() * static_cast<std::size_t>(request.n) > most_sequences)
        throw openai::invalid(cat("A request may ask for ", most_sequences, " completions at most."), "n");

    Job job = job_for(client, chosen);
    generate::Request common = chosen.request();
    common.sampling = request.sampling();
    common.seed = request.seed ? static_cast<uint64_t>(*request.seed) : random_seed();
    common.min_new_tokens = request.min_tokens;
    common.top_logprobs = request.logprobs.value_or(-1);
    common.prompt_logprobs = request.echo && request.logprobs.has_value();
    if (!request.ignore_eos) common.stop_ids = options_.stop_ids;
    if (!request.ignore_eos && constrained.tools && constrained.tools->harmony)
        constrained.tools->harmony->set_stops(common.stop_ids);
    common.stop_ids.insert(common.stop_ids.end(), request.stop_token_ids.begin(), request.stop_token_ids.end());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        common.prompt = prompts[i].ids;
        common.images = prompts[i].images;
        common.prompt_number = static_cast<uint32_t>(i);
        common.max_new_tokens = room_for(request, prompts[i], engine_.context());
        for (int64_t k = 0; k < request.n; ++k) {
            common.answer_number = static_cast<uint32_t>(k);
            if (constrained.grammar) common.constraint = Constraints::begin(constrained.grammar, common.stop_ids);
            job.sequences.push_back(common);
        }
    }

    return {std::move(request), std::move(chosen), std::move(job), std::move(prompts), std::move(constrained.tools)};
}

openai::AnswerHead Service::head_of(const Prepared& prepared) {
    const bool is_chat = prepared.request.is_chat;
    const char* const prefix = prepared.request.response ? "" : is_chat ? "chatcmpl-" : "cmpl-";
    return {cat(prefix, random_id()), prepared.chosen.name, prepared.chosen.fingerprint, unix_seconds(), is_chat};
}

void Service::start(Prepared prepared, std::unique_ptr<AnswerWriter> writer, http::Response& response) {
    auto exchange = std::make_shared<Exchange>(
        std::move(writer), std::move(prepared.request), std::move(prepared.prompts), reader_->tokenizer(),
        std::move(prepared.tools), [this](std::function<void()> work) { workers_.post(std::move(work)); });
    // The response knows it weakly: it holds the response.
    response.on_gone([this, left = std::weak_ptr<Exchange>(exchange)] {
        const std::shared_ptr<Exchange> exchange = left.lock();
        if (!exchange) return;
        exchange->leave();
        engine_.cancel(exchange);
    });
    prepared.job.receiver = exchange;
    engine_.submit(std::move(prepared.job));
}

void Service::tokenize(const Call& call) {
    const openai::TokenizeRequest request = openai::parse_tokenize(call.request.body, parsing());
    choose(request.model);
    const std::vector<int32_t> ids =
        request.row ? reader_->conversation(*request.row, request.continue_final_message, image_bounds()).ids
                    : reader_->text(request.prompt, request.add_special_tokens);
    nlohmann::ordered_json answer = {
        {"count", ids.size()}, {"max_model_len", engine_.context()}, {"tokens", ids}, {"token_strs", nullptr}};
    if (request.return_token_strs) {
        answer["token_strs"] = nlohmann::ordered_json::array();
        for (const int32_t id : ids)
            answer["token_strs"].push_back(openai::text_of_token(reader_->tokenizer(), id).name());
    }
    call.send(200, answer.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void Service::detokenize(const Call& call) {
    const openai::DetokenizeRequest request = openai::parse_detokenize(call.request.body, parsing());
    choose(request.model);
    const std::string text = reader_->tokenizer().decode(request.tokens, /*skip_special=*/false);
    call.send(200, nlohmann::ordered_json{{"prompt", text}}.dump());
}

void Service::tokenizer_info(const Call& call) {
    const tokenizer::Tokenizer& tokenizer = reader_->tokenizer();
    nlohmann::ordered_json info = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"model_max_length", engine_.context()},
                                   {"vocab_size", tokenizer.vocab_size()},
                                   {"bos_token", nullptr},
                                   {"eos_token", nullptr},
                                   {"pad_token", nullptr}};
    for (const auto& [name, text] : tokenizer.special_token_texts()) info[name] = text;
    info["add_bos_token"] = tokenizer.adds_bos();
    info["add_eos_token"] = tokenizer.adds_eos();
    info["chat_template"] = template_.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(template_);
    call.send(200, info.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace unsloth::serve
