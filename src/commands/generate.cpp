// The `generate` command: prompts, the decoder's limits, and what becomes of its answers.
#include <algorithm>
#include <iostream>
#include <map>

#include <nlohmann/json.hpp>

#include "commands/answer_sizes.h"
#include "unsloth/commands/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"
#include "unsloth/data/seen_prompt.h"
#include "unsloth/generate/answer_text.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/openai/tool_calls.h"
#include "unsloth/session/generation.h"
#include "unsloth/session/session.h"

namespace unsloth::commands {
namespace {

session::SeenPrompt encode_prompt(const engine_api::GenerateRequest& request, const session::PromptEncoder& encoder) {
    if (request.raw) return encoder.text(request.prompt, request.images);
    if (!encoder.raw())
        log::info("the prompt is a user's message to chat template ", encoder.chat_template().name(),
                  " (--raw: the text as it is)");
    else if (!request.rows.empty())
        log::info("the prompt is the text as it is, as in the run's rows of format ", request.rows,
                  " (--template NAME: a user's message)");
    return encoder.prompt(request.prompt, request.images);
}

/// The number of the adapter that a row names, -1 for the base.
int32_t number_of(const session::NamedAt& row, const engine_api::NamedFolders& adapters) {
    if (row.name.empty()) return -1;
    std::string known;
    for (std::size_t i = 0; i < adapters.folders.size(); ++i) {
        if (adapters.folders[i].first == row.name) return static_cast<int32_t>(i);
        known += cat(i == 0 ? "" : ", ", adapters.folders[i].first);
    }
    throw Error("adapter.unknown-name",
                cat(row.where, ": the row names adapter '", row.name, "'",
                    known.empty() ? ", and none is given" : cat(", there are ", known)),
                cat("Give it with --adapter ", row.name, "=DIR."));
}

/// What the longest answer takes, for a message.
std::string longest_named(const std::vector<session::SeenPrompt>& prompts, const engine_api::GenerateRequest& request) {
    if (prompts.empty()) return cat("--max_new_tokens ", request.max_new_tokens);
    const auto shorter = [](const session::SeenPrompt& a, const session::SeenPrompt& b) { return a.size() < b.size(); };
    const auto at = std::max_element(prompts.begin(), prompts.end(), shorter);
    const std::string which = request.file.empty() ? "" : cat(" ", at - prompts.begin() + 1, " of ", request.file);
    return cat("prompt", which, " and --max_new_tokens take ", at->size(), " + ", request.max_new_tokens, " tokens");
}

/// What passes and cache must hold.
struct AnswerSizes {
    int64_t rows = 1, pass_tokens = 1, context = 1;
    int64_t patches = 0;  ///< of the largest image; 0: there is none
    int64_t image_room = 0;
    placement::CacheSize cache;
};

AnswerSizes sizes_of(const config::LoadedConfig& loaded, const engine_api::GenerateRequest& request,
                     const spec::ModelSpec& spec, const std::vector<session::SeenPrompt>& prompts,
                     const session::Sight& sight) {
    const int64_t longest = prompts.empty() ? 0 : session::longest_of(prompts), allowed = spec.usable_positions();
    const std::string asked = longest_named(prompts, request);
    if (longest + request.max_new_tokens > allowed)
        throw Error("model.too-many-positions", cat(asked, ": the model allows ", allowed, " positions"),
                    "Shorten the prompt, or set a lower --max_new_tokens; --rope_scaling extends the positions.");
    require_max_model_len(request, spec);
    AnswerSizes sizes;
    sizes.context = request.max_context > 0 ? request.max_context
                    : request.chat          ? allowed
                                            : longest + request.max_new_tokens;
    if (longest + request.max_new_tokens > sizes.context)
        throw Error("model.too-many-positions", cat(asked, ": --max_model_len is ", sizes.context),
                    "Raise it, or set a lower --max_new_tokens.");
    int64_t tokens = 0;  // of all prompts
    for (const session::SeenPrompt& prompt : prompts) tokens += prompt.size() * request.n;
    const int64_t answers = request.chat ? 1 : static_cast<int64_t>(prompts.size()) * request.n;
    sizes.rows = std::min(request.max_rows, answers);
    sizes.pass_tokens = std::min(request.max_batch_tokens, request.chat ? sizes.context : tokens);
    if (spec.has_rope(spec::RopeSpec::Type::dynamic))  // whole prompts
        sizes.pass_tokens = std::max(sizes.pass_tokens, request.chat ? sizes.context : longest);
    sizes.pass_tokens = std::max(sizes.pass_tokens, sizes.rows);
    if (request.chat) sizes.patches = sight.most_patches(sizes.pass_tokens);
    for (const session::SeenPrompt& prompt : prompts) sizes.patches = std::max(sizes.patches, prompt.patches());
    int64_t images = 0;  // of a prompt
    for (const session::SeenPrompt& prompt : prompts) images = std::max(images, prompt.image_count());
    if (sizes.patches > 0) sizes.image_room = sight.image_room(sizes.pass_tokens, sizes.rows, images);
    sizes.cache = answer_cache(loaded, request, spec, sizes.rows, sizes.context);
    return sizes;
}

/// How answers become texts, and what ends them.
struct Reading {
    std::optional<generate::HarmonyTokens> harmony;  ///< where the prompts are conversations of that format
    std::vector<int32_t> stops;

    Reading(const engine_api::GenerateRequest& request, const session::PromptEncoder& encoder,
            const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec)
        : stops(session::stop_ids(tokenizer, spec)) {
        const bool talks = !request.raw && !encoder.raw();
        if (talks && openai::tool_format_of(encoder.chat_template()) == openai::ToolFormat::harmony)
            harmony = generate::HarmonyTokens::of(tokenizer);
        if (harmony) harmony->set_stops(stops);
    }
};

/// Prints an answer's text as it comes.
class Stream {
  public:
    explicit Stream(generate::AnswerText text) : text_(std::move(text)) {}

    bool add(int32_t id) {
        const bool more = text_.add(id);
        print();
        return more;
    }
    const std::string& finish() {
        text_.finish();
        print();
        std::cout << "\n" << std::flush;
        return text_.text();
    }

  private:
    void print() { std::cout << text_.take() << std::flush; }
    generate::AnswerText text_;
};

generate::Request make_request(const engine_api::GenerateRequest& request, const session::SeenPrompt& prompt,
                               const std::vector<int32_t>& stops) {
    generate::Request made;
    made.prompt = prompt.ids;
    made.images = prompt.images;
    made.max_new_tokens = request.max_new_tokens;
    made.sampling = request.sampling;
    made.seed = static_cast<uint64_t>(request.seed);
    made.stop_ids = stops;
    return made;
}

/// All prompts together; the answers in their order, each as soon as those before it are there.
class AnswerAll {
  public:
    AnswerAll(const engine_api::GenerateRequest& request, const tokenizer::Tokenizer& tokenizer, const Reading& reading,
              const std::vector<session::SeenPrompt>& prompts, const std::vector<int32_t>& adapters)
        : request_(request), tokenizer_(tokenizer), reading_(reading), prompts_(prompts), adapters_(adapters) {}

    /// Until a signal asks to stop: what is complete was printed then.
    void run(generate::Decoder& decoder) {
        install_interrupt_handlers("Stopping");
        std::vector<generate::Request> requests;
        for (std::size_t i = 0; i < prompts_.size(); ++i) {
            for (int64_t k = 0; k < request_.n; ++k) {
                requests.push_back(make_request(request_, prompts_[i], reading_.stops));
                requests.back().prompt_number = static_cast<uint32_t>(i);
                requests.back().answer_number = static_cast<uint32_t>(k);
                if (!adapters_.empty()) requests.back().adapter = adapters_[i];
            }
        }
        if (!request_.stop.empty() || reading_.harmony)
            for (const generate::Request& request : requests)
                texts_.emplace_back(tokenizer_, request_.stop, reading_.harmony, request.prompt);
        const auto see = [&](int64_t i, int32_t id) { return texts_.empty() || text(i).add(id); };
        const auto end = [&](int64_t i, const generate::Completion& answer) {
            ended_.emplace(i, answer);
            for (auto next = ended_.begin(); next != ended_.end() && next->first == printed_;
                 next = ended_.erase(next), ++printed_)
                print(next->first, next->second);
        };
        const std::size_t all = requests.size();
        for (generate::Request& request : requests) decoder.add(std::move(request));
        while (interrupt_requested() == 0 && decoder.step(see, end)) {
        }
        if (const int signal = interrupt_requested(); signal != 0)
            throw Interrupted(signal, cat("stopped; ", printed_, " of ", all, " answers were printed"));
        if (first_failed_)
            generate::require_finite(first_failed_->second, cat("answer ", first_failed_->first + 1, " of ", all));
    }

  private:
    generate::AnswerText& text(int64_t i) { return texts_[static_cast<std::size_t>(i)]; }

    void print(int64_t i, const generate::Completion& answer) {
        const bool failed = answer.finish_reason == generate::FinishReason::not_finite;
        if (failed && !first_failed_) first_failed_.emplace(i, answer);
        std::string said, thought;
        if (texts_.empty()) {
            said = tokenizer_.decode(answer.ids, /*skip_special=*/true);
        } else {
            text(i).finish();
            said = text(i).take();
            thought = text(i).reasoning();
        }
        if (!request_.json) return write(said);
        nlohmann::ordered_json object{{"prompt_ids", prompts_[static_cast<std::size_t>(i / request_.n)].ids},
                                      {"ids", answer.ids},
                                      {"text", said}};
        if (!thought.empty()) object["reasoning"] = thought;
        if (request_.logprobs) object["logprobs"] = answer.logprobs;
        if (request_.n > 1) object["answer"] = i % request_.n;
        if (failed) object["error"] = "the logits of the next token are not finite";
        write(object.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace));
    }

    /// At once: readers work on with it, and a reader that left ends the work.
    static void write(const std::string& line) { std::cout << line << "\n" << std::flush; }

    const engine_api::GenerateRequest& request_;
    const tokenizer::Tokenizer& tokenizer_;
    const Reading& reading_;
    const std::vector<session::SeenPrompt>& prompts_;
    const std::vector<int32_t>& adapters_;     ///< of a file's prompts
    std::vector<generate::AnswerText> texts_;  ///< with stop texts or harmony, one a request
    std::map<int64_t, generate::Completion> ended_;
    int64_t printed_ = 0;
    std::optional<std::pair<int64_t, generate::Completion>> first_failed_;  ///< what the command ends with
};

void answer_stream(const engine_api::GenerateRequest& request, const tokenizer::Tokenizer& tokenizer,
                   const Reading& reading, generate::Decoder& decoder, const generate::Request& one,
                   std::string* said) {
    Stream stream(generate::AnswerText(tokenizer, request.stop, reading.harmony, one.prompt));
    const std::vector<generate::Completion> answers =
        decoder.answer({one}, [&](int64_t, int32_t id) { return stream.add(id); });
    const std::string& text = stream.finish();
    generate::require_finite(answers.front(), "the answer");
    if (said != nullptr) *said = text;
}

/// The file of a line "/image FILE"; nothing of another line.
std::optional<std::string> image_of(const std::string& line) {
    constexpr std::string_view command = "/image ";
    if (!line.starts_with(command)) return std::nullopt;
    return trimmed(line.substr(command.size()));
}

/// Turn by turn: the cache keeps the pages of what was said, and a turn computes what is new alone.
void chat(const engine_api::GenerateRequest& request, const session::PromptEncoder& encoder,
          const tokenizer::Tokenizer& tokenizer, generate::Decoder& decoder, const Reading& reading, int64_t context) {
    if (encoder.guessed())
        log::warning("chat template ", encoder.chat_template().name(),
                     " is a guess: the model has none, and no one named the one that it learned (--template NAME)");
    else
        log::info("chat template ", encoder.chat_template().name());
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    std::string line = request.prompt;
    std::vector<std::string> images = request.images;  // of the next message
    for (bool given = !line.empty(); given || std::getline(std::cin, line); given = false) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        if (const auto image = image_of(line)) {
            images.push_back(*image);
            continue;
        }
        messages.push_back(data::user_message(line, session::absolute(std::exchange(images, {}))));
        const session::SeenPrompt prompt = encoder.seen_messages({{"messages", messages}}, session::anywhere);
        generate::Request turn = make_request(request, prompt, reading.stops);
        turn.prompt_number = static_cast<uint32_t>(messages.size() / 2);
        turn.max_new_tokens = std::min(turn.max_new_tokens, context - prompt.size());
        if (turn.max_new_tokens < 1)
            throw Error("data.row-too-long",
                        cat("the conversation has ", prompt.size(), " tokens, and room for ", context),
                        "Begin another, or raise --max_model_len.");
        std::string said;
        answer_stream(request, tokenizer, reading, decoder, turn, &said);
        messages.push_back({{"role", "assistant"}, {"content", said}});
    }
}

}  // namespace

void run_generate(const config::LoadedConfig& given, const engine_api::GenerateRequest& request) {
    const config::LoadedConfig loaded = session::with_base(given, request.adapters);
    const session::OpenedModel opened = session::open_model(loaded.config);
    const tokenizer::Tokenizer tokenizer = opened.tokenizer();
    const session::Sight sight(opened, loaded.config.data.image_max_pixels);
    const session::PromptEncoder encoder(tokenizer, loaded.config.data, request.rows, sight);
    std::vector<session::SeenPrompt> prompts;
    std::vector<int32_t> adapters;  // of each prompt
    if (!request.file.empty()) {
        std::vector<session::NamedAt> named;
        prompts = session::read_prompts(request.file, encoder, &named);
        for (const session::NamedAt& row : named) adapters.push_back(number_of(row, request.adapters));
    } else if (!request.chat) {
        prompts = {encode_prompt(request, encoder)};
    }
    for (const auto& [id, bias] : request.sampling.logit_bias)
        if (id >= opened.file->spec.vocab_size)
            throw Error("option.out-of-range",
                        cat("--logit_bias: id ", id, ", the model has ", opened.file->spec.vocab_size));
    const AnswerSizes sizes = sizes_of(loaded, request, opened.file->spec, prompts, sight);
    const session::LoadedModel model = session::load_for_inference(
        loaded, opened, sizes.pass_tokens, sizes.rows, sizes.rows,
        /*fewest_tokens=*/1, sizes.cache, request.adapters, {}, {sizes.patches, sizes.image_room});
    generate::DecoderOptions options{.keeps_prompts = request.chat};
    if (!request.chat && !request.stream) options.prefill_tokens = sizes.pass_tokens;  // no one reads along
    generate::Decoder decoder(*model.ctx, *model.model, options);
    const Reading reading(request, encoder, tokenizer, opened.file->spec);
    if (request.chat) {
        chat(request, encoder, tokenizer, decoder, reading, sizes.context);
    } else if (request.stream) {
        answer_stream(request, tokenizer, reading, decoder, make_request(request, prompts.front(), reading.stops),
                      nullptr);
    } else {
        AnswerAll(request, tokenizer, reading, prompts, adapters).run(decoder);
    }
}

}  // namespace unsloth::commands
