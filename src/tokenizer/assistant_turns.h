// What is found out about a template by rendering a conversation in more than one way: which part of the text the
// assistant's turns are, where the template does not say so itself, and what it makes of calls of tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tokenizer/jinja/template.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::tokenizer {

/// A conversation as a template is given it.
struct TemplateInput {
    const jinja::Template& chat_template;
    const Tokenizer& tokenizer;
    jinja::Items messages;
    jinja::Variables variables;  ///< all but messages and add_generation_prompt
    bool add_generation_prompt = false;
};

/// Null without the key, and for a value that is no dict.
const jinja::Value* find_member(const jinja::Value& value, std::string_view key);
/// A copy of a dict with another value.
jinja::Value with_member(const jinja::Value& object, std::string_view key, jinja::Value value);
/// A message with another content: text, or of a list of parts the first text, without other texts.
jinja::Value with_content(const jinja::Value& message, std::string_view content);

jinja::RenderedTemplate render_messages(const TemplateInput& conversation, jinja::Items messages,
                                        bool add_generation_prompt);
/// The text; nullopt where the template refuses the messages, as it may when they are not those it was made for.
std::optional<std::string> try_render(const TemplateInput& conversation, jinja::Items messages,
                                      bool add_generation_prompt);

/// The byte range of each assistant turn within `text`, the rendering of `conversation`: from the end of its
/// header (the generation prompt) up to and with what ends the turn, without the white space after that.
/// `last_only`: of the last turn alone. Turns that write nothing are omitted.
///
/// The text is not searched for words, since a user may have written them as well. A turn's bounds are those
/// of renderings of the conversation cut off before and after it, as far as the text begins with them.
/// If it does not, because the template renders a turn differently when others follow (Qwen 3 drops
/// earlier reasoning), the answer's place is where renderings with two different answers differ, and the
/// texts that the template writes around it are compared. Input Error if that fails too: nothing is guessed.
std::vector<std::pair<std::size_t, std::size_t>> find_assistant_turns(const TemplateInput& conversation,
                                                                      const std::string& text, bool last_only);

// Calls of tools: tool_calls.cpp.

/// OpenAI's `arguments` are an object's JSON text. Where the template does not write such a text as it is (it quotes
/// it, goes through its keys, or refuses it) they become objects. Input Error for a text that is none.
void parse_arguments(TemplateInput& input);

// What a template omits: left_out.cpp.

/// Shapes of conversations all of whose contents a template is known to write. Safe from any thread.
class KnownShapes {
  public:
    bool contains(uint64_t shape) const;
    void add(uint64_t shape);  ///< forgets nothing, and takes no more than some thousands

  private:
    mutable std::shared_mutex mutex_;
    std::unordered_set<uint64_t> shapes_;
};

/// What `text`, the rendering of `input`, would be the same without: "tools", "messages[3].tool_calls", or with another
/// text for, "messages[0].content (role critic)"; empty when the template writes all of it. Contents are asked about
/// once for each shape of a conversation: its roles, and which members its messages have.
std::string left_out(const TemplateInput& input, const std::string& text, KnownShapes& known);
/// Whether some message has one of these members, and `text` would be the same if none had.
bool passes_over(const TemplateInput& input, const std::string& text, std::span<const char* const> members);

}  // namespace unsloth::tokenizer
