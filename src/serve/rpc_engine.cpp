// vllm.grpc.engine.VllmEngine: token ids in and out, for gateways that tokenize.
#include <zlib.h>

#include <ctime>
#include <filesystem>

#include "serve/digest.h"
#include "serve/prepared.h"
#include "serve/token_exchange.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hex.h"
#include "unsloth/core/version.h"

namespace unsloth::serve {
namespace {

using Json = nlohmann::ordered_json;

/// The request as the body of a completion's. What is not offered is refused by name.
Json completion_fields(const Json& request) {
    Json fields = request.value("sampling_params", Json::object());
    const auto refuse = [](const Json& where, const char* field) {
        if (where.contains(field)) throw openai::unsupported(cat("'", field, "' is not supported."), field);
    };
    refuse(request, "kv_transfer_params_json");
    refuse(fields, "truncate_prompt_tokens");
    if (request.value("data_parallel_rank", 0) != 0)
        throw openai::unsupported("'data_parallel_rank': there is one rank, 0.", "data_parallel_rank");
    if (request.contains("tokenized"))
        fields["prompt"] = Json::array({request["tokenized"].value("input_ids", Json::array())});
    else if (request.contains("text"))
        fields["prompt"] = request["text"];
    else
        throw openai::invalid("Missing required parameter: 'tokenized' or 'text'.", "tokenized");
    // Of texts, which there are none of; and where a grammar begins in any case.
    for (const char* field : {"skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
                              "grammar_from_first_token"})
        fields.erase(field);
    for (const auto& [name, key] :
         {std::pair{"json_schema", "json"}, std::pair{"regex", "regex"}, std::pair{"grammar", "grammar"},
          std::pair{"structural_tag", "structural_tag"}, std::pair{"json_object", "json_object"}})
        if (const auto value = fields.find(name); value != fields.end()) {
            fields["structured_outputs"] = {{key, *value}};
            fields.erase(name);
        }
    if (const auto choice = fields.find("choice"); choice != fields.end()) {
        fields["structured_outputs"] = {{"choice", choice->value("choices", Json::array())}};
        fields.erase("choice");
    }
    return fields;
}

/// A zip archive whose files are not compressed (PKWARE's APPNOTE, version 2.0).
std::string zipped(const std::vector<std::pair<std::string, std::string>>& files) {
    const auto number = [](uint64_t value, int bytes) {
        std::string text;
        for (int i = 0; i < bytes; ++i, value >>= 8U) text += static_cast<char>(value & 255U);
        return text;
    };
    constexpr uint64_t local_mark = 0x04034b50, central_mark = 0x02014b50, end_mark = 0x06054b50, first_day = 0x21;
    std::string archive, directory;
    for (const auto& [name, content] : files) {
        const uint64_t crc = ::crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size());
        const std::string common = number(20, 2) + number(0, 2) + number(0, 2) + number(0, 2) + number(first_day, 2) +
                                   number(crc, 4) + number(content.size(), 4) + number(content.size(), 4) +
                                   number(name.size(), 2) + number(0, 2);
        directory +=
            number(central_mark, 4) + number(20, 2) + common + number(0, 10) + number(archive.size(), 4) + name;
        archive += number(local_mark, 4) + common + name + content;
    }
    const std::string end = number(end_mark, 4) + number(0, 4) + number(files.size(), 2) + number(files.size(), 2) +
                            number(directory.size(), 4) + number(archive.size(), 4) + number(0, 2);
    return archive + directory + end;
}

std::string utc_now() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text.data();
}

}  // namespace

/// So that engine_abort finds it.
void Service::Rpc::remember(const std::string& client, const std::string& request_id,
                            const std::shared_ptr<TokenExchange>& exchange) {
    if (request_id.empty()) return;
    const std::lock_guard lock(mutex_);
    std::erase_if(running_, [](const auto& entry) {
        const std::shared_ptr<TokenExchange> other = entry.second.lock();
        return !other || other->is_over();
    });
    if (!running_.emplace(std::pair{client, request_id}, exchange).second)
        throw openai::ApiError(409, cat("A request '", request_id.substr(0, 200), "' is running."), "request_id",
                               "already_running");
}

void Service::Rpc::engine_generate(const RpcCall& call) try {
    const Json& asked = call.request;
    const std::string request_id = asked.value("request_id", "");
    Json fields = completion_fields(asked);
    const bool is_limited = fields.contains("max_tokens");
    const Json prompt_logprobs = fields.value("prompt_logprobs", Json());
    fields.erase("prompt_logprobs");
    openai::AnswerRequest request = openai::parse_completion(fields.dump(), service_.parsing());
    if (!is_limited) request.max_tokens.reset();
    TokenExchange::Wish wish{asked.value("stream", false), request.logprobs.has_value(), request.stop,
                             request.stop_token_ids};
    Prepared prepared = service_.prepare(std::move(request), call.client);
    prepared.job.deadline = call.deadline;
    if (!prompt_logprobs.is_null()) {
        constexpr int64_t most = 20;
        const auto wanted = prompt_logprobs.get<int64_t>();
        if (wanted < 0 || wanted > most)
            throw openai::invalid(cat("Invalid value for 'prompt_logprobs': expected from 0 to ", most, "."),
                                  "prompt_logprobs");
        for (generate::Request& sequence : prepared.job.sequences) {
            sequence.prompt_logprobs = true;
            sequence.top_logprobs = std::max(sequence.top_logprobs, wanted);
        }
    }
    auto exchange =
        std::make_shared<TokenExchange>(call.later(), prepared.prompts.front().ids, prepared.job.sequences.size(),
                                        std::move(wish), service_.reader_->tokenizer());
    remember(call.client, request_id, exchange);
    call.answer->response().on_gone([this, left = std::weak_ptr<TokenExchange>(exchange)] {
        const std::shared_ptr<TokenExchange> exchange = left.lock();
        if (!exchange) return;
        exchange->leave();
        service_.engine_.cancel(exchange);
    });
    prepared.job.receiver = exchange;
    service_.engine_.submit(std::move(prepared.job));
} catch (const openai::ApiError& why) {
    throw with_own_names(why);
}

void Service::Rpc::engine_abort(const RpcCall& call) {
    for (const Json& id : call.request.value("request_ids", Json::array())) {
        std::shared_ptr<TokenExchange> exchange;
        {
            const std::lock_guard lock(mutex_);
            const auto found = running_.find({call.client, id.get<std::string>()});
            if (found != running_.end()) exchange = found->second.lock();
        }
        if (!exchange) continue;  // it has ended
        exchange->abort();
        service_.engine_.cancel(exchange);
    }
    call.reply(Json::object());
}

void Service::Rpc::engine_health(const RpcCall& call) {
    const bool healthy = service_.engine_.healthy(), draining = service_.engine_.draining();
    const char* const message = draining  ? "The service is shutting down."
                                : healthy ? "Health check passed"
                                          : "The engine does not make progress.";
    call.reply({{"healthy", healthy && !draining}, {"message", message}});
}

void Service::Rpc::engine_model(const RpcCall& call) {
    const ServiceOptions& options = service_.options_;
    const tokenizer::Tokenizer& tokenizer = service_.reader_->tokenizer();
    const Json config = Json::parse(read_file(std::filesystem::path(options.folder) / "config.json"));
    Json model = {{"model_path", options.folder},
                  {"is_generation", true},
                  {"max_context_length", service_.engine_.context()},
                  {"vocab_size", options.vocab_size},
                  {"served_model_name", options.model},
                  {"tokenizer_path", tokenizer.folder().string()},
                  {"model_type", config.value("model_type", "")},
                  {"architectures", config.value("architectures", Json::array())},
                  {"eos_token_ids", options.stop_ids},
                  {"max_req_input_len", service_.engine_.context() - 1}};
    if (const auto bos = tokenizer.bos_id()) model["bos_token_id"] = *bos;
    for (const auto& [name, text] : tokenizer.special_token_texts())
        if (const auto id = tokenizer.added_token_id(text); name == "pad_token" && id) model["pad_token_id"] = *id;
    call.reply(model);
}

void Service::Rpc::engine_server(const RpcCall& call) {
    const Load load = service_.engine_.load();
    const auto up = std::chrono::steady_clock::now() - began_;
    call.reply({{"active_requests", load.running + load.waiting},
                {"uptime_seconds", std::chrono::duration<double>(up).count()},
                {"server_type", "vllm-grpc"},
                {"data_parallel_size", 1},
                {"max_num_seqs", load.rows},
                {"constrained_decoding_start", "first_token"}});
}

void Service::Rpc::engine_loads(const RpcCall& call) {
    if (call.request.value("dp_rank", 0) != 0) throw openai::unsupported("'dp_rank': there is one rank, 0.", "dp_rank");
    const Load load = service_.engine_.load();
    const Json rank = {
        {"num_running_reqs", load.running},
        {"num_waiting_reqs", load.waiting},
        {"num_total_reqs", load.running + load.waiting},
        {"num_used_tokens", static_cast<int64_t>(load.cache_usage * static_cast<double>(load.cache_tokens))},
        {"max_total_num_tokens", load.cache_tokens},
        {"token_usage", load.cache_usage},
        {"max_running_requests", load.rows}};
    call.reply({{"timestamp", utc_now()},
                {"version", unsloth::version},
                {"dp_rank_count", 1},
                {"loads", Json::array({rank})}});
}

/// An archive of the tokenizer's files and the model's config.json.
void Service::Rpc::engine_tokenizer(const RpcCall& call) {
    constexpr std::size_t chunk = std::size_t{1} << 20;
    std::vector<std::filesystem::path> paths = service_.reader_->tokenizer().files();
    paths.push_back(std::filesystem::path(service_.options_.folder) / "config.json");
    const std::filesystem::path folder = service_.reader_->tokenizer().folder();
    std::vector<std::pair<std::string, std::string>> files;
    for (const std::filesystem::path& path : paths) {
        const std::filesystem::path inner = path.lexically_relative(folder);
        const bool is_inside = !inner.empty() && *inner.begin() != "..";
        files.emplace_back((is_inside ? inner : path.filename()).string(), read_file(path));
    }
    const std::string archive = zipped(files);
    std::string messages;
    for (std::size_t at = 0; at < archive.size(); at += chunk) {
        const bool is_last = at + chunk >= archive.size();
        const Json message = {{"data", archive.substr(at, chunk)}, {"sha256", is_last ? hex(sha256(archive)) : ""}};
        messages += call.framed(message);
    }
    call.answer->reply(std::move(messages));
}

/// Immediately: while requests run, it does nothing.
void Service::Rpc::engine_flush(const RpcCall& call) {
    if (call.request.contains("timeout_s")) throw openai::unsupported("'timeout_s': only 0 is supported.", "timeout_s");
    const bool flushed = service_.engine_.forget_keys();
    call.reply({{"success", flushed}, {"message", flushed ? "" : "Requests are running; nothing was flushed."}});
}

}  // namespace unsloth::serve
