#include "unsloth/serve/watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/checkpoint_folder.h"

namespace unsloth::serve {
namespace {

namespace fs = std::filesystem;

constexpr int looks_again_ms = 10'000;  // network file systems tell of no change

bool has_adapter(const fs::path& folder) {
    std::error_code failed;
    return fs::exists(folder / "adapter_config.json", failed) &&
           fs::exists(folder / "adapter_model.safetensors", failed);
}

fs::file_time_type written_at(const fs::path& folder) {
    std::error_code failed;
    return fs::last_write_time(folder / "adapter_model.safetensors", failed);
}

}  // namespace

RunWatcher::RunWatcher(fs::path run, Load load) : run_(std::move(run)), load_(std::move(load)) {
    changes_ = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    ends_ = ::eventfd(0, EFD_CLOEXEC);
    const bool watches = changes_ >= 0 && ends_ >= 0 &&
                         ::inotify_add_watch(changes_, run_.c_str(), IN_MOVED_TO | IN_CREATE | IN_CLOSE_WRITE) >= 0;
    if (!watches) {
        const std::string why = std::strerror(errno);
        ::close(changes_);
        ::close(ends_);
        throw Error("disk.failed", cat("--watch ", run_.string(), ": the folder cannot be watched: ", why),
                    "Name the output folder of a run.");
    }
    thread_ = std::thread([this] { watch(); });
}

RunWatcher::~RunWatcher() {
    const uint64_t one = 1;
    (void)!::write(ends_, &one, sizeof one);
    thread_.join();
    ::close(changes_);
    ::close(ends_);
}

void RunWatcher::watch() {
    while (true) {
        look();
        pollfd both[] = {{changes_, POLLIN, 0}, {ends_, POLLIN, 0}};
        (void)::poll(both, 2, looks_again_ms);
        if ((both[1].revents & POLLIN) != 0) return;
        char events[4096];
        while (::read(changes_, events, sizeof events) > 0) {
        }
    }
}

/// The run's result, if it is newer than its checkpoints, or the newest of these.
void RunWatcher::look() {
    fs::path newest;
    for (const formats::CheckpointFolder& checkpoint : formats::list_checkpoints(run_)) {
        if (!has_adapter(checkpoint.path)) continue;
        newest = checkpoint.path;
        break;
    }
    if (has_adapter(run_) && (newest.empty() || written_at(run_) > written_at(newest))) newest = run_;
    if (newest.empty()) return;
    const std::string found = cat(newest.string(), " ", written_at(newest).time_since_epoch().count());
    if (found == loaded_) return;
    try {
        load_(newest.string());
        loaded_ = found;
    } catch (
        const std::exception& failure) {  // a checkpoint may be removed, or a slot be in use: the next look tries again
        log::warning("--watch: ", newest.string(), " is not loaded: ", failure.what());
    }
}

}  // namespace unsloth::serve
