#include "unsloth/serve/service.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "serve/call.h"
#include "serve/constraints.h"
#include "serve/page.h"
#include "serve/prompts.h"
#include "serve/route.h"
#include "serve/rpc.h"
#include "serve/texts.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/version.h"
#include "unsloth/serve/keys.h"

namespace unsloth::serve {

using openai::ApiError;

const std::vector<Service::Route>& Service::routes() {
    constexpr bool is_free = true, is_quick = true, keyed = false, posted = false;
    static const std::vector<Route> all = {
        {"GET", "/v1/models", "The base and its adapters.", &Service::models, keyed, is_quick},
        {"GET", "/v1/models/", "One model.", &Service::one_model, keyed, is_quick},
        {.method = "POST",
         .path = "/v1/completions",
         .summary = "Completes prompts.",
         .answer = &Service::completions,
         .body = openai::completion_schema,
         .may_stream = true},
        {.method = "POST",
         .path = "/v1/chat/completions",
         .summary = "Answers conversations.",
         .answer = &Service::chat,
         .body = openai::chat_schema,
         .may_stream = true},
        {.method = "POST",
         .path = "/v1/responses",
         .summary = "Answers conversations, in the newer API's form. Nothing is stored.",
         .answer = &Service::responses,
         .body = openai::response_schema,
         .may_stream = true},
        {"POST", "/v1/decisions", "Answers questions with probabilities.", &Service::decisions, keyed, posted,
         openai::decision_schema},
        {"POST", "/tokenize", "The tokens of a text or of a conversation.", &Service::tokenize, keyed, posted,
         openai::tokenize_schema},
        {"POST", "/detokenize", "The text of tokens.", &Service::detokenize, keyed, posted, openai::detokenize_schema},
        {"GET", "/tokenizer_info", "The tokenizer and its chat template.", &Service::tokenizer_info},
        {"POST", "/v1/load_lora_adapter", "Loads an adapter.", &Service::load_adapter, keyed, posted,
         openai::load_adapter_schema, "text/plain"},
        {"POST", "/v1/unload_lora_adapter", "Unloads an adapter.", &Service::unload_adapter, keyed, posted,
         openai::unload_adapter_schema, "text/plain"},
        {"GET", "/health", "Whether the engine makes progress.", &Service::health, is_free, is_quick},
        {"GET", "/ping", "The same as /health.", &Service::health, is_free, is_quick},
        {"GET", "/ready", "Whether requests are accepted.", &Service::ready, is_free, is_quick},
        {"GET", "/version", "The program's version.", &Service::version, is_free, is_quick},
        {"GET", "/metrics", "Metrics for Prometheus.", &Service::metrics, is_free, is_quick, nullptr, "text/plain"},
        {"GET", "/", "A page to talk to the models.", &Service::page, is_free, is_quick, nullptr, "text/html"},
        {"GET", "/openapi.json", "This document.", &Service::openapi, is_free, is_quick},
    };
    return all;
}

namespace {

constexpr int worker_threads = 2;
constexpr std::size_t longest_request_id = 128;

const std::string* header_of(const http::Request& request, std::string_view name) {
    for (const auto& [key, value] : request.headers)
        if (key == name) return &value;
    return nullptr;
}

}  // namespace

std::string request_id_of(const http::Request& request) {
    const std::string* const given = header_of(request, "x-request-id");
    const bool usable = given != nullptr && !given->empty() && given->size() <= longest_request_id &&
                        std::ranges::all_of(*given, [](char c) { return c > ' ' && c < '\x7f'; });
    return usable ? *given : random_id();
}

/// "localhost:8000", "127.0.0.1", "[::1]:8000".
bool is_local_name(std::string_view host) {
    const std::size_t colon = host.rfind(':');
    const bool has_port = colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos &&
                          (host.starts_with('[') || host.find(':') == colon);
    const std::string_view name = has_port ? host.substr(0, colon) : host;
    const bool digits = name.find_first_not_of("0123456789.") == std::string_view::npos;
    return name == "localhost" || name.ends_with(".localhost") || name == "[::1]" ||
           (digits && name.starts_with("127."));
}

/// Another site's page may send a POST that its browser would not let it read: to load adapters, or to use the GPU.
void refuse_other_sites(const http::Request& request, bool local_names_only) {
    if (const std::string* const host = header_of(request, "host");
        local_names_only && host != nullptr && !is_local_name(*host))
        throw ApiError(
            403,
            cat("The name ", host->substr(0, 200),
                " is not this service's, which answers on this machine alone. Ask for localhost, or start it "
                "with --api_key_file."),
            "", "unknown_host");
    const std::string* const site = header_of(request, "sec-fetch-site");
    if (request.method == "POST" && site != nullptr && *site != "same-origin" && *site != "none")
        throw ApiError(403, "Pages of other sites may not use this service.", "", "cross_site");
}

Workers::Workers(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

Workers::~Workers() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Workers::post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
    changed_.notify_one();
}

void Workers::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return ends_ || !posted_.empty(); });
        if (posted_.empty()) return;
        const std::function<void()> next = std::move(posted_.front());
        posted_.pop_front();
        ++busy_;
        lock.unlock();
        next();
        lock.lock();
        if (--busy_ == 0 && posted_.empty()) idle_.notify_all();
    }
}

void Workers::wait() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return busy_ == 0 && posted_.empty(); });
}

Service::Service(Engine& engine, AdapterSet& adapters, Metrics& metrics, const tokenizer::Tokenizer& tokenizer,
                 const tokenizer::ChatTemplate& chat, ServiceOptions options)
    : engine_(engine),
      adapters_(adapters),
      metrics_(metrics),
      options_(std::move(options)),
      reader_(std::make_unique<const PromptReader>(tokenizer, chat, options_.sight)),
      constraints_(std::make_unique<Constraints>(tokenizer, options_.vocab_size)),
      created_(unix_seconds()),
      rpc_(std::make_unique<Rpc>(*this)),
      workers_(worker_threads) {
    for (const auto& [name, text] : tokenizer.chat_templates())
        if (name == "default") template_ = text;
}

Service::~Service() = default;

void Service::finish() {
    workers_.wait();
    rpc_->finish();
}

bool Service::takes_pieces(const http::Request& header) {
    return Rpc::takes_pieces(header);
}

http::Handler Service::handler() {
    return [this](http::Request request, std::shared_ptr<http::Response> response) {
        if (grpc::is_call(request)) return rpc_->handle(std::move(request), std::move(response));
        handle(std::move(request), std::move(response));
    };
}

/// Who asks, for taking turns: the number of the key, or the address. ApiError 401 without one of the keys.
std::string Service::key_of(const http::Request& request) const {
    if (options_.keys.empty()) return request.peer.substr(0, request.peer.rfind(':'));
    constexpr std::string_view scheme = "Bearer ";
    const std::string* const given = header_of(request, "authorization");
    const bool has_scheme = given != nullptr && given->starts_with(scheme);
    const int64_t key = has_scheme ? find_key(options_.keys, std::string_view(*given).substr(scheme.size())) : -1;
    if (key < 0)
        throw ApiError(401,
                       given == nullptr ? "No API key was sent. Send it as 'Authorization: Bearer KEY'."
                                        : "The API key is not known to this service.",
                       "", "invalid_api_key");
    return cat("key ", key);
}

void Service::handle(http::Request request, std::shared_ptr<http::Response> response) {
    auto call = std::make_shared<Call>(Call{std::move(request), std::move(response), {}, {}});
    call->id = request_id_of(call->request);
    const auto guarded = [this, call](void (Service::*answer)(const Call&)) {
        try {
            (this->*answer)(*call);
        } catch (const ApiError& why) {
            call->refuse(why);
        } catch (const std::exception& failure) {
            log::error("request ", call->id, ": ", failure.what());
            call->refuse(ApiError(500, "The request failed; see the service's log.", "", "internal_error"));
        }
    };
    const std::string& path = call->request.path;
    std::string methods;
    for (const Route& route : routes()) {
        if (!route.matches(path)) continue;
        if (route.method != call->request.method) {
            methods += cat(methods.empty() ? "" : ", ", route.method);
            continue;
        }
        try {
            refuse_other_sites(call->request, options_.local_names_only);
            if (!route.is_free) call->client = key_of(call->request);
        } catch (const ApiError& why) {
            return call->refuse(why);
        }
        if (route.is_quick) return guarded(route.answer);
        return workers_.post([guarded, answer = route.answer] { guarded(answer); });
    }
    if (methods.empty())
        return call->refuse(ApiError(404,
                                     cat("Unknown request URL: ", call->request.method, " ", path.substr(0, 200),
                                         ". docs/how-to/serve.md lists the routes."),
                                     "", "unknown_url"));
    http::Headers headers = call->headers("application/json");
    headers.emplace_back("allow", methods);
    if (call->request.method == "OPTIONS") return call->response->send(204, std::move(headers), "");
    call->response->send(
        405, std::move(headers),
        ApiError(405, cat("Method ", call->request.method.substr(0, 20), " is not allowed here: ", methods), "",
                 "method_not_allowed")
            .body());
}

void Service::page(const Call& call) {
    call.response->send(200, call.headers(page_headers()), page_text());
}

void Service::health(const Call& call) {
    if (!engine_.healthy()) throw ApiError(503, "The engine does not make progress.", "", "unhealthy");
    call.send(200, "{}");
}

void Service::ready(const Call& call) {
    if (engine_.draining()) throw ApiError(503, "The service is shutting down.", "", "shutting_down");
    health(call);
}

void Service::version(const Call& call) {
    call.send(200, nlohmann::json{{"version", unsloth::version}}.dump());
}

void Service::metrics(const Call& call) {
    engine_.report();
    call.send(200, metrics_.text(), "text/plain; version=0.0.4; charset=utf-8");
}

}  // namespace unsloth::serve
