// Conversations as text, by chat templates in Jinja, and which part of that text is learned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::tokenizer {

struct Message {
    std::string role;
    std::string content;
};

/// A text that contains all its special tokens (encode it without adding any) and the byte ranges to train on: one for
/// each assistant turn, from right after its header up to and with the end-of-turn token.
struct Rendered {
    std::string text;
    std::vector<std::pair<std::size_t, std::size_t>> trained_bytes = {};
    /// What the template omits from the text: "tools", "messages[2].tool_calls", "messages[0].content (role
    /// critic)"; empty: none of them. A message's content counts as written if another one in its place changes the
    /// text.
    std::string left_out = {};
    bool passes_over_reasoning = false;  ///< a message has some, and the template reads none of the names for it
};

/// Token ids and the half-open ranges of token positions to train on.
struct EncodedTurns {
    std::vector<int32_t> ids;
    std::vector<std::pair<std::size_t, std::size_t>> trained;
    bool merged_start = false;  ///< a token spans the begin of a trained range, so that no label belongs to it
};

/// Which assistant turns `trained_bytes` has. Finding them costs further renderings of templates without
/// {% generation %} blocks, so callers that need none say so.
enum class TrainedTurns { none, last, all };

/// A template, ready to render conversations of one model. Immutable and cheap to copy; every member is safe
/// from any thread.
class ChatTemplate {
  public:
    /// `name` is, in this order:
    ///   auto             the model's own template (with tools, its tool_use one where there is one); without
    ///                    one llama-3 where the tokenizer has <|start_header_id|>, chatml where it has
    ///                    <|im_start|>, else alpaca
    ///   the name of one of the model's templates
    ///   the name of a built-in one (see builtin_templates)
    ///   a text that holds {{ or {%: the template itself
    ///   a path to a file with a template
    /// Usage Error for anything else; input Error (file, line, column) for a template with an error. Callers with
    /// `auto` log `name()`.
    ///
    /// `kwargs`, the JSON text of an object, are variables of every rendering; a row's members win over them. Usage
    /// Error where it is none, or names what rows alone bring (messages, add_generation_prompt).
    static ChatTemplate choose(std::string_view name, const Tokenizer& tokenizer, std::string_view kwargs = "{}");

    /// What was chosen: "default (of the model)", "chatml", "templates/mine.jinja".
    const std::string& name() const;
    /// Whether the template may read a variable or member of this name: it is one of its names, or of its strings.
    bool reads(std::string_view word) const;

    /// Renders a row as transformers' apply_chat_template does. `row` is an object with
    ///   messages                OpenAI's: objects with role and content (text, or a list of parts), tool_calls,
    ///                           name, … whatever the template reads; members that are null count as absent (the
    ///                           content of a message that calls tools as ""), reasoning_content, thinking and
    ///                           reasoning stand for one another, and arguments of calls that are JSON texts are
    ///                           parsed where the template writes objects
    ///   tools, documents        lists of objects; may be absent
    ///   add_generation_prompt   boolean; may be absent
    ///   chat_template_kwargs    an object (or its JSON text) of variables; they win over the further members
    ///   further members         variables of the template; they win over the special tokens (bos_token, eos_token,
    ///                           …) that every template is given. Those that are null count as absent
    /// Input Error when the row is not of this form or the template refuses it (with the template's line),
    /// and for a tokenizer without the tokens that a built-in template writes: they would be learned as plain
    /// text and never end a generation. Numbers of JSON keep their value, objects the order of their keys.
    Rendered render(const nlohmann::ordered_json& row, TrainedTurns turns = TrainedTurns::all) const;
    Rendered render(std::span<const Message> messages, bool add_generation_prompt,
                    TrainedTurns turns = TrainedTurns::all) const;

  private:
    struct Impl;
    explicit ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
    std::shared_ptr<const Impl> impl_;
};

/// As ChatTemplate::choose() refuses it: a template's text, or a file with one, that Jinja would not compile. A name of
/// a template passes, and so does what is no file.
void require_template_syntax(std::string_view name);

/// Input Error, with what to do about it, where the template leaves something of the conversation out.
void require_whole(const ChatTemplate& chat, const Rendered& rendered);

/// The names of the built-in templates: llama-3, llama-2, mistral, chatml, qwen, alpaca, zephyr.
///   llama-3  <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>, contents
///            trimmed (Meta's format)
///   llama-2  BOS [INST] <<SYS>>\nSYSTEM\n<</SYS>>\n\nUSER [/INST] ANSWER EOS, BOS in front of each user turn
///   mistral  BOS, then [INST] USER [/INST] ANSWER EOS; the system message in front of the first user's
///   chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n
///   qwen     chatml with "You are a helpful assistant." as system turn where there is none
///   alpaca   see `alpaca_prompt`; the system message in front, each user turn under "### Instruction:", each
///            assistant turn under "### Response:" with EOS; BOS in front if the tokenizer adds one
///   zephyr   <|ROLE|>\nCONTENT EOS\n
std::span<const std::string_view> builtin_templates();

/// Encodes the whole text at once and finds the tokens that are entirely within each trained range; a token that
/// straddles an edge (line feeds of header and answer merged) is not trained. Ranges without a token are
/// dropped.
EncodedTurns encode_rendered(const Tokenizer& tokenizer, const Rendered& rendered);

/// The three-section prompt of Stanford Alpaca up to and with "### Response:\n"; the input section only where
/// there is an input. `system` replaces the sentence "Below is an instruction …" in front.
std::string alpaca_prompt(std::string_view instruction, std::string_view input = {}, std::string_view system = {});

/// The size of `text` up to and with a token that ends a generation, where nothing but white space follows that token;
/// nullopt: the text ends otherwise.
std::optional<std::size_t> written_end(const Tokenizer& tokenizer, std::string_view text);

/// BOS (if the tokenizer adds one) + prompt + completion + EOS, with completion and EOS trained. A completion that ends
/// with a token that ends a generation gets no other one, and is trained up to it.
/// Input Error when an EOS is to be added and the tokenizer names none.
Rendered build_prompt_completion(const Tokenizer& tokenizer, std::string_view prompt, std::string_view completion);

/// Bytes of the prompt that two texts share, each a prompt and an answer: up to the end of the last token that both
/// begin with, in whole characters. Input Error where one of them continues with a special token that ends no
/// generation: it begins a turn, and no answer.
std::size_t common_prompt(const Tokenizer& tokenizer, std::string_view a, std::string_view b);

}  // namespace unsloth::tokenizer
