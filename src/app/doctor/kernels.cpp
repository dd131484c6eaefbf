// Whether the devices compute what they should, and what they are like while they do: the engine's self-test, with
// NVML asked meanwhile.

#include "app/doctor/findings.h"
#include "app/engine_loader.h"
#include "app/machine/gpu_watch.h"
#include "unsloth/core/error.h"
#include "unsloth/core/text.h"

namespace unsloth::app {
namespace {

constexpr double seconds_each = 2;

Finding peers(const std::vector<engine_api::DeviceReport>& reports) {
    Finding finding{Verdict::ok, "peer access", "", ""};
    for (std::size_t i = 0; i < reports.size(); ++i) {
        finding.value += cat(i == 0 ? "" : "\n", "GPU ", i, ":");
        for (std::size_t j = 0; j < reports[i].peers.size(); ++j) {
            finding.value += i == j ? " X" : reports[i].peers[j] ? " yes" : " no";
            if (!reports[i].peers[j]) finding.verdict = Verdict::warn;
        }
    }
    if (finding.verdict == Verdict::warn)
        finding.advice =
            "GPUs without it exchange through host memory: slower. Virtual machines and some boards forbid it.";
    return finding;
}

}  // namespace

std::vector<Finding> judge_device(const engine_api::DeviceReport& report, const std::string& label) {
    if (!report.problem.empty())
        return {{Verdict::broken, label, report.problem,
                 "The kernels of this build do not run on it; see the driver's version and the architectures that "
                 "--version names."}};
    Finding kernels{Verdict::ok, label, cat(report.name, "\n", report.rounds, " rounds of "), ""};
    std::string wrong;
    for (std::size_t i = 0; i < report.operators.size(); ++i) {
        const auto& [name, difference] = report.operators[i];
        kernels.value += cat(i == 0 ? "" : ", ", name);
        if (difference > 1)
            wrong +=
                cat(wrong.empty() ? "" : ", ", name, " (", three_digits(difference), " times what rounding explains)");
    }
    kernels.value += wrong.empty() ? ": right" : "; WRONG: " + wrong;
    if (!wrong.empty()) {
        kernels.verdict = Verdict::broken;
        kernels.advice =
            "It computes wrongly: faulty memory or hardware, an overclocked card, or a damaged build. Training on it "
            "learns nonsense.";
    }
    std::vector<Finding> findings{kernels};
    if (!report.pinned_problem.empty())
        findings.push_back({Verdict::warn, "pinned memory", report.pinned_problem,
                            "Checkpoints and offloading need it: give the container more memory (docker --memory, "
                            "--ulimit memlock=-1)."});
    else if (report.pinned_bytes > 0)
        findings.push_back({Verdict::ok, "pinned memory",
                            cat(human_size(report.pinned_bytes), " granted; to the GPU ",
                                three_digits(report.to_device), " GB/s, back ", three_digits(report.to_host), " GB/s"),
                            ""});
    return findings;
}

Finding judge_health(const NvmlGpu& gpu, const std::string& label) {
    Finding finding{Verdict::ok, label, "", ""};
    finding.value = cat("under load ", gpu.celsius, " C, ", gpu.watts, " of ", gpu.watts_limit, " W, ", gpu.clock_mhz,
                        " of ", gpu.clock_limit_mhz, " MHz");
    struct Reason {
        uint64_t bit;
        const char* words;
        bool odd;  ///< not what every healthy card does under load
    };
    constexpr Reason reasons[] = {{0x4, "power cap", false},       {0x8, "hardware slowdown", true},
                                  {0x20, "heat (software)", true}, {0x40, "heat (hardware)", true},
                                  {0x80, "power brake", true},     {0x2, "clocks set by an administrator", true}};
    for (const Reason& reason : reasons)
        if ((gpu.throttle & reason.bit) != 0) {
            finding.value += cat(", slowed by ", reason.words);
            if (!reason.odd) continue;
            finding.verdict = Verdict::warn;
            finding.advice =
                "Slower than the card can be: look at cooling, power supply and nvidia-smi -q -d PERFORMANCE.";
        }
    if (gpu.watts_limit < gpu.watts_usual) {
        finding.value += cat(", its power limited to ", gpu.watts_limit, " of ", gpu.watts_usual, " W");
        finding.verdict = Verdict::warn;
        finding.advice = "Slower than the card can be: somebody set its power limit (nvidia-smi -q -d POWER).";
    }
    if (!gpu.ecc) {
        finding.value += "\nECC off";
        return finding;
    }
    finding.value += cat("\nECC on, ", gpu.ecc_uncorrected, " uncorrected errors since the driver was loaded, ",
                         gpu.ecc_uncorrected_ever, " ever",
                         gpu.rows_remapped > 0 ? cat(", ", gpu.rows_remapped, " rows remapped") : "");
    if (gpu.ecc_uncorrected > 0 || gpu.remap_pending) {
        finding.verdict = Verdict::warn;
        finding.advice =
            "Its memory had errors that could not be corrected: reset the card (nvidia-smi -r) or reboot, so that it "
            "leaves those rows out.";
    }
    if (gpu.remap_failed) {
        finding.verdict = Verdict::broken;
        finding.advice = "Its memory has bad rows that cannot be remapped any more: have it replaced.";
    }
    return finding;
}

std::vector<Finding> check_kernels(const config::Config& config) {
    GpuWatch watch(std::chrono::milliseconds(200));
    std::vector<engine_api::DeviceReport> reports;
    try {
        reports = load_engine()->examine_devices(seconds_each);
    } catch (const Error&) {  // said by check_libraries
        return {{Verdict::ok, "self-test", "no engine to test with", ""}};
    }
    std::vector<Finding> findings;
    for (std::size_t i = 0; i < reports.size(); ++i) {
        const bool gpu = !reports[i].peers.empty() || reports.size() > 1;
        for (Finding& finding : judge_device(reports[i], gpu ? cat("self-test GPU ", i) : "self-test"))
            findings.push_back(std::move(finding));
    }
    if (reports.size() > 1) findings.push_back(peers(reports));
    const std::vector<NvmlGpu> gpus = watch.end();
    if (config.hardware.device != "cpu")
        for (std::size_t i = 0; i < gpus.size(); ++i) findings.push_back(judge_health(gpus[i], cat("health GPU ", i)));
    return findings;
}

}  // namespace unsloth::app
