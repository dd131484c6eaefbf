#include "unsloth/memory/common_memory.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <numeric>
#include <thread>

#include "memory/host_pages.h"
#include "unsloth/core/cgroup.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/shared_segment.h"
#include "unsloth/core/text.h"

#ifdef UNSLOTH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace unsloth::memory {
namespace {

/// Pages of shared memory take longer to make than to fill, and threads that make them in one piece wait for each other
/// (1.8 GB/s by one thread, 2.8 by two, 5.1 by sixteen, on an H200's machine): only a large one, which others would
/// wait for, has several.
constexpr std::size_t pieces_ahead = 16;
constexpr int64_t bytes_a_maker = int64_t{512} << 20;

std::string name_of(const std::string& owner, const std::string& content) {
    return cat("base ", owner, " ", content);
}

/// For this thread.
void use_device([[maybe_unused]] at::Device device) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda()) (void)cudaSetDevice(device.index());
#endif
}

#ifdef UNSLOTH_CUDA
bool registers_read_only(at::Device device) {
    int supported = 0;
    if (cudaDeviceGetAttribute(&supported, cudaDevAttrHostRegisterReadOnlySupported, device.index()) != cudaSuccess)
        (void)cudaGetLastError();
    return supported != 0;
}
#endif

}  // namespace

HeldMemory::HeldMemory(std::string owner) : owner_(std::move(owner)) {
    const std::string begin = name_of(owner_, "");
    for (auto& [name, segment] : SharedSegment::held([&](const std::string& n) { return n.starts_with(begin); }))
        pieces_.emplace(name.substr(begin.size()), std::move(segment));
}

int64_t HeldMemory::bytes(const std::string& content) const {
    const auto found = pieces_.find(content);
    const auto expected = expected_.find(content);
    return std::max(found == pieces_.end() ? 0 : SharedSegment::bytes_taken(found->second),
                    expected == expected_.end() ? 0 : expected->second);
}

int64_t HeldMemory::bytes() const {
    std::set<std::string> contents;
    for (const auto& [content, piece] : pieces_) contents.insert(content);
    for (const auto& [content, expected] : expected_) contents.insert(content);
    return std::accumulate(contents.begin(), contents.end(), int64_t{0},
                           [&](int64_t sum, const std::string& content) { return sum + bytes(content); });
}

void HeldMemory::expect(const Plan& common) {
    for (const Entry& entry : common.entries()) expected_[entry.content] = entry.bytes;
}

/// A piece on its way to being filled, or read.
struct CommonMemory::Prepared {
    BufferId id;
    bool fills;
    std::future<std::string> why_not;  ///< why the piece is not shared; empty: it is
};

struct CommonMemory::Piece {
    std::unique_ptr<SharedSegment> segment;  ///< nullptr: `own`
    at::Tensor own;
    bool locked = false, filled = false;

    Piece() = default;
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;
    ~Piece() {
#ifdef UNSLOTH_CUDA
        if (locked) cudaHostUnregister(segment->data());
#endif
    }

    /// For this process' device, before it is filled here, or after somebody has; why it cannot be, or empty.
    std::string lock_pages([[maybe_unused]] int64_t bytes, at::Device device, bool fills) {
        if (device.is_cpu()) {
            if (!fills) segment->protect();
            return "";
        }
#ifdef UNSLOTH_CUDA
        const auto lock = [&](unsigned flags) {
            const cudaError_t status = cudaHostRegister(segment->data(), static_cast<std::size_t>(bytes), flags);
            (void)cudaGetLastError();
            locked = status == cudaSuccess;
            return status;
        };
        if (!fills && registers_read_only(device) && segment->protect()) {
            if (lock(cudaHostRegisterReadOnly) == cudaSuccess) return "";
            segment->protect(false);
        }
        if (const cudaError_t status = lock(cudaHostRegisterDefault); status != cudaSuccess)
            return cat("it cannot be pinned: ", cudaGetErrorString(status), "; ", limits_text(bytes));
#endif
        return "";
    }
};

CommonMemory::~CommonMemory() = default;

CommonMemory::CommonMemory(Plan plan, const std::string& owner, at::Device device, std::set<int> nodes)
    : plan_(std::move(plan)), device_(device), nodes_(nodes.empty() ? nodes_of(device) : std::move(nodes)) {
    std::set<std::string> names;
    for (const Entry& entry : plan_.entries()) names.insert(name_of(owner, entry.content));
    const MachineLock lock("looks for common memory");  // of two that start together one makes a piece
    if (!lock.why().empty())
        log::warning("processes that start at this moment may each take ", human_bytes(plan_.total_bytes()),
                     " of host memory for the same base: ", lock.why());
    auto held = SharedSegment::held([&](const std::string& name) { return names.contains(name); });
    for (const Entry& entry : plan_.entries()) {
        Piece& piece = *pieces_.emplace_back(std::make_shared<Piece>());
        const auto bytes = static_cast<std::size_t>(entry.bytes);
        const std::string name = name_of(owner, entry.content);
        try {
            if (const auto found = held.find(name); found != held.end())
                piece.segment = SharedSegment::open(std::move(found->second), bytes);
            if (piece.segment == nullptr) piece.segment = SharedSegment::make(bytes, name);
        } catch (const Error& refused) {
            why_own_ = refused.what();
        }
    }
}

std::chrono::milliseconds CommonMemory::fill(const Filler& fill_one, std::chrono::milliseconds patience) {
    using std::chrono::milliseconds;
    constexpr milliseconds pause{5}, quiet{2000};
    std::vector<BufferId> waiting(pieces_.size());
    std::iota(waiting.begin(), waiting.end(), BufferId{0});
    std::deque<Prepared> ahead;
    bool logged = false;
    milliseconds waited_in_all{0};
    // Counted while this process runs: one that is stopped together with the other must not give up when both continue.
    for (milliseconds waited{0}; !waiting.empty() || !ahead.empty();) {
        std::erase_if(waiting, [&](BufferId id) { return ahead.size() < pieces_ahead && prepare(id, ahead); });
        if (!ahead.empty()) {
            finish(ahead.front(), fill_one);
            ahead.pop_front();
            waited = {};
            continue;
        }
        if (waited >= patience) {
            for (const BufferId id : waiting)
                make_own(id, cat("another process was loading it, and has not gone on for ",
                                 std::chrono::duration<double>(patience).count(), " s (is it stopped?)"));
            continue;
        }
        if (!logged && waited >= quiet) {
            log::info("waiting for another process, which loads the same base");
            logged = true;
        }
        stop_if_interrupted("stopped while another process loaded the same base");
        std::this_thread::sleep_for(pause);
        waited += pause;
        waited_in_all += pause;
    }
    if (const int64_t own = share().own; own > 0)
        log::warning("host memory that processes with the same base could share is this one's own (", human_bytes(own),
                     "): ", why_own_);
    return waited_in_all;
}

/// Makes the piece this process's own instead of shared.
void CommonMemory::make_own(BufferId id, std::string why) {
    pieces_[id]->segment.reset();
    why_own_ = std::move(why);
}

/// Has the piece's pages made, where it is filled here, and locked; not while another process fills it.
bool CommonMemory::prepare(BufferId id, std::deque<Prepared>& ahead) {
    Piece& piece = *pieces_[id];
    bool fills = piece.segment == nullptr || !piece.segment->complete();
    if (piece.segment != nullptr && fills) {
        try {
            if (!piece.segment->try_lock()) return false;
            fills = !piece.segment->complete();
            if (!fills) piece.segment->unlock();
        } catch (const Error& refused) {
            make_own(id, refused.what());
        }
    }
    const int64_t bytes = plan_.entry(id).bytes;
    ahead.push_back({id, fills, std::async(std::launch::async, [this, &piece, bytes, fills] {
                         if (piece.segment == nullptr) return std::string();
                         use_device(device_);
                         if (fills)
                             make_pages(piece.segment->data(), static_cast<std::size_t>(bytes), nodes_,
                                        static_cast<int>(1 + bytes / bytes_a_maker));
                         return piece.lock_pages(bytes, device_, fills);
                     })});
    return true;
}

void CommonMemory::finish(Prepared& prepared, const Filler& fill_one) {
    Piece& piece = *pieces_[prepared.id];
    if (const std::string why = prepared.why_not.get(); !why.empty()) make_own(prepared.id, why);
    if (piece.segment == nullptr) {
        piece.own = host_memory(plan_, plan_.entry(prepared.id).bytes, device_);
        fill_one(prepared.id, piece.own);
        piece.filled = true;
    } else if (prepared.fills) {
        fill_one(prepared.id, tensor(prepared.id));
        piece.filled = true;
        piece.segment->set_complete();
        piece.segment->unlock();
    }
}

at::Tensor CommonMemory::tensor(BufferId id) const {
    const std::shared_ptr<Piece>& piece = pieces_.at(id);
    if (piece->segment == nullptr) return piece->own;
    return at::from_blob(piece->segment->data(), {plan_.entry(id).bytes}, [piece](void*) {}, at::kByte);
}

CommonMemory::Share CommonMemory::share() const {
    Share share;
    for (BufferId id = 0; id < pieces_.size(); ++id) {
        const Piece& piece = *pieces_[id];
        (piece.segment == nullptr ? share.own : piece.filled ? share.filled : share.found) += plan_.entry(id).bytes;
    }
    return share;
}

bool CommonMemory::filled_here(BufferId id) const {
    return pieces_.at(id)->filled;
}

}  // namespace unsloth::memory
