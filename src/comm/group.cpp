#include "unsloth/comm/group.h"

#include <algorithm>
#include <numeric>

#include "comm/cpu_communicator.h"
#include "comm/nccl_group.h"
#include "comm/store.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::comm {
namespace {

class CpuGroup final : public StoreBackedGroup {
  public:
    explicit CpuGroup(std::unique_ptr<Exchange> exchange) : StoreBackedGroup(std::move(exchange)) {
        make_communicators();
    }

    std::unique_ptr<Communicator> make_communicator(const std::vector<int>& ranks, const std::string& name) override {
        const int rank = place_among(ranks, this->rank()), size = static_cast<int>(ranks.size());
        const std::string what = cat("the making of the communicator ", name);
        std::unique_ptr<SharedSegment> segment;
        if (rank == 0) segment = SharedSegment::make(shared_segment_bytes(size));
        const std::vector<std::string> addresses = gather(segment ? segment->address() : "", what);
        if (rank > 0)
            segment =
                SharedSegment::open(addresses[static_cast<std::size_t>(ranks.front())], shared_segment_bytes(size));
        const std::vector<std::string> reached = gather(segment ? "reached" : "", what);
        const bool shared = std::all_of(ranks.begin(), ranks.end(), [&](int r) {
            return reached[static_cast<std::size_t>(r)] == "reached" &&
                   std::find(ranks_here().begin(), ranks_here().end(), r) != ranks_here().end();
        });
        if (shared) {
            segment->close();
            return make_shared_communicator(exchange(), rank, ranks, name, std::move(segment));
        }
        if (size < this->size())
            throw Error("parallel.unsupported",
                        cat("the communicator ", name, " would have CPU ranks of several machines"),
                        "On the CPU only data parallel goes over machines: the ranks that share a model need one "
                        "machine, and one container.");
        log::info("ranks cannot share memory: CPU collectives fall back to the rendezvous store, which is slower");
        return make_store_communicator(exchange(), ranks, name);
    }
};

}  // namespace

Communicator::Communicator(int rank, std::vector<int> ranks, const std::string& name)
    : rank_(rank), ranks_(std::move(ranks)) {
    constexpr std::size_t enough = 16;
    for (std::size_t i = 0; i < ranks_.size() && i < enough; ++i) name_ += cat(i > 0 ? ", " : "", ranks_[i]);
    name_ = cat(name, " of ranks ", name_, ranks_.size() > enough ? ", ..." : "");
}

std::string Communicator::title(const std::string& what, const char* operation) const {
    return cat(what, " (", operation, ", ", name_, ")");
}

Group::Group(int rank, const std::vector<std::string>& hosts) : rank_(rank), size_(static_cast<int>(hosts.size())) {
    for (int r = 0; r < size_; ++r) {
        if (hosts[static_cast<std::size_t>(r)] != hosts[static_cast<std::size_t>(rank)]) continue;
        if (r == rank) place_here_ = static_cast<int>(ranks_here_.size());
        ranks_here_.push_back(r);
    }
}

void StoreBackedGroup::make_communicators() {
    std::vector<int> everyone(static_cast<std::size_t>(size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    all_ = make_communicator(everyone, "all");
    // Where each machine has one rank, its communicator has no peers, but answers all the same.
    if (ranks_here().size() < everyone.size()) here_ = make_communicator(ranks_here(), "machine");
}

int place_among(const std::vector<int>& ranks, int rank) {
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    UNSLOTH_CHECK(found != ranks.end(), "rank ", rank, " is not of its own communicator");
    return static_cast<int>(found - ranks.begin());
}

std::vector<std::string> StoreBackedGroup::gather(const std::string& text, const std::string& what) {
    constexpr std::size_t most = 16 << 20;
    std::vector<std::string> all;
    exchange_->all({text.begin(), text.end()}, cat(what, " (texts of all ranks)"),
                   [&](int from, const std::vector<uint8_t>& bytes) {
                       if (bytes.size() > most)
                           throw Error("rank.bad-message",
                                       cat("rank ", from, " sent a text of ", bytes.size(), " bytes for ", what));
                       std::string& got = all.emplace_back(bytes.begin(), bytes.end());
                       for (char& c : got)
                           if (from != rank() && c != '\n' && (static_cast<unsigned char>(c) < ' ' || c == '\x7f'))
                               c = '?';
                   });
    return all;
}

std::unique_ptr<Group> make_group(const LaunchEnvironment& environment, at::Device device,
                                  std::chrono::seconds timeout) {
    if (environment.alone()) return nullptr;
    auto exchange = std::make_unique<Exchange>(environment, timeout);
#if UNSLOTH_CUDA
    if (device.is_cuda()) return make_nccl_group(std::move(exchange), device);
#endif
    (void)device;
    return std::make_unique<CpuGroup>(std::move(exchange));
}

}  // namespace unsloth::comm
