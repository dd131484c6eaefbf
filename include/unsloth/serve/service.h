// OpenAI's API and gRPC over an engine: routes, keys, and what becomes of a request.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "unsloth/http/server.h"
#include "unsloth/openai/request.h"
#include "unsloth/openai/response.h"
#include "unsloth/serve/adapters.h"
#include "unsloth/serve/engine.h"
#include "unsloth/session/sight.h"
#include "unsloth/tokenizer/chat.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::serve {

struct ServiceOptions {
    std::string model;              ///< the base's id
    std::vector<std::string> keys;  ///< one of them must be sent; empty: anybody may ask
    bool local_names_only = false;  ///< requests must call this host localhost, or by a loopback address
    bool accept_unknown_fields = false;
    bool may_load_adapters = false;   ///< whether the routes that load and unload answer
    std::string adapter_root;         ///< folder that adapters are loaded from; empty: from none
    std::string fingerprint;          ///< of the base's content
    int64_t vocab_size = 0;           ///< the model's
    std::vector<int32_t> stop_ids;    ///< that end answers
    std::string folder;               ///< the base's
    double decision_temperature = 1;  ///< of the base's decision_calibration.json
    session::Sight sight = {};        ///< how images of chats are read; by default none is
};

/// Work of requests on other threads than the server's and the engine's.
class Workers {
  public:
    explicit Workers(int threads);
    /// Waits for what was posted.
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;
    void post(std::function<void()> work);
    /// Until all that was posted is done.
    void wait();

  private:
    void work();
    std::mutex mutex_;
    std::condition_variable changed_, idle_;
    std::deque<std::function<void()>> posted_;
    int busy_ = 0;
    bool ends_ = false;
    std::vector<std::thread> threads_;
};

class AnswerWriter;
class Constraints;
class PromptReader;
struct Call;
struct ToolReading;

/// Answers requests as long as it lives; it outlives the server that has its handler. The engine's end comes first.
class Service {
  public:
    Service(Engine& engine, AdapterSet& adapters, Metrics& metrics, const tokenizer::Tokenizer& tokenizer,
            const tokenizer::ChatTemplate& chat, ServiceOptions options);
    ~Service();
    Service(const Service&) = delete;
    Service& operator=(const Service&) = delete;

    http::Handler handler();
    /// For http::ServerOptions: of the calls whose requests are streams.
    static bool takes_pieces(const http::Request& header);
    /// After the engine's end: until every answer was given to its response.
    void finish();

  private:
    struct Route;
    class Rpc;
    static const std::vector<Route>& routes();
    void handle(http::Request request, std::shared_ptr<http::Response> response);
    void dispatch(const Call& call);
    std::string key_of(const http::Request& request) const;

    void page(const Call& call);
    void openapi(const Call& call);
    void models(const Call& call);
    void one_model(const Call& call);
    void completions(const Call& call);
    void chat(const Call& call);
    void responses(const Call& call);
    void decisions(const Call& call);
    void tokenize(const Call& call);
    void detokenize(const Call& call);
    void tokenizer_info(const Call& call);
    void load_adapter(const Call& call);
    void unload_adapter(const Call& call);
    void health(const Call& call);
    void ready(const Call& call);
    void version(const Call& call);
    void metrics(const Call& call);

    struct Chosen;
    Chosen choose(const std::string& model) const;
    static Job job_for(const std::string& client, const Chosen& chosen);
    openai::ParseOptions parsing() const {
        return {options_.vocab_size, options_.accept_unknown_fields, options_.sight.sees_images()};
    }
    session::Sight::Bounds image_bounds() const;
    struct Prepared;
    Prepared prepare(openai::AnswerRequest request, const std::string& client);
    static openai::AnswerHead head_of(const Prepared& prepared);
    void start(Prepared prepared, std::unique_ptr<AnswerWriter> writer, http::Response& response);
    void answer(const Call& call, openai::AnswerRequest request);
    std::optional<ToolReading> reading(const openai::AnswerRequest& request) const;
    struct Constrained;
    Constrained constrain(const openai::AnswerRequest& request);
    void require_adapter_routes() const;
    nlohmann::ordered_json model_cards() const;
    void load(const openai::AdapterRequest& request);
    void unload(const openai::AdapterRequest& request);

    Engine& engine_;
    AdapterSet& adapters_;
    Metrics& metrics_;
    ServiceOptions options_;
    std::unique_ptr<const PromptReader> reader_;
    std::unique_ptr<Constraints> constraints_;
    std::string template_;  ///< of tokenizer_info; empty: the tokenizer has none
    int64_t created_;
    std::unique_ptr<Rpc> rpc_;
    Workers workers_;  ///< the last member: its work uses the others
};

}  // namespace unsloth::serve
