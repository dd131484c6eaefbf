// A running request for token ids: what vLLM's engine answers.
#pragma once

#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serve/rpc.h"
#include "unsloth/generate/detokenizer.h"
#include "unsloth/serve/engine.h"

namespace unsloth::serve {

class TokenExchange final : public Receiver {
  public:
    struct Wish {
        bool streams = false, logprobs = false;
        std::vector<std::string> stop;
        std::vector<int32_t> stop_token_ids;  ///< the request's own
    };
    /// `prompt`: the ids. `outputs`: sequences.
    TokenExchange(RpcCall call, std::vector<int32_t> prompt, std::size_t outputs, Wish wish,
                  const tokenizer::Tokenizer& tokenizer);

    bool token(std::size_t sequence, const generate::Completion& so_far) override;
    void ended(std::size_t sequence, const generate::Completion& answer) override;
    void failed(const openai::ApiError& why) override;
    /// From any thread: the outputs that have not ended end with the reason "abort".
    void abort();
    /// From any thread: the client left.
    void leave();
    /// From any thread: nothing more is sent.
    bool is_over();

  private:
    struct Output {
        std::optional<generate::IncrementalDetokenizer> text;  ///< where stop texts are given
        std::size_t sent = 0;
        generate::Completion answer;  ///< so far
        bool has_ended = false;
    };
    nlohmann::ordered_json counts(const generate::Completion& answer, std::size_t sequence) const;
    nlohmann::ordered_json prompt_logprobs(const generate::Completion& answer) const;
    void send(const nlohmann::ordered_json& message);
    void finish();
    void send_chunk(std::size_t sequence, const generate::Completion& so_far);
    void send_end(std::size_t sequence, const std::string& finish_reason);

    RpcCall call_;
    std::vector<int32_t> prompt_;
    Wish wish_;
    tokenizer::Tokenizer tokenizer_;
    std::mutex mutex_;
    std::vector<Output> outputs_;
    std::size_t left_;
    std::string whole_;  ///< the messages, where they do not stream
    bool over_ = false;  ///< nothing more is sent
};

}  // namespace unsloth::serve
