// Whether this machine's GPUs can sum gradients together, and how fast: `bench comm`, started as a run's ranks would
// be.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <sstream>

#include <nlohmann/json.hpp>

#include "app/doctor/findings.h"
#include "app/launch/environment.h"
#include "app/launch/process.h"
#include "app/machine/gpus.h"
#include "app/machine/nvml.h"
#include "unsloth/core/error.h"
#include "unsloth/core/host.h"

namespace unsloth::app {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds patience(90);

struct Ended {
    int status = -1;  ///< as waitpid gives it
    bool in_time = false;
    std::string out, err;
};

/// Takes what is there, and closes at the stream's end.
void take(Descriptor& from, std::string& to) {
    std::array<char, 4096> piece;
    const ssize_t got = ::read(from.get(), piece.data(), piece.size());
    if (got > 0) to.append(piece.data(), static_cast<std::size_t>(got));
    if (got == 0) from.close();
}

/// Runs a program to its end, or kills it and all that it started (launch's ranks end with their launcher) when its
/// time is over.
Ended run_to_end(const Program& program) {
    sigset_t none;
    sigemptyset(&none);
    RunningProcess process = start_process(program, Output::piped, none);
    Ended ended;
    const auto give_up = Clock::now() + patience;
    while (process.out.open() || process.err.open()) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(give_up - Clock::now());
        if (left.count() <= 0) break;
        std::array<pollfd, 2> waits{pollfd{process.out.get(), POLLIN, 0}, pollfd{process.err.get(), POLLIN, 0}};
        ::poll(waits.data(), waits.size(), static_cast<int>(left.count()));
        if (waits[0].revents != 0) take(process.out, ended.out);
        if (waits[1].revents != 0) take(process.err, ended.err);
    }
    ended.in_time = !process.out.open() && !process.err.open();
    if (!ended.in_time) ::kill(process.pid, SIGKILL);
    ::waitpid(process.pid, &ended.status, 0);
    return ended;
}

/// The last line that says what went wrong.
std::string reason(const std::string& text) {
    std::istringstream lines(text);
    std::string last;
    for (std::string line; std::getline(lines, line);)
        if (line.find("rror") != std::string::npos || (last.empty() && !line.empty())) last = line;
    return last;
}

}  // namespace

Finding judge_sums(const std::string& printed, bool nvlink) {
    double fastest = 0, least_us = 0;
    int ranks = 0;
    int64_t bytes = 0;
    std::istringstream lines(printed);
    for (std::string text; std::getline(lines, text);) {
        const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
        if (!line.is_object() || line.value("bench", "") != "comm") continue;
        if (least_us == 0) least_us = 1000 * line["ms"].get<double>();
        ranks = line["ranks"].get<int>();
        if (const double bus = line["bus_gb_per_second"].get<double>(); bus > fastest) {
            fastest = bus;
            bytes = line["bytes"].get<int64_t>();
        }
    }
    if (ranks == 0)
        return {Verdict::broken, "sums of all GPUs", "the ranks ended without a figure",
                "Run unsloth-train launch bench comm to see what they say."};
    char text[160];
    std::snprintf(text, sizeof text, "%d GPUs: %.1f GB/s of bus bandwidth (%lld MiB), %.0f us at least", ranks, fastest,
                  static_cast<long long>(bytes >> 20), least_us);
    Finding finding{Verdict::ok, "sums of all GPUs", text, ""};
    const double expected =
        nvlink ? 50 : 5;  // what the slowest NVLink generation in use, and PCIe 3 through host memory, exceed
    if (fastest < expected) {
        finding.verdict = Verdict::warn;
        finding.advice = nvlink
                             ? "NVLink carries more: look for NCCL_P2P_DISABLE and NCCL_P2P_LEVEL in the environment, "
                               "and at nvidia-smi nvlink --status."
                             : "The GPUs meet through the network stack: look for NCCL_SHM_DISABLE and "
                               "NCCL_P2P_DISABLE, and at the size of /dev/shm (containers: --ipc=host or --shm-size).";
    }
    return finding;
}

std::vector<Finding> check_sums(const config::Config& config) {
    const NvmlReport report = ask_nvml(true);
    const auto count = visible_gpus(gpus_of(report)).size();
    if (count < 2 || config.hardware.device == "cpu")
        return {{Verdict::ok, "sums of all GPUs", cat(count, " GPU(s): nothing to sum"), ""}};
    bool nvlink = !report.links.empty();
    for (std::size_t i = 0; i < report.links.size(); ++i)
        for (std::size_t j = 0; j < report.links[i].size(); ++j)
            nvlink = nvlink && (i == j || report.links[i][j] == "NVLink");
    const std::string self = own_executable();
    const Program program{self,
                          {self, "launch", "--nproc_per_node", std::to_string(count), "--prefix", "", "bench", "comm",
                           "--json", "--device", "cuda", "--ddp_timeout", "60"},
                          own_environment()};
    const Ended ended = run_to_end(program);
    if (!ended.in_time)
        return {{Verdict::broken, "sums of all GPUs", cat("not done after ", patience.count(), " s"),
                 "The GPUs' peer access hangs: IOMMU or ACS on the PCIe bridges, or a container without --ipc=host. "
                 "NCCL_DEBUG=INFO unsloth-train launch bench comm says where."}};
    if (!WIFEXITED(ended.status) || WEXITSTATUS(ended.status) != 0)
        return {{Verdict::broken, "sums of all GPUs", reason(ended.err),
                 "Training on several GPUs will fail so, too; unsloth-train launch bench comm repeats it."}};
    return {judge_sums(ended.out, nvlink)};
}

}  // namespace unsloth::app
