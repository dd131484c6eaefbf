// `unsloth-train launch`: a process a GPU on this machine, all of which train one model.
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "app/commands.h"
#include "app/launch/environment.h"
#include "app/launch/pinning.h"
#include "app/launch/process.h"
#include "app/launch/supervisor.h"
#include "app/machine/gpus.h"
#include "app/machine/limits.h"
#include "app/upload.h"
#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"

namespace unsloth::app {
namespace {

constexpr int port_of_several_machines = 29500;  // torchrun's

struct RankPlan {
    Place place;
    Pin pin;
};

/// Of this machine, and how many of its GPUs the ranks may take; refuses what the ranks would refuse one by one.
std::vector<Gpu> usable_gpus(const LaunchRequest& request) {
    if (request.device == "cpu") return {};
    const GpuInventory inventory = find_gpus();
    std::vector<Gpu> gpus = visible_gpus(inventory.gpus);
    log::debug("launch: ", inventory.gpus.size(), " GPUs through ",
               inventory.found_through.empty() ? "no source" : inventory.found_through, ", ", gpus.size(),
               " of them visible to the ranks");
    return gpus;
}

int count_processes(const LaunchRequest& request, const std::vector<Gpu>& gpus) {
    const int count = static_cast<int>(gpus.size());
    if (request.nproc_per_node == "auto") {
        if (count > 0) return count;
        throw Error("device.needs-gpu",
                    request.device == "cpu"
                        ? "with hardware.device cpu there is no GPU to count processes by"
                        : "this machine shows no GPU (or CUDA_VISIBLE_DEVICES hides them) to count processes by",
                    "Write --nproc_per_node N; unsloth-train doctor says more about GPUs.");
    }
    const int processes = std::stoi(request.nproc_per_node);
    const bool need_gpus =
        request.device.starts_with("cuda") || (request.device == "auto" && request.program.empty() && count > 0);
    if (need_gpus && processes > count)
        throw Error(
            "device.too-few-gpus",
            cat("--nproc_per_node ", processes, ": this machine shows ", count, " GPU(s), and each process takes one"),
            "Start fewer, or see what CUDA_VISIBLE_DEVICES hides; --device cpu trains without GPUs.");
    if (request.device.starts_with("cuda:") && processes > 1)
        throw Error(
            "device.shared-by-ranks",
            cat("hardware.device ", request.device, " with ", processes, " processes: all would take the same GPU"),
            "Write --device cuda, and choose GPUs by CUDA_VISIBLE_DEVICES.");
    return processes;
}

/// Fills in each rank's share of the CPUs: those of its node go to the ranks pinned there, no more than the quota's to
/// all.
void share_cpus(std::vector<RankPlan>& plans) {
    const int ranks = static_cast<int>(plans.size()), all = usable_cpus();
    for (RankPlan& plan : plans) {
        int share = all / ranks;
        if (plan.pin.node >= 0) {
            const auto neighbours = std::count_if(
                plans.begin(), plans.end(), [&](const RankPlan& other) { return other.pin.node == plan.pin.node; });
            const int own = static_cast<int>(plan.pin.cpus.size()) / static_cast<int>(neighbours);
            const bool quota = all < static_cast<int>(allowed_cpus().size());
            share = quota ? std::min(share, own) : own;
        }
        plan.place.threads = std::max(1, share);
    }
}

std::vector<RankPlan> plan_ranks(const LaunchRequest& request) {
    const std::vector<Gpu> gpus = usable_gpus(request);
    const int processes = count_processes(request, gpus);
    const CpuList allowed = allowed_cpus();
    std::vector<RankPlan> plans;
    for (int i = 0; i < processes; ++i) {
        RankPlan plan;
        plan.place.local_rank = i;
        plan.place.ranks_here = processes;
        plan.place.node = static_cast<int>(request.node_rank);
        plan.place.nodes = static_cast<int>(request.nnodes);
        if (!request.master_addr.empty()) plan.place.master_address = request.master_addr;
        plan.place.max_restarts = static_cast<int>(request.max_restarts);
        if (request.no_pin)
            plan.pin.reason = "--no_pin";
        else
            plan.pin = plan_pin(static_cast<std::size_t>(i) < gpus.size() ? gpus[static_cast<std::size_t>(i)].pci : "",
                                allowed);
        plans.push_back(std::move(plan));
    }
    share_cpus(plans);
    return plans;
}

/// 0: one that is free.
int port_for(const LaunchRequest& request) {
    if (request.master_port != 0) return static_cast<int>(request.master_port);
    return request.nnodes > 1 ? port_of_several_machines : 0;
}

Program program_of(const LaunchRequest& request) {
    Program program;
    program.path = request.program.empty() ? own_executable().string() : request.program;
    program.arguments = {program.path};
    program.arguments.insert(program.arguments.end(), request.arguments.begin(), request.arguments.end());
    return program;
}

class Launcher {
  public:
    explicit Launcher(const LaunchRequest& request)
        : request_(request),
          plans_(plan_ranks(request)),
          program_(program_of(request)),
          inherited_(own_environment()),
          secret_(request.nnodes == 1 && !has_secret(inherited_) ? make_secret() : ""),
          out_(STDOUT_FILENO),
          err_(STDERR_FILENO),
          shared_(same_file(STDOUT_FILENO, STDERR_FILENO)) {}

    int run() {
        using std::chrono::duration_cast, std::chrono::milliseconds;
        SupervisorOptions options;
        const auto length = [](double seconds) {
            return duration_cast<milliseconds>(std::chrono::duration<double>(std::min(seconds, 1e9)));
        };
        options.grace = length(request_.grace_period);
        // Within 30 s after save_grace_seconds, and a loss that is known, all is over.
        options.until_stopped = length(request_.save_grace) + milliseconds(24000);
        options.after_loss = std::min(options.after_loss, length(static_cast<double>(request_.ddp_timeout) + 2));
        for (int restarts = 0;; ++restarts) {
            Supervisor supervisor(options, inbox_, shared_ ? err_ : out_, err_);
            start_all(supervisor, restarts);
            const std::vector<RankEnd> ends = supervisor.run();
            const int code = exit_code(ends, supervisor.asked_to_stop());
            if (code != 0) tell(supervisor, ends, code);
            const bool again =
                worth_a_restart(ends, code, supervisor) && restarts < request_.max_restarts && !supervisor.left_one();
            if (again) supervisor.say(cat("restart ", restarts + 1, " of ", request_.max_restarts));
            finish_output();
            if (!again) return code;
        }
    }

  private:
    void start_all(Supervisor& supervisor, int restarts) {
        const bool own_program = request_.program.empty();
        int port = port_for(request_);
        Descriptor listening;
        if (port == 0 && own_program) {
            listening = listen_on_loopback();
            port = port_of(listening);
        } else if (port == 0) {
            port = free_port();
        }
        Pipe reports;
        if (own_program) reports = make_pipe();
        for (RankPlan& plan : plans_) {
            const bool first = plan.place.local_rank == 0;
            plan.place.master_port = port;
            plan.place.restarts = restarts;
            plan.place.secret = secret_;
            plan.place.store_fd = first ? listening.get() : -1;
            plan.place.launcher_fd = reports.write.get();
            program_.environment = rank_environment(inherited_, plan.place);
            program_.kept.clear();
            for (const int fd : {plan.place.store_fd, plan.place.launcher_fd})
                if (fd >= 0) program_.kept.push_back(fd);
            const Output output = !request_.silent ? Output::piped : first ? Output::inherited : Output::errors;
            const ScopedPin pin(plan.pin);
            try {
                RunningProcess process = start_process(program_, output, inbox_.before());
                log::debug("launch: rank ", plan.place.rank(), " is pid ", process.pid, ", port ", port,
                           ", OMP_NUM_THREADS ", plan.place.threads, " unless set; ", plan.pin.reason,
                           pin.problem().empty() ? "" : cat(" (refused: ", pin.problem(), ")"));
                supervisor.add(plan.place.rank(), std::move(process),
                               prefix_of(request_.prefix, plan.place.rank(), plan.place.local_rank), !request_.silent);
            } catch (...) {
                supervisor.kill_all();
                throw;
            }
        }
        if (own_program) supervisor.listen(std::move(reports.read));
    }

    void tell(Supervisor& supervisor, const std::vector<RankEnd>& ends, int code) const {
        const int worst = most_telling(ends);
        if (worst >= 0) {
            const int rank = ends[static_cast<std::size_t>(worst)].rank;
            const std::string unseen = supervisor.unseen(rank);
            if (!unseen.empty())
                supervisor.say(
                    cat("the last lines of rank ", rank, " on stderr:\n", unseen.substr(0, unseen.size() - 1)));
        }
        supervisor.say(cat(summary(ends, supervisor.asked_to_stop()), "; exit code ", code));
    }

    /// Not where nothing failed or the user asked to stop, and not for errors in the configuration or the input, which
    /// would occur again.
    static bool worth_a_restart(const std::vector<RankEnd>& ends, int code, const Supervisor& supervisor) {
        return most_telling(ends) >= 0 && supervisor.asked_to_stop() == 0 &&
               code != static_cast<int>(ErrorKind::usage) && code != static_cast<int>(ErrorKind::input) &&
               code != not_uploaded;
    }

    void finish_output() {
        const auto give_up = Supervisor::Clock::now() + std::chrono::seconds(2);
        out_.drain(give_up);
        err_.drain(give_up);
    }

    // First of all: the driver's library, which planning asks, starts threads, and one that does not inherit a mask
    // takes the signals that are meant for this inbox.
    SignalInbox inbox_;
    const LaunchRequest& request_;
    std::vector<RankPlan> plans_;
    Program program_;
    std::vector<std::string> inherited_;
    std::string secret_;  ///< of the run; several machines cannot agree on one that a launcher makes
    Outlet out_, err_;
    bool shared_;  ///< stdout and stderr are one file: everything goes through err_
};

}  // namespace

int run_launch(const CommandLine& line) {
    return Launcher(line.launch).run();
}

}  // namespace unsloth::app
