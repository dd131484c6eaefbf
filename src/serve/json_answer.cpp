#include "serve/answer_writer.h"
#include "unsloth/openai/response_stream.h"

namespace unsloth::serve {
namespace {

/// Whole answers, or server-sent events.
class EventAnswer : public AnswerWriter {
  public:
    explicit EventAnswer(Call call) : call_(std::move(call)) {}

    void fail(const openai::ApiError& why) override {
        if (!streams_) return call_.refuse(why);
        write(openai::error_event(why.body()));
        call_.response->end();
    }

  protected:
    bool write(const std::string& piece) {
        if (!std::exchange(streams_, true)) {
            http::Headers headers = call_.headers("text/event-stream; charset=utf-8");
            headers.emplace_back("cache-control", "no-cache");
            call_.response->begin(200, std::move(headers));
        }
        return call_.response->write(piece);
    }

    Call call_;

  private:
    bool streams_ = false;  ///< the head was sent
};

class JsonAnswer final : public EventAnswer {
  public:
    JsonAnswer(Call call, openai::AnswerHead head) : EventAnswer(std::move(call)), head_(std::move(head)) {}

    bool piece(const openai::Choice& choice, openai::TextOffsets& offsets,
               const std::optional<openai::Usage>* usage) override {
        return write(openai::stream_event(head_, choice, offsets, usage));
    }
    bool usage(const openai::Usage& usage) override { return write(openai::usage_event(head_, usage)); }
    void error(const openai::ApiError& why) override { write(openai::error_event(why.body())); }
    void end() override {
        write(openai::done_event);
        call_.response->end();
    }
    void whole(const std::vector<openai::Choice>& choices, const openai::Usage& usage) override {
        call_.send(200, openai::answer_text(head_, choices, usage));
    }

  private:
    openai::AnswerHead head_;
};

class ResponseAnswer final : public EventAnswer {
  public:
    ResponseAnswer(Call call, openai::ResponseStream response)
        : EventAnswer(std::move(call)), response_(std::move(response)) {}

    bool piece(const openai::Choice& choice, openai::TextOffsets&, const std::optional<openai::Usage>*) override {
        return write(response_.piece(choice));
    }
    bool usage(const openai::Usage& usage) override {
        usage_ = usage;
        return true;
    }
    void error(const openai::ApiError&) override {}  // the last event has it, by the choice's finish reason
    void end() override {
        write(response_.end(usage_));
        call_.response->end();
    }
    void whole(const std::vector<openai::Choice>& choices, const openai::Usage& usage) override {
        call_.send(200, response_.whole(choices.front(), usage));
    }

  private:
    openai::ResponseStream response_;
    openai::Usage usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_json_answer(Call call, openai::AnswerHead head) {
    return std::make_unique<JsonAnswer>(std::move(call), std::move(head));
}

std::unique_ptr<AnswerWriter> make_response_answer(Call call, openai::AnswerHead head,
                                                   std::shared_ptr<const nlohmann::ordered_json> settings) {
    return std::make_unique<ResponseAnswer>(std::move(call),
                                            openai::ResponseStream(std::move(head), std::move(settings)));
}

}  // namespace unsloth::serve
