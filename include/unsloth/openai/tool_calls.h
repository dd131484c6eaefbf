// Calls of tools: what clients ask for, how models write them, and how they are read from a model's text.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/grammar/grammar.h"
#include "unsloth/tokenizer/chat.h"

namespace unsloth::openai {

struct Tool {
    std::string name;
    std::string parameters;  ///< a JSON schema; empty: any object
    bool strict = false;     ///< its arguments fit the schema also where the model decides about calls
};

/// OpenAI's tool_choice.
struct ToolChoice {
    enum class Kind : uint8_t { none, automatic, required, named };
    Kind kind = Kind::none;
    std::string name = {};  ///< of a named tool
    bool is_constrained() const { return kind == Kind::required || kind == Kind::named; }
};

/// How a model writes calls.
enum class ToolFormat : uint8_t {
    hermes,   ///< <tool_call>\n{"name": …, "arguments": …}\n</tool_call>, one or more: Hermes, Qwen
    llama3,   ///< {"name": …, "parameters": …}: Llama 3's JSON
    mistral,  ///< [TOOL_CALLS][{"name": …, "arguments": …}, …]
    harmony,  ///< a message to functions.NAME, framed by tokens: gpt-oss (generate/harmony.h reads it)
};
inline constexpr const char* mistral_marker = "[TOOL_CALLS]";
inline constexpr char mistral_byte = '\xFD';  ///< represents it in patterns, where it is one token (harmony.h)

/// A conversation with a call of a tool, and the format that a chat template's text of it shows; nullopt: another one.
nlohmann::ordered_json conversation_with_call();
std::optional<ToolFormat> tool_format_of(std::string_view rendered);
/// The same of a template; nullopt also where it refuses such a conversation.
std::optional<ToolFormat> tool_format_of(const tokenizer::ChatTemplate& chat);

/// What a model must write for a choice that is_constrained(); Mistral's after the marker, harmony's as framed() has
/// it.
grammar::Pattern tool_pattern(ToolFormat format, const std::vector<Tool>& tools, const ToolChoice& choice,
                              bool in_parallel);

/// What a model may write that decides about calls itself: text, and calls whose arguments fit. `marker`: what begins
/// Mistral's list, of one call. Not of harmony.
grammar::Pattern strict_pattern(ToolFormat format, const std::vector<Tool>& tools, bool in_parallel,
                                const std::string& marker);

/// A call, or a piece of one.
struct ToolDelta {
    int64_t index = 0;
    std::string id, name;   ///< of the first piece
    std::string arguments;  ///< JSON, as the model writes it
};

/// Reads calls from a text that comes in pieces, but for harmony's. What is no call is content.
class ToolCallReader {
  public:
    /// `new_id` makes the calls' ids. Beyond `most` calls none is reported.
    ToolCallReader(ToolFormat format, std::vector<std::string> names, std::function<std::string()> new_id,
                   std::size_t most);

    struct Found {
        std::string content;
        std::vector<ToolDelta> calls;
    };
    /// `text` continues the text; `ends`: nothing follows.
    Found add(std::string_view text, bool ends);
    bool has_calls() const { return calls_ > 0; }

  private:
    enum class Place : uint8_t { content, call, arguments, after, plain };
    bool step(Found& found, bool ends);
    bool read_content(Found& found, bool ends);
    bool read_call(Found& found, bool ends);
    bool read_whole_call(Found& found, bool ends);
    bool read_arguments(Found& found);
    bool read_after();
    bool no_call(Found& found);
    void report(Found& found, ToolDelta delta);
    bool knows(const std::string& name) const;

    ToolFormat format_;
    std::vector<std::string> names_;
    std::function<std::string()> new_id_;
    std::size_t most_, calls_ = 0;
    std::string held_;    ///< not yet read
    std::string opener_;  ///< what was read before the call, which is content if it is none
    Place place_ = Place::content;
    // Of the arguments that are being read:
    int depth_ = 0;
    bool in_string_ = false, is_escaped_ = false;
};

}  // namespace unsloth::openai
