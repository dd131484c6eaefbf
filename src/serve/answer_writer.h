// The forms in which completions reach clients: a route's or a method's.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "serve/call.h"
#include "unsloth/openai/error.h"
#include "unsloth/openai/response.h"

namespace unsloth::serve {

/// Writes one answer: pieces and then end(), or whole(), or fail(). Of one thread at a time. What returns bool is false
/// once the client has left.
class AnswerWriter {
  public:
    AnswerWriter() = default;
    virtual ~AnswerWriter() = default;
    AnswerWriter(const AnswerWriter&) = delete;
    AnswerWriter& operator=(const AnswerWriter&) = delete;

    /// `offsets` and `usage`: as openai::stream_event has them.
    virtual bool piece(const openai::Choice& choice, openai::TextOffsets& offsets,
                       const std::optional<openai::Usage>* usage) = 0;
    /// What follows the last piece, where the client asks for it.
    virtual bool usage(const openai::Usage& usage) = 0;
    /// Of a stream that ends regularly nevertheless.
    virtual void error(const openai::ApiError& why) = 0;
    virtual void end() = 0;
    virtual void whole(const std::vector<openai::Choice>& choices, const openai::Usage& usage) = 0;
    /// Ends the answer, perhaps after pieces.
    virtual void fail(const openai::ApiError& why) = 0;
};

/// OpenAI's JSON, or server-sent events of it.
std::unique_ptr<AnswerWriter> make_json_answer(Call call, openai::AnswerHead head);
/// The same of /v1/responses. `settings`: as openai::ResponseStream has them. It counts on usage() before end().
std::unique_ptr<AnswerWriter> make_response_answer(Call call, openai::AnswerHead head,
                                                   std::shared_ptr<const nlohmann::ordered_json> settings);

}  // namespace unsloth::serve
