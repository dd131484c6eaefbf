// The `serve` command: the model, its adapters and limits, and the server in front of them.
#include <algorithm>
#include <filesystem>
#include <mutex>
#include <sstream>

#include "commands/answer_sizes.h"
#include "unsloth/commands/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/formats/decision_calibration.h"
#include "unsloth/generate/chunked_prefill.h"
#include "unsloth/grpc/call.h"
#include "unsloth/http/server.h"
#include "unsloth/openai/error.h"
#include "unsloth/serve/keys.h"
#include "unsloth/serve/service.h"
#include "unsloth/serve/watch.h"
#include "unsloth/session/generation.h"
#include "unsloth/session/session.h"

namespace unsloth::commands {
namespace {

using engine_api::GenerateRequest, engine_api::ServeRequest;

bool is_loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// One a line; # begins a comment's line.
std::vector<std::string> read_keys(const std::string& file) {
    std::vector<std::string> keys;
    if (file.empty()) return keys;
    std::istringstream lines(read_file(file));
    for (std::string line; std::getline(lines, line);) {
        while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
        if (line.empty() || line.front() == '#') continue;
        if (line.size() > serve::longest_key)
            throw Error("network.bad-keys",
                        cat("--api_key_file ", file, ": a key has more than ", serve::longest_key, " characters"));
        keys.push_back(line);
    }
    if (keys.empty())
        throw Error("network.bad-keys", cat("--api_key_file ", file, " has no key"),
                    "Write a key per line, or leave the option out.");
    using Access = std::filesystem::perms;
    if ((std::filesystem::status(file).permissions() & (Access::group_read | Access::others_read)) != Access::none)
        log::warning("--api_key_file ", file, " can be read by other users of this machine (chmod 600)");
    return keys;
}

weights::AdapterSlots slots_for(const GenerateRequest& answers, const ServeRequest& request,
                                const spec::ModelSpec& spec, bool has_own_adapter) {
    constexpr int64_t usual_rank = 16;
    const auto named = static_cast<int64_t>(answers.adapters.folders.size());
    const bool others_come = !request.adapter_root.empty() || !request.watch.empty();
    if (others_come && has_own_adapter)
        throw Error("option.conflict",
                    "--adapter_root and --watch cannot be combined with --model.adapter_name_or_path",
                    "Give that adapter with --adapter NAME=DIR.");
    weights::AdapterSlots slots{request.max_loras, request.max_lora_rank};
    if (slots.count == 0) slots.count = named + (others_come ? 2 : 0);
    if (named > slots.count)
        throw Error("option.conflict", cat("--max_loras is ", slots.count, ", and --adapter names ", named),
                    "Raise it, or name fewer adapters.");
    if (slots.count == 0) return slots;
    const bool given = slots.rank > 0;
    if (!given) slots.rank = others_come ? usual_rank : 1;
    for (const auto& [name, folder] : answers.adapters.folders) {
        const formats::Adapter adapter =
            weights::read_for_batches({name, formats::resolve_model_path(folder).string()}, spec);
        slots.experts = slots.experts || weights::adapts_experts(adapter);
        if (!given) slots.rank = std::max(slots.rank, weights::largest_rank(adapter));
    }
    return slots;
}

struct ServedSizes {
    int64_t rows = 1, prefill_rows = 0, pass_tokens = 1;
    int64_t patches = 0;  ///< of the largest image; 0: there is none
    placement::CacheSize cache;
};

ServedSizes served_sizes(const config::LoadedConfig& loaded, const GenerateRequest& answers,
                         const spec::ModelSpec& spec, const session::Sight& sight) {
    require_max_model_len(answers, spec);
    const bool dynamic = spec.has_rope(spec::RopeSpec::Type::dynamic);  // whole prompts, one sequence at a time
    const int64_t context = answers.max_context > 0 ? answers.max_context : spec.usable_positions();
    ServedSizes sizes;
    sizes.rows = dynamic ? 1 : answers.max_rows;
    sizes.prefill_rows = dynamic ? 0 : generate::ChunkedPrefillBounds{}.most;
    sizes.pass_tokens = std::max(dynamic ? context : answers.max_batch_tokens, sizes.rows + sizes.prefill_rows);
    sizes.patches = sight.most_patches(std::min(sizes.pass_tokens, context));
    sizes.cache = answer_cache(loaded, answers, spec, sizes.rows, context);
    return sizes;
}

/// Passes of prompts and rows together, by how long they take.
generate::DecoderOptions decoder_options(ops::Context& ctx, const config::Config& config,
                                         const session::OpenedModel& opened, int64_t rows) {
    const auto times = session::step_latency_model(ctx.device(), config, opened);
    generate::DecoderOptions options{.rows = rows, .prefill_policy = generate::chunked_prefill_policy(times)};
    options.keeps_prompts = true;  // of conversations that go on
    options.on_pass = [times](const generate::PassWork& pass, double ms) { times->observe(pass, ms); };
    return options;
}

/// For clients to take the ends of their answers.
constexpr auto last_bytes = std::chrono::seconds(5);

/// Until the model is loaded, clients are asked to come again; /health says that the process is alive.
class Gate {
  public:
    http::Handler handler() {
        return [this](http::Request asked, std::shared_ptr<http::Response> response) {
            http::Handler open;
            {
                const std::lock_guard lock(mutex_);
                open = open_;
            }
            if (open) return open(std::move(asked), std::move(response));
            constexpr const char* loads = "The model is being loaded.";
            if (grpc::is_call(asked))
                return grpc::Answer(std::move(response), {}).end(grpc::Status(grpc::Code::unavailable, loads));
            const std::pair<std::string, std::string> json = {"content-type", "application/json"};
            if (asked.path == "/health") return response->send(200, {json}, "{}");
            const openai::ApiError loading(503, loads, "", "loading");
            response->send(loading.status(), {json, {"retry-after", "5"}}, loading.body());
        };
    }
    void open(http::Handler handler) {
        const std::lock_guard lock(mutex_);
        open_ = std::move(handler);
    }

  private:
    std::mutex mutex_;
    http::Handler open_;
};

/// The server, and another one for gRPC where that has a port of its own. Both answer both.
struct Servers {
    http::Server main;
    std::optional<http::Server> grpc;
    Servers(const ServeRequest& request, const http::Handler& handler) : main(options(request, request.port), handler) {
        if (request.grpc_port != 0) grpc.emplace(options(request, request.grpc_port), handler);
    }
    static http::ServerOptions options(const ServeRequest& request, int64_t port) {
        return {.host = request.host,
                .port = static_cast<int>(port),
                .certificate = request.tls_cert,
                .key = request.tls_key,
                .takes_pieces = serve::Service::takes_pieces};
    }
};

/// Of what the base's name means: the model, or the adapter that is always on it.
double decision_temperature_of(const config::ModelOptions& model) {
    const auto found = formats::read_decision_calibration(
        formats::resolve_model_path(model.adapter_name_or_path.value_or(model.path)));
    if (!found) return 1;
    log::info(formats::decision_calibration_file, ": decisions at temperature ", found->temperature);
    return found->temperature;
}

/// Nothing reaches the service once it ends, however it does.
struct ServerEnd {
    Servers& servers;
    ~ServerEnd() {
        const auto deadline = std::chrono::steady_clock::now() + last_bytes;
        servers.main.drain();
        if (servers.grpc) servers.grpc->stop(deadline);
        servers.main.stop(deadline);
    }
};

std::string host_in_url(const std::string& host) {
    return host.find(':') == std::string::npos ? host : cat("[", host, "]");
}

std::string name_of_run(const std::string& folder) {
    const std::filesystem::path run = std::filesystem::absolute(folder).lexically_normal();
    return (run.has_filename() ? run : run.parent_path()).filename().string();
}

void load_named(serve::AdapterSet& adapters, const engine_api::NamedFolders& named,
                const serve::AdapterSet::BetweenPasses& between_passes) {
    try {
        for (const auto& [name, folder] : named.folders)
            adapters.load(name, formats::resolve_model_path(folder).string(), between_passes);
    } catch (const openai::ApiError& refused) {
        throw Error("adapter.not-together", refused.what());
    }
}

/// By the content that answers depend on, but for adapters that requests name.
std::string fingerprint_of(const session::OpenedModel& opened, const config::ModelOptions& model) {
    ContentHash content;
    content.add(formats::base_mark(*opened.file));
    if (const auto& adapter = model.adapter_name_or_path)
        content.add(read_file(formats::resolve_model_path(*adapter) / "adapter_model.safetensors"));
    return cat("fp_", content.hex().substr(0, 16));
}

std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

void run_serve(const config::LoadedConfig& given, const GenerateRequest& answers, const ServeRequest& request) {
    const config::LoadedConfig loaded = session::with_base(given, answers.adapters);
    const session::OpenedModel opened = session::open_model(loaded.config);
    const spec::ModelSpec& spec = opened.file->spec;
    const tokenizer::Tokenizer tokenizer = opened.tokenizer();
    const session::PromptEncoder encoder(tokenizer, loaded.config.data, answers.rows);
    const std::vector<std::string> keys = read_keys(request.api_key_file);
    const weights::AdapterSlots slots =
        slots_for(answers, request, spec, loaded.config.model.adapter_name_or_path.has_value());
    const session::Sight sight(opened, loaded.config.data.image_max_pixels);
    const ServedSizes sizes = served_sizes(loaded, answers, spec, sight);
    Gate gate;
    Servers servers(request, gate.handler());
    const session::LoadedModel model = session::load_for_inference(
        loaded, opened, sizes.pass_tokens, sizes.rows + sizes.prefill_rows, sizes.pass_tokens,
        /*fewest_tokens=*/1, sizes.cache, {}, slots,
        {sizes.patches, sizes.patches > 0 ? sight.image_room(sizes.pass_tokens, sizes.rows, /*images=*/0) : 0});

    const std::string name = request.served_model_name.empty() ? loaded.config.model.path : request.served_model_name;
    serve::Metrics metrics(name);
    install_interrupt_handlers("Draining");
    serve::Engine engine(*model.ctx, *model.model,
                         {.decoder = decoder_options(*model.ctx, loaded.config, opened, sizes.rows),
                          .most_waiting = request.max_queue,
                          .most_adapters = slots.count,
                          .drain_delay = milliseconds(request.drain_delay),
                          .shutdown_timeout = milliseconds(request.shutdown_timeout),
                          .stops = [] { return interrupt_requested() != 0; }},
                         metrics);
    serve::AdapterSet adapters(*model.model, opened.file, slots, loaded.config.model.path, opened.rope_scaling);
    const auto between_passes = [&engine](std::function<void()> work) { engine.between_passes(std::move(work)); };
    load_named(adapters, answers.adapters, between_passes);
    log::info("chat template ", encoder.chat_template().name(),
              encoder.guessed() ? " is a guess: the model has none (--template NAME)" : "");
    if (keys.empty() && !is_loopback(request.host))
        log::warning("anybody who reaches ", request.host, " may ask: --api_key_file FILE asks for keys");
    serve::Service service(engine, adapters, metrics, tokenizer, encoder.chat_template(),
                           {.model = name,
                            .keys = keys,
                            .local_names_only = keys.empty() && is_loopback(request.host),
                            .accept_unknown_fields = request.accept_unknown_fields,
                            .may_load_adapters = !keys.empty() || is_loopback(request.host),
                            .adapter_root = request.adapter_root,
                            .fingerprint = fingerprint_of(opened, loaded.config.model),
                            .vocab_size = spec.vocab_size,
                            .stop_ids = session::stop_ids(tokenizer, spec),
                            .folder = formats::resolve_model_path(loaded.config.model.path).string(),
                            .decision_temperature = decision_temperature_of(loaded.config.model),
                            .sight = sight});
    std::optional<serve::RunWatcher> watcher;
    if (!request.watch.empty())
        watcher.emplace(request.watch, [&, run = name_of_run(request.watch)](const std::string& folder) {
            adapters.load(run, folder, between_passes);
        });
    engine.record_passes();
    const ServerEnd end{servers};
    gate.open(service.handler());
    log::info("listening on ", request.tls_cert.empty() ? "http" : "https", "://", host_in_url(request.host), ":",
              servers.main.port());
    if (servers.grpc) log::info("listening for gRPC on ", host_in_url(request.host), ":", servers.grpc->port());
    engine.run();
    service.finish();
}

}  // namespace unsloth::commands
