#include <algorithm>
#include <map>
#include <string_view>

#include "app/doctor/findings.h"
#include "app/launch/environment.h"
#include "unsloth/core/error.h"

namespace unsloth::app {
namespace {

constexpr const char* stems[] = {"NCCL_",
                                 "CUDA_",
                                 "CUBLAS",
                                 "CUDNN_",
                                 "TORCH",
                                 "PYTORCH_",
                                 "OMP_",
                                 "MKL_",
                                 "UNSLOTH_",
                                 "SLURM_JOB_ID",
                                 "SLURM_NTASKS",
                                 "SLURM_PROCID",
                                 "OMPI_COMM_WORLD_",
                                 "NVIDIA_VISIBLE_DEVICES",
                                 "LD_LIBRARY_PATH",
                                 "LD_PRELOAD",
                                 "RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "HF_HOME",
                                 "HF_HUB_CACHE",
                                 "HF_HUB_OFFLINE",
                                 "HF_ENDPOINT",
                                 "XDG_CACHE_HOME"};
constexpr const char* proxies[] = {"http_proxy", "https_proxy", "all_proxy", "no_proxy",
                                   "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"};

/// What a value does that its owner may have forgotten. `value` empty: whatever the value is.
struct Remark {
    const char *name, *value, *advice;
};
constexpr Remark remarks[] = {
    {"CUDA_LAUNCH_BLOCKING", "1", "Every kernel waits for the one before: for finding errors only, training is slow."},
    {"NCCL_P2P_DISABLE", "1", "GPUs exchange through host memory instead of directly: much slower."},
    {"NCCL_SHM_DISABLE", "1", "Ranks of one machine exchange through the network when they have no direct way."},
    {"NCCL_IB_DISABLE", "1", "Machines exchange over TCP instead of InfiniBand or RoCE."},
    {"NCCL_DEBUG", "TRACE", "NCCL writes a line for every call: slow."},
    {"NCCL_ALGO", "", "Takes the choice of algorithm from NCCL; an unsuited one is slow or refused."},
    {"NCCL_PROTO", "",
     "Takes the choice of protocol from NCCL; an unsuited one is slow, and LL128 can be wrong where it is not "
     "supported."},
    {"TORCH_NCCL_BLOCKING_WAIT", "1", "The host waits inside each collective."},
    {"LD_PRELOAD", "", "Something is loaded into every process."},
};

bool starts_with_any(std::string_view name, const auto& list) {
    return std::any_of(std::begin(list), std::end(list), [&](const char* stem) { return name.starts_with(stem); });
}

/// "http://user:secret@host:8080" without the secret.
std::string masked(std::string value) {
    const std::size_t at = value.rfind('@');
    if (at == std::string::npos) return value;
    const std::size_t scheme = value.find("://");
    const std::size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
    return begin <= at ? value.replace(begin, at - begin, "***") : value;
}

}  // namespace

std::vector<Finding> judge_environment(const std::vector<std::string>& variables) {
    std::map<std::string, std::string> known;
    for (const std::string& variable : variables) {
        const std::size_t equals = variable.find('=');
        if (equals == std::string::npos) continue;
        const std::string name = variable.substr(0, equals);
        const bool proxy = std::find(std::begin(proxies), std::end(proxies), name) != std::end(proxies);
        if (!proxy && !starts_with_any(name, stems)) continue;
        const std::string value = variable.substr(equals + 1);
        known[name] = name == "UNSLOTH_SECRET" && !value.empty() ? "***" : masked(value);
    }
    std::vector<Finding> findings;
    for (const auto& [name, value] : known) {
        Finding finding{Verdict::ok, name, value.empty() ? "(empty)" : value, ""};
        for (const Remark& remark : remarks)
            if (name == remark.name && (remark.value[0] == '\0' || value == remark.value)) {
                finding.verdict = Verdict::warn;
                finding.advice = remark.advice;
            }
        findings.push_back(std::move(finding));
    }
    const bool half_a_launch = known.count("RANK") != known.count("WORLD_SIZE");
    if (half_a_launch)
        findings.push_back({Verdict::warn, "launcher", "RANK or WORLD_SIZE is set without the other",
                            "A launcher's leftovers: unset RANK WORLD_SIZE."});
    if (findings.empty()) findings.push_back({Verdict::ok, "variables", "none that matter are set", ""});
    return findings;
}

std::vector<Finding> check_environment(const config::Config&) {
    return judge_environment(own_environment());
}

}  // namespace unsloth::app
