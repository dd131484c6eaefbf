// The answer of /v1/responses: whole, or as the events of its stream.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "unsloth/openai/response.h"

namespace unsloth::openai {

class ResponseStream {
  public:
    /// `settings`: what the response repeats of its request (AnswerRequest::response).
    ResponseStream(AnswerHead head, std::shared_ptr<const nlohmann::ordered_json> settings)
        : head_(std::move(head)), settings_(std::move(settings)) {}

    /// A whole answer as JSON text.
    std::string whole(const Choice& choice, const Usage& usage);
    /// The events of what is new. The one that has a finish reason closes the message.
    std::string piece(const Choice& choice);
    /// The last event, which has the response again.
    std::string end(const Usage& usage);

  private:
    nlohmann::ordered_json response(const char* status, const Usage* usage) const;
    nlohmann::ordered_json message(const char* status) const;
    nlohmann::ordered_json text_part() const;
    const char* status() const;
    std::string event(const char* type, nlohmann::ordered_json fields);
    std::string part_event(const char* type, nlohmann::ordered_json fields);

    AnswerHead head_;
    std::shared_ptr<const nlohmann::ordered_json> settings_;
    Choice so_far_;
    int64_t events_ = 0;
};

}  // namespace unsloth::openai
