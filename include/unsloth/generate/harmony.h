// Harmony, the format in which gpt-oss answers: messages on channels, framed by special tokens. `analysis` is what the
// model thinks, `commentary` with a recipient calls a tool, `final` is for the reader.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "unsloth/generate/detokenizer.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::generate {

struct HarmonyTokens {
    int32_t start = -1, channel = -1, message = -1, end = -1;
    std::vector<int32_t> stops;  ///< that end a generation: <|return|> and <|call|>, where the tokenizer has them

    /// nullopt where the tokenizer lacks one of the tokens that frame messages.
    static std::optional<HarmonyTokens> of(const tokenizer::Tokenizer& tokenizer);
    /// Adds `stops` to a model's, and takes <|end|> out: it ends a message, and another may follow.
    void set_stops(std::vector<int32_t>& ids) const;
};

/// A message's text, or more of it.
struct HarmonyPiece {
    enum class Kind : uint8_t {
        analysis,
        call,   ///< to a recipient
        shown,  ///< `final`, a `commentary` without recipient, or a text that no token frames
    };
    Kind kind = Kind::shown;
    std::string recipient = {};  ///< of a call, as "functions.NAME"
    std::string text = {};
    bool begins = true;  ///< it is the message's first piece
};

/// Reads one answer, token by token.
class HarmonyReader {
  public:
    /// `stops`: texts that end the answer, looked for in what is shown; none is empty.
    HarmonyReader(tokenizer::Tokenizer tokenizer, HarmonyTokens tokens, std::vector<std::string> stops);

    /// Before the first token: what the answer continues, perhaps in the middle of a message.
    void follow(std::span<const int32_t> prompt);
    /// False: with this token a stop text is complete, the answer has ended.
    bool add(int32_t id);
    /// No token follows.
    void finish();
    /// What no later token can change, and was not taken yet. A call is there as soon as its header is.
    std::vector<HarmonyPiece> take();

    /// Whether the last token was part of what the model thinks.
    bool thinks() const {
        return in_body_ && !messages_.empty() && messages_.back().kind == HarmonyPiece::Kind::analysis;
    }
    /// The ids and the text of the last message; empty before the first one.
    std::span<const int32_t> last_ids() const;
    std::string last_text() const;

  private:
    struct Message {
        HarmonyPiece::Kind kind;
        std::string recipient;
        IncrementalDetokenizer text;
        std::vector<int32_t> ids = {};
        std::size_t taken = 0;
        bool begun = false;
    };
    void open(HarmonyPiece::Kind kind, std::string recipient);
    void open_by_header();
    bool open_plain();
    void close();
    bool add_text(int32_t id);

    tokenizer::Tokenizer tokenizer_;
    HarmonyTokens tokens_;
    std::vector<std::string> stops_;
    std::deque<Message> messages_;  ///< those before the last one are complete
    std::vector<int32_t> header_;   ///< of the next message, where in_body_ is false
    std::size_t of_prompt_ = 0;     ///< ids of the header that the prompt has
    bool in_body_ = false;
    bool is_framed_ = false;  ///< the model began the header by a token of its own
};

}  // namespace unsloth::generate
