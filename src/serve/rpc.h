// gRPC over the service: unsloth.v1.Generation, vllm.grpc.engine.VllmEngine, health checks and reflection (proto/).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serve/answer_writer.h"
#include "unsloth/grpc/call.h"
#include "unsloth/grpc/schema.h"
#include "unsloth/serve/service.h"

namespace unsloth::serve {

/// One call. Copies share the answer.
struct RpcCall {
    const grpc::Method* method = nullptr;
    std::shared_ptr<grpc::Answer> answer;
    std::string client = {};  ///< as Call has it
    std::optional<std::chrono::steady_clock::time_point> deadline = {};
    nlohmann::ordered_json request = {};  ///< of a method that takes one message

    /// False once the client has left.
    bool send(const nlohmann::ordered_json& message) const {
        return answer->send(grpc::write_message(message, *method->output));
    }
    std::string framed(const nlohmann::ordered_json& message) const {
        return grpc::framed(grpc::write_message(message, *method->output));
    }
    void reply(const nlohmann::ordered_json& message) const { answer->reply(framed(message)); }
    /// Without the request, for those who answer later.
    RpcCall later() const { return {method, answer, client, deadline, {}}; }
};

/// What a refusal is to gRPC's clients; the message names the field.
grpc::Status status_of(const openai::ApiError& why);

/// With the names that proto/ has for OpenAI's fields.
openai::ApiError with_own_names(const openai::ApiError& why);

class TokenExchange;

/// The methods; it ends before the service.
class Service::Rpc {
  public:
    explicit Rpc(Service& service);
    ~Rpc();
    Rpc(const Rpc&) = delete;
    Rpc& operator=(const Rpc&) = delete;

    void handle(http::Request request, std::shared_ptr<http::Response> response);
    static bool takes_pieces(const http::Request& header);
    /// Ends the calls that no answer ends.
    void finish();

  private:
    struct Entry;
    static const std::map<std::string, Entry>& entries();
    template <class Work>
    static void guard(const RpcCall& call, const Work& work);

    void check(const RpcCall& call);
    void watch(const RpcCall& call);
    void reflection(const RpcCall& call);
    const char* health_of(const std::string& name) const;
    void tell_watchers();

    void generate(const RpcCall& call);
    void list_models(const RpcCall& call);
    void load_adapter(const RpcCall& call);
    void unload_adapter(const RpcCall& call);

    void engine_generate(const RpcCall& call);
    void engine_health(const RpcCall& call);
    void engine_abort(const RpcCall& call);
    void engine_model(const RpcCall& call);
    void engine_server(const RpcCall& call);
    void engine_loads(const RpcCall& call);
    void engine_tokenizer(const RpcCall& call);
    void engine_flush(const RpcCall& call);
    void remember(const std::string& client, const std::string& request_id,
                  const std::shared_ptr<TokenExchange>& exchange);

    Service& service_;
    const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
    std::mutex mutex_;
    int64_t watches_ = 0;
    std::map<int64_t, RpcCall> watchers_;
    std::map<std::pair<std::string, std::string>, std::weak_ptr<TokenExchange>> running_;  ///< by client and request
};

}  // namespace unsloth::serve
