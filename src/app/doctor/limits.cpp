#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>

#include "app/doctor/findings.h"
#include "unsloth/core/error.h"
#include "unsloth/core/text.h"

namespace unsloth::app {
namespace {

constexpr int64_t mib = int64_t{1} << 20;

std::string limit_text(rlim_t limit, bool bytes) {
    if (limit == RLIM_INFINITY) return "unlimited";
    return bytes ? human_size(static_cast<int64_t>(limit)) : std::to_string(limit);
}

/// Below `least` (of the soft limit) it is worth a word.
Finding limit(int resource, const std::string& name, rlim_t least, bool bytes, const std::string& advice) {
    rlimit value{};
    if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &value) != 0)
        return {Verdict::warn, name, std::strerror(errno), ""};
    Finding finding{Verdict::ok, name,
                    cat(limit_text(value.rlim_cur, bytes), " (hard ", limit_text(value.rlim_max, bytes), ")"), ""};
    if (value.rlim_cur != RLIM_INFINITY && value.rlim_cur < least) {
        finding.verdict = Verdict::warn;
        finding.advice = advice;
    }
    return finding;
}

bool has_rdma() {
    std::error_code absent;
    return std::filesystem::exists("/sys/class/infiniband", absent) &&
           !std::filesystem::is_empty("/sys/class/infiniband", absent);
}

Finding shared_memory() {
    struct statvfs space{};
    if (::statvfs("/dev/shm", &space) != 0)
        return {Verdict::warn, "/dev/shm", std::strerror(errno),
                "NCCL needs it between the processes of one machine: mount a tmpfs there."};
    const auto unit = static_cast<int64_t>(space.f_frsize);
    return judge_shared_memory(static_cast<int64_t>(space.f_blocks) * unit,
                               static_cast<int64_t>(space.f_bavail) * unit);
}

}  // namespace

Finding judge_shared_memory(int64_t size, int64_t free) {
    // NCCL takes about 10 MB for each pair of ranks and channel set that has no direct way between the GPUs.
    constexpr int64_t wanted = 512 * mib;
    Finding finding{Verdict::ok, "/dev/shm", cat(human_size(free), " free of ", human_size(size)), ""};
    if (free < wanted) {
        finding.verdict = Verdict::warn;
        finding.advice =
            "Small for NCCL between GPUs without NVLink or peer access: docker run --shm-size=8g (or --ipc=host), in "
            "Kubernetes an emptyDir "
            "of medium Memory at /dev/shm.";
    }
    return finding;
}

std::vector<Finding> check_limits(const config::Config&) {
    return {
        shared_memory(),
        limit(RLIMIT_NOFILE, "open files", 4096, false,
              "Many data files, ranks and sockets need more: ulimit -n 65536."),
        limit(RLIMIT_MEMLOCK, "locked memory", has_rdma() ? RLIM_INFINITY - 1 : 0, true,
              "This machine has InfiniBand or RoCE, which register memory that counts here: ulimit -l unlimited "
              "(docker: --ulimit memlock=-1)."),
        limit(RLIMIT_NPROC, "processes", 4096, false, "Threads count too, and each rank has dozens: ulimit -u."),
        limit(RLIMIT_AS, "address space", RLIM_INFINITY - 1, true,
              "CUDA reserves far more address space than memory: ulimit -v unlimited."),
        limit(RLIMIT_FSIZE, "file size", RLIM_INFINITY - 1, true, "A checkpoint may be larger: ulimit -f unlimited."),
        limit(RLIMIT_STACK, "stack", static_cast<rlim_t>(8 * mib), true, "ulimit -s 8192."),
    };
}

}  // namespace unsloth::app
