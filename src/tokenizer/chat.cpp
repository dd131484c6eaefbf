#include "unsloth/tokenizer/chat.h"

#include <algorithm>
#include <array>

#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

constexpr std::array<std::string_view, 3> names = {"llama-3", "chatml", "alpaca"};

/// Builds a text and remembers which part of it is learned.
class Writer {
  public:
    Writer& text(std::string_view part) {
        out_.text += part;
        return *this;
    }
    Writer& trained(std::string_view part, std::string_view end_of_turn) {
        const std::size_t begin = out_.text.size();
        out_.text += part;
        out_.text += end_of_turn;
        out_.trained_bytes.emplace_back(begin, out_.text.size());
        return *this;
    }
    Rendered take() { return std::move(out_); }

  private:
    Rendered out_;
};

void require_added_token(const Tokenizer& tokenizer, std::string_view name, std::string_view token) {
    if (tokenizer.added_token_id(token)) return;
    throw input_error(cat("the chat template ", name, " needs the token ", token, ", which the tokenizer in ",
                          tokenizer.folder().string(), " does not have"),
                      "choose another --data.template (auto takes one that fits the tokenizer)");
}

/// The text of a special token, so that encoding a rendered text finds it again.
std::string text_of(const Tokenizer& tokenizer, int32_t id, const char* role) {
    const std::string token = tokenizer.token(id);
    if (tokenizer.added_token_id(token) == id) return token;
    throw input_error(cat("the ", role, " token '", token, "' of the tokenizer in ",
                          tokenizer.folder().string(),
                          " is not one of its added_tokens, so no text can contain it"));
}

std::string leading_bos(const Tokenizer& tokenizer) {
    return tokenizer.adds_bos() ? text_of(tokenizer, *tokenizer.bos_id(), "beginning-of-sequence")
                                : std::string();
}

std::string end_of_sequence(const Tokenizer& tokenizer) {
    if (tokenizer.eos_id()) return text_of(tokenizer, *tokenizer.eos_id(), "end-of-sequence");
    throw input_error(cat("the tokenizer in ", tokenizer.folder().string(),
                          " names no end-of-sequence token, which must end every answer"),
                      "set eos_token in its tokenizer_config.json");
}

Rendered render_llama3(std::span<const Message> messages, bool add_generation_prompt,
                       const Tokenizer& tokenizer) {
    constexpr std::string_view bos = "<|begin_of_text|>", end = "<|eot_id|>";
    for (const std::string_view token : {bos, end, std::string_view("<|start_header_id|>")}) {
        require_added_token(tokenizer, "llama-3", token);
    }
    Writer out;
    const auto header = [&](std::string_view role) {
        out.text("<|start_header_id|>").text(role).text("<|end_header_id|>\n\n");
    };
    out.text(bos);
    for (const Message& message : messages) {
        header(message.role);
        const std::string_view content = unicode::strip(message.content);
        if (message.role == "assistant") {
            out.trained(content, end);
        } else {
            out.text(content).text(end);
        }
    }
    if (add_generation_prompt) header("assistant");
    return out.take();
}

Rendered render_chatml(std::span<const Message> messages, bool add_generation_prompt,
                       const Tokenizer& tokenizer) {
    constexpr std::string_view start = "<|im_start|>", end = "<|im_end|>";
    require_added_token(tokenizer, "chatml", start);
    require_added_token(tokenizer, "chatml", end);
    Writer out;
    for (const Message& message : messages) {
        out.text(start).text(message.role).text("\n");
        if (message.role == "assistant") {
            out.trained(message.content, end);
        } else {
            out.text(message.content).text(end);
        }
        out.text("\n");
    }
    if (add_generation_prompt) out.text(start).text("assistant\n");
    return out.take();
}

constexpr std::string_view alpaca_response = "### Response:\n";

std::string alpaca_preamble(std::string_view system, bool has_input) {
    if (!system.empty()) return std::string(system);
    return has_input
               ? "Below is an instruction that describes a task, paired with an input that provides further "
                 "context. Write a response that appropriately completes the request."
               : "Below is an instruction that describes a task. Write a response that appropriately "
                 "completes "
                 "the request.";
}

/// Turns behind the first follow after an empty line, without the preamble.
Rendered render_alpaca(std::span<const Message> messages, bool add_generation_prompt,
                       const Tokenizer& tokenizer) {
    const std::string end = end_of_sequence(tokenizer);
    std::string_view system;
    if (messages.front().role == "system") {
        system = messages.front().content;
        messages = messages.subspan(1);
    }
    Writer out;
    out.text(leading_bos(tokenizer)).text(alpaca_preamble(system, false));
    for (const Message& message : messages) {
        out.text("\n\n");
        if (message.role == "user") {
            out.text("### Instruction:\n").text(message.content);
        } else if (message.role == "assistant") {
            out.text(alpaca_response).trained(message.content, end);
        } else {
            throw input_error(
                cat("the chat template alpaca knows the roles user and assistant, and system for the "
                    "first message, not '",
                    message.role, "'"));
        }
    }
    if (add_generation_prompt) out.text("\n\n").text(alpaca_response);
    return out.take();
}

}  // namespace

std::span<const std::string_view> builtin_templates() {
    return names;
}

std::string resolve_template(std::string_view name, const Tokenizer& tokenizer) {
    if (name == "auto") {
        if (tokenizer.added_token_id("<|start_header_id|>")) return "llama-3";
        if (tokenizer.added_token_id("<|im_start|>")) return "chatml";
        return "alpaca";
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) {
        throw usage_error(cat("there is no chat template '", name, "'"),
                          "known: auto, llama-3, chatml, alpaca");
    }
    return std::string(name);
}

Rendered render(std::string_view template_name, std::span<const Message> messages, bool add_generation_prompt,
                const Tokenizer& tokenizer) {
    const std::string name = resolve_template(template_name, tokenizer);
    if (messages.empty()) throw input_error("a conversation without messages");
    if (name == "llama-3") return render_llama3(messages, add_generation_prompt, tokenizer);
    if (name == "chatml") return render_chatml(messages, add_generation_prompt, tokenizer);
    return render_alpaca(messages, add_generation_prompt, tokenizer);
}

EncodedTurns encode_rendered(const Tokenizer& tokenizer, const Rendered& rendered) {
    Encoding encoding = tokenizer.encode_with_offsets(rendered.text, false);
    EncodedTurns out;
    const auto& offsets = encoding.offsets;
    for (const auto& [begin_byte, end_byte] : rendered.trained_bytes) {
        const auto first = std::partition_point(
            offsets.begin(), offsets.end(), [&, b = begin_byte](const auto& span) { return span.first < b; });
        const auto last = std::partition_point(
            first, offsets.end(), [&, e = end_byte](const auto& span) { return span.second <= e; });
        if (first < last) out.trained.emplace_back(first - offsets.begin(), last - offsets.begin());
    }
    out.ids = std::move(encoding.ids);
    return out;
}

std::string alpaca_prompt(std::string_view instruction, std::string_view input, std::string_view system) {
    std::string out = alpaca_preamble(system, !input.empty());
    out += cat("\n\n### Instruction:\n", instruction, "\n\n");
    if (!input.empty()) out += cat("### Input:\n", input, "\n\n");
    out += alpaca_response;
    return out;
}

Rendered build_prompt_completion(const Tokenizer& tokenizer, std::string_view prompt,
                                 std::string_view completion) {
    return Writer()
        .text(leading_bos(tokenizer))
        .text(prompt)
        .trained(completion, end_of_sequence(tokenizer))
        .take();
}

}  // namespace unsloth
