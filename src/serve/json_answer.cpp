#include "serve/answer_writer.h"

namespace unsloth::serve {
namespace {

class JsonAnswer final : public AnswerWriter {
  public:
    JsonAnswer(Call call, openai::AnswerHead head) : call_(std::move(call)), head_(std::move(head)) {}

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
    void fail(const openai::ApiError& why) override {
        if (!streams_) return call_.refuse(why);
        error(why);
        call_.response->end();
    }

  private:
    bool write(const std::string& piece) {
        if (!std::exchange(streams_, true)) {
            http::Headers headers = call_.headers("text/event-stream; charset=utf-8");
            headers.emplace_back("cache-control", "no-cache");
            call_.response->begin(200, std::move(headers));
        }
        return call_.response->write(piece);
    }

    Call call_;
    openai::AnswerHead head_;
    bool streams_ = false;  ///< the head was sent
};

}  // namespace

std::unique_ptr<AnswerWriter> make_json_answer(Call call, openai::AnswerHead head) {
    return std::make_unique<JsonAnswer>(std::move(call), std::move(head));
}

}  // namespace unsloth::serve
