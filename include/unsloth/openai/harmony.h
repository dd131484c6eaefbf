// Harmony, gpt-oss's format, as grammars see it: messages that tokens frame, each with a channel and perhaps a
// recipient.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "unsloth/grammar/grammar.h"
#include "unsloth/openai/tool_calls.h"

namespace unsloth::openai {

/// A token that frames messages or calls, and the byte that represents it in patterns. UTF-8 has none of these bytes,
/// so that a text cannot be taken for the token.
struct FramingToken {
    const char* text;
    char byte;
};
inline constexpr std::array<FramingToken, 6> framing_tokens = {{{"<|start|>", '\xF8'},
                                                                {"<|channel|>", '\xF9'},
                                                                {"<|constrain|>", '\xFA'},
                                                                {"<|message|>", '\xFB'},
                                                                {"<|end|>", '\xFC'},
                                                                {mistral_marker, mistral_byte}}};
inline constexpr char first_framing_byte = '\xF8';

/// Of messages that call one of the tools that the choice allows.
grammar::Pattern harmony_calls(const std::vector<Tool>& tools, const ToolChoice& choice);
/// `pattern`, which has alternatives alone, in the channel `final`.
grammar::Pattern in_final_channel(grammar::Pattern pattern);
grammar::Pattern any_final_message();
/// With any number of messages in the channel `analysis` in front.
grammar::Pattern after_analysis(grammar::Pattern pattern);

/// A conversation in the form of harmony's templates: what an assistant says in a message with a call joins its
/// reasoning, which precedes the call. ApiError 400 for several calls: the templates would write the first alone.
nlohmann::ordered_json harmony_row(nlohmann::ordered_json row);

/// What leads from a prompt, which ends with the header of an assistant's message, to the text of its final message;
/// empty where the prompt ends otherwise.
std::string lead_to_final(const std::string& prompt);

}  // namespace unsloth::openai
