#include "serve/rpc.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::serve {

using Json = nlohmann::ordered_json;
using grpc::Code, grpc::Status;

struct Service::Rpc::Entry {
    void (Rpc::*answer)(const RpcCall& call);
    bool is_free = false;   ///< no key is asked for
    bool is_quick = false;  ///< answers on the server's thread
};

const std::map<std::string, Service::Rpc::Entry>& Service::Rpc::entries() {
    static const std::map<std::string, Entry> all = {
        {"/grpc.health.v1.Health/Check", {&Rpc::check, true, true}},
        {"/grpc.health.v1.Health/Watch", {&Rpc::watch, true, true}},
        {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", {&Rpc::reflection, true, true}},
        {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {&Rpc::reflection, true, true}},
        {"/unsloth.v1.Generation/Generate", {&Rpc::generate}},
        {"/unsloth.v1.Generation/GenerateStream", {&Rpc::generate}},
        {"/unsloth.v1.Generation/ListModels", {&Rpc::list_models}},
        {"/unsloth.v1.Generation/LoadAdapter", {&Rpc::load_adapter}},
        {"/unsloth.v1.Generation/UnloadAdapter", {&Rpc::unload_adapter}},
        {"/vllm.grpc.engine.VllmEngine/Generate", {&Rpc::engine_generate}},
        {"/vllm.grpc.engine.VllmEngine/HealthCheck", {&Rpc::engine_health, true, true}},
        {"/vllm.grpc.engine.VllmEngine/Abort", {&Rpc::engine_abort}},
        {"/vllm.grpc.engine.VllmEngine/GetModelInfo", {&Rpc::engine_model}},
        {"/vllm.grpc.engine.VllmEngine/GetServerInfo", {&Rpc::engine_server}},
        {"/vllm.grpc.engine.VllmEngine/GetLoads", {&Rpc::engine_loads}},
        {"/vllm.grpc.engine.VllmEngine/GetTokenizer", {&Rpc::engine_tokenizer}},
        {"/vllm.grpc.engine.VllmEngine/FlushCache", {&Rpc::engine_flush}},
    };
    return all;
}

Status status_of(const openai::ApiError& why) {
    const std::string message = why.what();
    const bool names_field = why.param().empty() || message.find(why.param()) != std::string::npos;
    return {grpc::code_of(why.status()), names_field ? message : cat("'", why.param(), "': ", message)};
}

Service::Rpc::Rpc(Service& service) : service_(service) {
    service_.engine_.on_drain([this] { tell_watchers(); });
}

Service::Rpc::~Rpc() {
    service_.engine_.on_drain(nullptr);
}

template <class Work>
void Service::Rpc::guard(const RpcCall& call, const Work& work) {
    try {
        work();
    } catch (const Status& status) {
        call.answer->end(status);
    } catch (const openai::ApiError& why) {
        call.answer->end(status_of(why));
    } catch (const std::exception& failure) {
        log::error("gRPC ", call.method->service, "/", call.method->name, ": ", failure.what());
        call.answer->end(Status(Code::internal, "The call failed; see the service's log."));
    }
}

bool Service::Rpc::takes_pieces(const http::Request& header) {
    const grpc::Method* const method = grpc::is_call(header) ? grpc::Schema::own().method(header.path) : nullptr;
    return method != nullptr && method->takes_stream;
}

void Service::Rpc::handle(http::Request request, std::shared_ptr<http::Response> response) {
    RpcCall call{
        grpc::Schema::own().method(request.path),
        std::make_shared<grpc::Answer>(std::move(response), http::Headers{{"x-request-id", request_id_of(request)}})};
    const auto entry = entries().find(request.path);
    if (call.method == nullptr || entry == entries().end())
        return call.answer->end(
            Status(Code::unimplemented, cat("This service has no method ", request.path.substr(0, 200))));
    guard(call, [&] {
        refuse_other_sites(request, service_.options_.local_names_only);
        if (!entry->second.is_free) call.client = service_.key_of(request);
        if (const auto timeout = grpc::timeout_of(request)) {
            constexpr std::chrono::microseconds longest = std::chrono::hours(24 * 365);
            call.deadline = std::chrono::steady_clock::now() + std::min(*timeout, longest);
        }
        auto work = [this, call, answer = entry->second.answer, request = std::move(request)]() mutable {
            guard(call, [&] {
                if (!call.method->takes_stream)
                    call.request = grpc::read_message(grpc::only_message(request), *call.method->input,
                                                      service_.options_.accept_unknown_fields);
                (this->*answer)(call);
            });
        };
        if (entry->second.is_quick)
            work();
        else
            service_.workers_.post(std::move(work));
    });
}

/// nullptr: there is no such service.
const char* Service::Rpc::health_of(const std::string& name) const {
    const std::vector<std::string> services = grpc::Schema::own().services();
    if (!name.empty() && std::ranges::find(services, name) == services.end()) return nullptr;
    return service_.engine_.healthy() && !service_.engine_.draining() ? "SERVING" : "NOT_SERVING";
}

void Service::Rpc::check(const RpcCall& call) {
    const std::string name = call.request.value("service", "");
    const char* const health = health_of(name);
    if (health == nullptr) throw Status(Code::not_found, cat("There is no service '", name.substr(0, 200), "'."));
    call.reply({{"status", health}});
}

/// Health, and what it becomes when the service drains.
void Service::Rpc::watch(const RpcCall& call) {
    const char* const health = health_of(call.request.value("service", ""));
    const std::lock_guard lock(mutex_);
    call.send({{"status", health == nullptr ? "SERVICE_UNKNOWN" : health}});
    const int64_t number = ++watches_;
    watchers_.emplace(number, call);
    call.answer->response().on_gone([this, number] {
        std::map<int64_t, RpcCall>::node_type gone;  // ends after the lock
        const std::lock_guard inner(mutex_);
        gone = watchers_.extract(number);
    });
}

void Service::Rpc::tell_watchers() {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, watcher] : watchers_)
        if (health_of(watcher.request.value("service", "")) != nullptr) watcher.send({{"status", "NOT_SERVING"}});
}

void Service::Rpc::finish() {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, watcher] : watchers_)
        watcher.answer->end(Status(Code::unavailable, "The service has ended."));
    watchers_.clear();
}

/// Answers each request as it comes.
void Service::Rpc::reflection(const RpcCall& call) {
    static constexpr std::size_t longest_question = 4096;
    auto reader = std::make_shared<grpc::MessageReader>();
    call.answer->response().on_body([call, reader](std::string_view piece, bool ends) {
        guard(call, [&] {
            reader->add(piece);
            while (const auto message = reader->next())
                call.send(grpc::reflect(grpc::Schema::own(), grpc::read_message(*message, *call.method->input)));
            // It asks for no key, and these bytes are in no limit of the server's.
            if (reader->size() > longest_question)
                throw Status(Code::resource_exhausted, cat("A message may have ", longest_question, " bytes at most."));
            if (ends && !reader->empty()) throw Status(Code::invalid_argument, "The last message is cut.");
            if (ends) call.answer->end();
        });
    });
}

}  // namespace unsloth::serve
