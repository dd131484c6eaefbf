// The answer of /v1/responses: whole, or as the events of its stream.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
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
    /// An item of the output: what the model thought, or its message. Each has one part.
    enum class Item : uint8_t { reasoning, message };
    nlohmann::ordered_json item(Item item, const char* status) const;
    nlohmann::ordered_json part(Item item) const;
    const char* status() const;
    std::string event(const char* type, nlohmann::ordered_json fields);
    std::string part_event(Item item, const char* type, nlohmann::ordered_json fields);
    std::string item_event(Item item, const char* type, const char* status);
    std::string open(Item item);
    std::string close(Item item);
    std::string delta(Item item, const Choice& choice);
    std::string id_of(Item item) const;
    int index_of(Item item) const { return item == Item::message && has_reasoning_ ? 1 : 0; }

    AnswerHead head_;
    std::shared_ptr<const nlohmann::ordered_json> settings_;
    Choice so_far_;
    bool has_reasoning_ = false;     ///< its item precedes the message's
    std::optional<Item> open_ = {};  ///< whose parts arrive
    int64_t events_ = 0;
};

}  // namespace unsloth::openai
