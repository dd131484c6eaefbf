// A service over a small model on the CPU, and clients without a network.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "model/support.h"
#include "unsloth/serve/service.h"
#include "unsloth/session/generation.h"

namespace unsloth::test {

using Json = nlohmann::ordered_json;

/// Takes an answer as a client would, which may leave.
class FakeResponse final : public http::Response {
  public:
    using http::Response::send;
    void send(int status, http::Headers headers, std::string body, http::Headers trailers) override {
        const std::lock_guard lock(mutex_);
        headers.insert(headers.end(), trailers.begin(), trailers.end());
        status_ = status, headers_ = std::move(headers), body_ = std::move(body), ended_ = true;
        changed_.notify_all();
    }
    void begin(int status, http::Headers headers) override {
        const std::lock_guard lock(mutex_);
        status_ = status, headers_ = std::move(headers);
        changed_.notify_all();
    }
    bool write(std::string_view piece) override {
        const std::lock_guard lock(mutex_);
        if (left_) return false;
        body_ += piece;
        ++pieces_;
        changed_.notify_all();
        return true;
    }
    void end(http::Headers trailers) override {
        const std::lock_guard lock(mutex_);
        headers_.insert(headers_.end(), trailers.begin(), trailers.end());
        ended_ = true;
        changed_.notify_all();
    }
    void on_gone(std::function<void()> f) override {
        const std::lock_guard lock(mutex_);
        gone_ = std::move(f);
    }

    void on_body(std::function<void(std::string_view, bool)> f) override { reader_ = std::move(f); }

    /// More of the request's body, where it comes in pieces.
    void more(std::string_view piece, bool ends) const { reader_(piece, ends); }
    void leave() {
        std::function<void()> gone;
        {
            const std::lock_guard lock(mutex_);
            left_ = true;
            gone.swap(gone_);
        }
        if (gone) gone();
    }
    void wait() {
        wait_until([this] { return ended_; });
    }
    void wait_for_pieces(int count) {
        wait_until([this, count] { return pieces_ >= count || ended_; });
    }
    int status() const { return status_; }
    const std::string& body() const { return body_; }
    Json json() const { return Json::parse(body_); }
    /// Or a trailer.
    std::string header(const std::string& name) const {
        for (const auto& [key, value] : headers_)
            if (key == name) return value;
        return "";
    }
    /// The data of a stream's events but the last, which is [DONE].
    std::vector<Json> events() const {
        std::vector<Json> all;
        std::size_t at = 0;
        for (std::size_t end; (end = body_.find("\n\n", at)) != std::string::npos; at = end + 2) {
            const std::string data = body_.substr(at + 6, end - at - 6);
            if (data != "[DONE]") all.push_back(Json::parse(data));
        }
        EXPECT_TRUE(body_.ends_with("data: [DONE]\n\n")) << body_;
        return all;
    }

  private:
    template <class Condition>
    void wait_until(const Condition& condition) {
        std::unique_lock lock(mutex_);
        UNSLOTH_CHECK(changed_.wait_for(lock, std::chrono::seconds(120), condition), "no answer came");
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    int status_ = 0, pieces_ = 0;
    bool ended_ = false, left_ = false;
    http::Headers headers_;
    std::string body_;
    std::function<void()> gone_;
    std::function<void(std::string_view, bool)> reader_;
};

struct RunningOptions {
    fs::path model = source_folder() / "examples/legal/base", tokenizer = model;
    int64_t rows = 8, context = 160;
    weights::AdapterSlots slots = {};
    serve::ServiceOptions service = {};
    int64_t most_waiting = 64;
    std::chrono::milliseconds drain_delay{0}, shutdown_timeout{30'000};
    std::string chat = "alpaca";  ///< the template
    bool starts = true;           ///< else by start()
};

inline model::LoadRequest request_for(const RunningOptions& options) {
    model::LoadRequest request;
    request.device = at::kCPU;
    request.dtype = at::kFloat;
    request.load_in_4bit = false;
    request.sizes.training = false;
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 64;  // long prompts go in by pieces
    request.sizes.segments = options.rows + 8;
    request.sizes.context = options.context;
    request.sizes.cache_tokens = options.rows * options.context;
    request.run.head_tile = 16;
    request.adapter_slots = options.slots;
    return request;
}

/// With its engine on a thread of its own.
class RunningService {
  public:
    explicit RunningService(RunningOptions options = {})
        : options_(std::move(options)),
          file_(std::make_shared<const formats::WeightFile>(formats::WeightFile::open(options_.model.string()))),
          model_(load_model(options_.model, request_for(options_))),
          tokenizer_(tokenizer::Tokenizer::load(options_.tokenizer)),
          metrics_("base"),
          engine_(*model_.ctx, *model_.model,
                  {.decoder = {.rows = options_.rows, .prefill_tokens = 16},
                   .most_waiting = options_.most_waiting,
                   .most_adapters = options_.slots.count,
                   .drain_delay = options_.drain_delay,
                   .shutdown_timeout = options_.shutdown_timeout,
                   .stops = [this] { return stops_.load(); }},
                  metrics_),
          adapters_(*model_.model, file_, options_.slots, "base", ""),
          service_(engine_, adapters_, metrics_, tokenizer_, tokenizer::ChatTemplate::choose(options_.chat, tokenizer_),
                   service_options()) {
        if (options_.starts) start();
    }
    ~RunningService() { stop(); }

    void start() {
        thread_ = std::thread([this] {
            at::set_num_threads(1);
            engine_.run();
        });
    }
    void ask_to_stop() { stops_ = true; }
    void stop() {
        ask_to_stop();
        if (thread_.joinable()) thread_.join();
    }

    std::shared_ptr<FakeResponse> begin(const std::string& method, const std::string& path, const std::string& body,
                                        http::Headers headers = {}, const std::string& peer = "127.0.0.1:1") {
        auto response = std::make_shared<FakeResponse>();
        service_.handler()({method, path, "", std::move(headers), body, peer}, response);
        return response;
    }
    std::shared_ptr<FakeResponse> ask(const std::string& method, const std::string& path, const std::string& body = {},
                                      http::Headers headers = {}) {
        auto response = begin(method, path, body, std::move(headers));
        response->wait();
        return response;
    }
    std::shared_ptr<FakeResponse> post(const std::string& path, const Json& body) {
        return ask("POST", path, body.dump());
    }
    /// A value of /metrics.
    double metric(const std::string& name) {
        const std::optional<double> found = metric_if(name);
        UNSLOTH_CHECK(found, name);
        return *found;
    }
    double metric_or(const std::string& name, double otherwise) { return metric_if(name).value_or(otherwise); }
    std::optional<double> metric_if(const std::string& name) {
        const std::string text = ask("GET", "/metrics")->body();
        const std::size_t at = text.find("\n" + name + "{");
        if (at == std::string::npos) return std::nullopt;
        return std::stod(text.substr(text.find("} ", at) + 2));
    }
    /// After stop().
    void finish() { service_.finish(); }
    const tokenizer::Tokenizer& tokenizer() const { return tokenizer_; }
    const spec::ModelSpec& spec() const { return file_->spec; }

  private:
    serve::ServiceOptions service_options() const {
        serve::ServiceOptions made = options_.service;
        made.model = "base";
        made.fingerprint = "fp_base";
        made.vocab_size = file_->spec.vocab_size;
        made.stop_ids = session::stop_ids(tokenizer_, file_->spec);
        made.folder = options_.model.string();
        return made;
    }
    RunningOptions options_;
    std::shared_ptr<const formats::WeightFile> file_;
    LoadedModel model_;
    tokenizer::Tokenizer tokenizer_;
    std::atomic<bool> stops_ = false;
    serve::Metrics metrics_;
    serve::Engine engine_;
    serve::AdapterSet adapters_;
    serve::Service service_;
    std::thread thread_;
};

}  // namespace unsloth::test
