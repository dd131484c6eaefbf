#include "unsloth/core/lost_map.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/utf8.h"

namespace unsloth {

/// Entries are used again but never freed, because the handler may look at any time.
struct Watched::Entry {
    std::atomic<bool> alive{false};
    std::atomic<uintptr_t> begin{0};
    std::atomic<std::size_t> size{0};  ///< 0: to be removed
    Entry* next = nullptr;             ///< set before the entry can be found
    char path[PATH_MAX];
    char shown[1024];  ///< printable(path)
};

namespace {

std::mutex change;  ///< never taken by the handler
std::atomic<Watched::Entry*> entries{nullptr};

constexpr ErrorId lost = "disk.file-lost";
constexpr const char *shorter = " has become shorter while it was read",
                     *unreadable = " cannot be read any more (a fault of its disk or network)";

void copy(char* to, std::size_t size, const std::string& text) {
    to[text.copy(to, size - 1)] = '\0';
}

const Watched::Entry* map_at(const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (const Watched::Entry* e = entries.load(); e != nullptr; e = e->next)
        if (e->alive && at >= e->begin && at - e->begin < e->size) return e;
    return nullptr;
}

const char* reason(const Watched::Entry& map) {
    struct stat status{};
    const bool whole = ::stat(map.path, &status) == 0 && static_cast<std::size_t>(status.st_size) >= map.size;
    return whole ? unreadable : shorter;
}

// From here to on_bus_error: only what is safe in a signal handler.

/// With what is in it, as far as `depth` folders down.
void remove_at(int folder, const char* name, int depth) {
    if (::unlinkat(folder, name, 0) == 0 || depth == 0) return;
    const int fd = ::openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    struct Item {  // as getdents64(2) writes it
        uint64_t inode;
        int64_t offset;
        uint16_t size;
        uint8_t type;
        char name[1];
    };
    alignas(Item) char block[2048];
    for (long got; (got = ::syscall(SYS_getdents64, fd, block, sizeof block)) > 0;)
        for (long at = 0; at < got;) {
            const auto* item = reinterpret_cast<const Item*>(block + at);
            const char* inner = reinterpret_cast<const char*>(item) + offsetof(Item, name);
            if (std::strcmp(inner, ".") != 0 && std::strcmp(inner, "..") != 0) remove_at(fd, inner, depth - 1);
            at += item->size;
        }
    ::close(fd);
    ::unlinkat(folder, name, AT_REMOVEDIR);
}

void say(std::string_view text) {
    [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

void on_bus_error(int, siginfo_t* info, void*) {
    const Watched::Entry* const map = info->si_code == BUS_ADRERR ? map_at(info->si_addr) : nullptr;
    if (map == nullptr) {  // not in a mapped file: it ends the process once this returns
        ::signal(SIGBUS, SIG_DFL);
        ::raise(SIGBUS);
        return;
    }
    static std::atomic_flag taken = ATOMIC_FLAG_INIT;
    while (taken.test_and_set()) ::pause();  // another thread ends the process
    constexpr int deepest = 8;
    for (const Watched::Entry* e = entries.load(); e != nullptr; e = e->next)
        if (e->alive && e->size == 0) remove_at(AT_FDCWD, e->path, deepest);
    for (const std::string_view text : {std::string_view("unsloth-train: error["), lost.name(), std::string_view("]: "),
                                        std::string_view(map->shown), std::string_view(reason(*map)),
                                        std::string_view("\n  What was saved before is whole. Restore the file, then "
                                                         "start again.\n")})
        say(text);
    ::_exit(static_cast<int>(ErrorKind::runtime));
}

}  // namespace

void end_cleanly_on_lost_maps() {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    UNSLOTH_CHECK(::sigaction(SIGBUS, &action, nullptr) == 0, "sigaction(SIGBUS)");
}

Watched::Watched(const std::filesystem::path& path, std::span<const std::byte> map) {
    const std::lock_guard lock(change);
    for (entry_ = entries; entry_ != nullptr && entry_->alive;) entry_ = entry_->next;
    const bool fresh = entry_ == nullptr;
    if (fresh) entry_ = new Entry;
    copy(entry_->path, sizeof entry_->path, std::filesystem::absolute(path).string());
    copy(entry_->shown, sizeof entry_->shown, printable(path.string()));
    entry_->begin = reinterpret_cast<uintptr_t>(map.data());
    entry_->size = map.size();
    entry_->alive = true;
    if (!fresh) return;
    entry_->next = entries;
    entries = entry_;
}

Watched::Watched(Watched&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}

Watched& Watched::operator=(Watched&& other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
}

Watched::~Watched() {
    if (entry_ == nullptr) return;
    const std::lock_guard lock(change);
    entry_->alive = false;
}

void refuse_lost_map(const void* data) {
    if (const Watched::Entry* map = map_at(data); map != nullptr)
        throw Error(lost, cat(map->shown, reason(*map)),
                    "What was saved before is whole. Restore the file, then start again.");
}

}  // namespace unsloth
