// The interface between rows and the tokenizer. Its inputs are text, Alpaca fields or messages. Its outputs are token
// ids and the spans of the loss tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/data/batch.h"
#include "unsloth/openai/decision.h"
#include "unsloth/tokenizer/chat.h"

namespace unsloth::data {

struct AlpacaFields {
    std::string instruction;
    std::string input;  ///< may be empty
    std::string output;
    std::string system;  ///< may be empty
};

/// Messages in order.
struct Conversation {
    std::vector<tokenizer::Message> turns;
    bool uses_tools = false;  ///< tools are declared or called
    /// What a template renders beyond roles and contents (calls of tools, reasoning, names, ...), as
    /// ChatTemplate::render takes it: the row's other columns that the encoder reads, the messages with contents as
    /// texts, and the row's tools, which may be no list. Null: the row has no more than `turns`.
    std::shared_ptr<const nlohmann::ordered_json> row;
};

/// A likely error in a row that can be trained on. Values of a set of bits.
enum class RowDoubt : uint32_t {
    double_bos = 1,          ///< the first two tokens are BOS
    open_end = 2,            ///< the last trained text does not end with a token that ends a generation
    guessed_template = 4,    ///< rendered by a built-in chat template, since the model has none and none was named
    merged_start = 8,        ///< a token holds the prompt's end and an answer's begin: it is not trained
    plain_prompt = 16,       ///< an Alpaca row in three sections, though the model has a chat template of its own
    empty_answer = 32,       ///< an answer without a text: the end of the turn alone is trained
    double_end = 64,         ///< an answer ends with the same token that ends a generation twice
    unread_reasoning = 128,  ///< messages have reasoning, and the chat template reads none
    unused_template = 256,   ///< a prompt and an answer as texts, which the template that was named is not applied to
    unread_system = 512,     ///< a column system, history or tools, which rows of this form are not read with
    unread_history = 1024,
    unread_tools = 2048,
    unread_media = 4096,  ///< columns images, videos or audios
};

/// What the rows of an instruction become.
enum class InstructionForm {
    conversation,  ///< through the chat template
    sections,      ///< the prompt of Stanford Alpaca
    automatic,     ///< not set: sections, but a conversation where answers are compared
};

struct EncodedRow {
    std::vector<int32_t> ids;
    std::vector<std::pair<int32_t, int32_t>>
        trained;                            ///< [start, end) in tokens: the loss tokens when prompts are masked
    uint32_t doubts = 0;                    ///< RowDoubts
    std::vector<Image> images = {};         ///< without pixels
    std::vector<ImageSource> sources = {};  ///< of each image
};

/// Used from several threads at once: implementations are immutable. An input Error thrown here counts
/// against the row.
class RowEncoder {
  public:
    virtual ~RowEncoder() = default;
    /// BOS if the tokenizer adds one, the text, EOS where the text does not end with a token that ends a generation;
    /// all of these are loss tokens, except white space after the text's own end.
    virtual EncodedRow text(std::string_view text) const = 0;
    /// By default `automatic`. alpaca() encodes what is no conversation.
    virtual InstructionForm instruction_form() const;
    /// Prompt, output, EOS; the output and what ends it are trained.
    virtual EncodedRow alpaca(const AlpacaFields& fields) const = 0;
    /// BOS if the tokenizer adds one, prompt, completion, EOS; the completion and EOS are trained. EOS is added as to
    /// text().
    virtual EncodedRow prompt_completion(std::string_view prompt, std::string_view completion) const = 0;
    /// See tokenizer::common_prompt.
    virtual std::size_t common_prompt(std::string_view a, std::string_view b) const = 0;
    /// Through the chat template; the assistant's turns and what ends them are trained, a span a turn.
    virtual EncodedRow messages(const std::vector<tokenizer::Message>& turns) const = 0;
    /// The same for a conversation with a row. Unless an encoder overrides it: input Error where it uses tools,
    /// else its roles and contents alone.
    virtual EncodedRow whole_conversation(const Conversation& conversation) const;
    /// The prompt of a question, as a service makes it. Unless an encoder overrides it: input Error.
    virtual openai::DecisionPrompt decision(const openai::DecisionExample& example) const;
    /// Whether whole_conversation makes use of a row's column of this name.
    virtual bool reads(std::string_view column) const;
    /// The tokens or the template that a doubt is about, for a message: "<s>", "<|eot_id|>, <|end_of_text|>", "chatml".
    virtual std::string subject(RowDoubt doubt) const;
};

/// Makes the encoder of rows with this chat template: a source's own, or empty for data.template.
using EncoderMaker = std::function<std::unique_ptr<RowEncoder>(const std::string& template_name)>;

/// A text that changes whenever an encoder of this tokenizer folder and template would encode otherwise: a hash of the
/// tokenizer's files and the template (of its file, where the name is one). Does not load the tokenizer. Where a file
/// asks for the date (strftime_now), the day is part of it. `kwargs`: see make_row_encoder.
std::string encoder_fingerprint(const std::filesystem::path& tokenizer_folder, const std::string& template_name,
                                const std::string& kwargs = "{}");

/// The encoder that a run uses. `template_name` is data.template (see ChatTemplate::choose). Alpaca rows take the
/// three-section prompt with `auto` and `alpaca`; with another template they are conversations.
/// `kwargs` is data.chat_template_kwargs. Usage Error for an unknown template; input Error at the first row of text
/// when the tokenizer names no EOS.
std::unique_ptr<RowEncoder> make_row_encoder(const tokenizer::Tokenizer& tokenizer, std::string_view template_name,
                                             std::string_view kwargs = "{}");

}  // namespace unsloth::data
