#include <dlfcn.h>

#include <nlohmann/json.hpp>

#include "report/prometheus_library.h"
#include "unsloth/core/error.h"
#include "unsloth/core/gpu_monitor.h"
#include "unsloth/core/version.h"
#include "unsloth/report/run.h"

namespace unsloth::report {
namespace {

using Json = nlohmann::ordered_json;

struct Library {
    decltype(&unsloth_metrics_open) open = nullptr;
    decltype(&unsloth_metrics_set) set = nullptr;
    decltype(&unsloth_metrics_close) close = nullptr;
};

Library open_library() {
    Library library;
    Dl_info own{};
    ::dladdr(reinterpret_cast<const void*>(&make_prometheus_sink), &own);
    const auto path = std::filesystem::path(own.dli_fname).parent_path() / "libunsloth_prometheus.so";
    void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto& function, const char* name) {
        if (handle != nullptr)
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
        if (function == nullptr)
            throw Error("library.cannot-load", cat("training.report_to prometheus: ", ::dlerror()),
                        "The endpoint is built where prometheus-cpp is installed (scripts/setup.sh).");
    };
    find(library.open, "unsloth_metrics_open");
    find(library.set, "unsloth_metrics_set");
    find(library.close, "unsloth_metrics_close");
    return library;
}

struct Exported {
    const char *key, *name, *help;
    double factor;
};
constexpr Exported of_steps[] = {
    {"step", "unsloth_train_step", "Optimizer steps done.", 1},
    {"epoch", "unsloth_train_epoch", "Passes over the data.", 1},
    {"loss", "unsloth_train_loss", "Mean loss since the last row of metrics.", 1},
    {"grad_norm", "unsloth_train_gradient_norm", "Norm of all gradients before clipping.", 1},
    {"learning_rate", "unsloth_train_learning_rate", "Learning rate of the last step.", 1},
    {"tokens_per_second", "unsloth_train_tokens_per_second",
     "Input tokens of the last step, over all ranks, by its time.", 1},
    {"step_ms", "unsloth_train_step_seconds", "Time of the last step.", 1e-3},
    {"mfu", "unsloth_train_model_flops_utilization_ratio",
     "Floating-point operations of rank 0's rows by definition, by the step's time and the dense bf16 rate of its GPU.",
     1},
    {"router_load_max", "unsloth_train_router_load_max_ratio",
     "Tokens of the fullest expert of any layer in the last step, over the mean of its layer's experts.", 1},
    {"dead_experts", "unsloth_train_dead_experts", "Experts of all layers that no token of the last step chose.", 1},
    {"skipped_steps", "unsloth_train_skipped_steps", "Steps of this process whose update was skipped as a spike.", 1},
    {"memory_gib", "unsloth_train_memory_bytes", "Peak of the allocator on rank 0.", 1024.0 * 1024 * 1024}};

class PrometheusSink final : public RowSink {
  public:
    PrometheusSink(const config::Config& config, std::filesystem::path folder, const std::string& gpu)
        : library_(open_library()), folder_(std::move(folder)), gpu_(gpu) {
        char reason[256] = "";
        const std::string address = cat(config.logging.metrics_address, ":", config.logging.metrics_port);
        metrics_ = library_.open(address.c_str(), reason, sizeof reason);
        if (metrics_ == nullptr)
            throw Error("network.port", cat("cannot serve metrics on ", address, ": ", reason),
                        "logging.metrics_port and metrics_address say where; another run may have the port.");
        library_.set(metrics_, "unsloth_train_info", "1, with the version of the program.", 0, "version", version, 1);
    }
    ~PrometheusSink() override { library_.close(metrics_); }
    PrometheusSink(const PrometheusSink&) = delete;
    PrometheusSink& operator=(const PrometheusSink&) = delete;

    void row(const Json& row) override {
        if (row.contains("event")) return;
        if (row.contains("eval_tokens"))
            return set("unsloth_train_eval_loss", "Loss of the last evaluation.",
                       row.value("eval_loss", Json(nullptr)));
        for (const Exported& one : of_steps) set(one.name, one.help, row.value(one.key, Json(nullptr)), one.factor);
        const Json times = row.value("rank_work_ms", Json::array());
        for (std::size_t rank = 0; rank < times.size(); ++rank)
            if (times[rank].is_number())
                library_.set(metrics_, "unsloth_train_rank_work_seconds",
                             "How long a rank worked at a step before it waited for the others: the longest is waited "
                             "for.",
                             0, "rank", std::to_string(rank).c_str(), 1e-3 * times[rank].get<double>());
        tokens_ += row.value("tokens", int64_t{0});
        trained_ += row.value("trained_tokens", int64_t{0});
        count("unsloth_train_tokens_total", "Input tokens of the logged steps of this process, over all ranks.",
              tokens_);
        count("unsloth_train_trained_tokens_total", "Targets among them.", trained_);
        if (!plan_reported_) tell_plan();
        if (const auto sample = gpu_.sample()) tell_gpu(*sample);
    }

  private:
    void set(const char* name, const char* help, const Json& value, double factor = 1) {
        if (value.is_number()) library_.set(metrics_, name, help, 0, nullptr, nullptr, factor * value.get<double>());
    }
    void count(const char* name, const char* help, int64_t value) {
        library_.set(metrics_, name, help, 1, nullptr, nullptr, static_cast<double>(value));
    }
    void tell_gpu(const GpuSample& gpu) {
        set("unsloth_train_gpu_utilization_ratio",
            "Share of the driver's last sampling period in which a kernel ran on rank 0's GPU.", gpu.utilization);
        set("unsloth_train_gpu_memory_used_bytes", "Memory of that GPU that is taken, by all processes.",
            gpu.memory_used);
        set("unsloth_train_gpu_memory_total_bytes", "Memory of that GPU.", gpu.memory_total);
        if (gpu.watts > 0) set("unsloth_train_gpu_power_watts", "What that GPU draws.", gpu.watts);
        if (gpu.celsius > 0) set("unsloth_train_gpu_temperature_celsius", "Of that GPU's chip.", gpu.celsius);
        constexpr std::pair<const char*, uint64_t> reasons[] = {
            {"power_cap", 0x4}, {"heat", 0x20 | 0x40}, {"power_brake", 0x80}};
        for (const auto& [reason, bits] : reasons)
            library_.set(metrics_, "unsloth_train_gpu_throttled", "1 while that GPU's clocks are held down, by reason.",
                         0, "reason", reason, (gpu.throttle_reasons & bits) != 0 ? 1 : 0);
    }
    void tell_plan() {
        plan_reported_ = true;
        const RunFacts facts = read_run_facts(folder_);
        if (facts.total_steps > 0)
            set("unsloth_train_steps_planned", "Optimizer steps of the whole run.", facts.total_steps);
        if (facts.planned_bytes > 0)
            set("unsloth_train_planned_memory_bytes", "What the memory plan gives the device.", facts.planned_bytes);
    }

    Library library_;
    std::filesystem::path folder_;
    GpuMonitor gpu_;
    UnslothMetrics* metrics_ = nullptr;
    int64_t tokens_ = 0, trained_ = 0;
    bool plan_reported_ = false;
};

}  // namespace

std::unique_ptr<RowSink> make_prometheus_sink(const config::Config& config, const std::filesystem::path& folder,
                                              const std::string& gpu) {
    return std::make_unique<PrometheusSink>(config, folder, gpu);
}

}  // namespace unsloth::report
