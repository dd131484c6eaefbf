#include "unsloth/comm/group.h"

#include <cstring>

#include "comm/nccl_group.h"
#include "comm/store.h"
#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

void require_size(const std::vector<uint8_t>& bytes, std::size_t expected, int rank, const std::string& what) {
    if (bytes.size() != expected)
        throw runtime_failure(cat("rank ", rank, " sent ", bytes.size(), " bytes as ", what, ", expected ", expected),
                              "All ranks need the same program, configuration and model.");
}

/// On the CPU: every rank's values through the store, added in the order of the ranks.
class StoreGroup final : public StoreBackedGroup {
  public:
    explicit StoreGroup(std::unique_ptr<Exchange> exchange) : StoreBackedGroup(std::move(exchange)) {}

    void all_reduce(const at::Tensor& sum, const std::string& what) override {
        UNSLOTH_CHECK(sum.is_cpu() && sum.scalar_type() == at::kFloat && sum.is_contiguous(),
                      "all_reduce takes contiguous fp32 of the CPU");
        float* const values = sum.mutable_data_ptr<float>();
        const auto count = static_cast<std::size_t>(sum.numel());
        std::vector<uint8_t> own(count * sizeof(float));
        std::memcpy(own.data(), values, own.size());
        exchange().all(std::move(own), what, [&](int rank, const std::vector<uint8_t>& bytes) {
            require_size(bytes, count * sizeof(float), rank, what);
            for (std::size_t i = 0; i < count; ++i) {
                float value;
                std::memcpy(&value, bytes.data() + i * sizeof(float), sizeof(float));
                values[i] = rank == 0 ? value : values[i] + value;
            }
        });
    }
    void all_reduce_beside(const at::Tensor& sum, const std::function<void()>& after,
                           const std::string& what) override {
        after();
        all_reduce(sum, what);
    }
    void join() override {}

    /// Through all ranks' exchange, since there is no other: ranks of other machines must come, too, which on the CPU
    /// they do.
    void broadcast_here(const at::Tensor& values, int root, const std::string& what) override {
        UNSLOTH_CHECK(values.is_cpu() && values.is_contiguous(), what,
                      ": broadcast takes contiguous values of the CPU");
        auto* const bytes = static_cast<uint8_t*>(values.data_ptr());
        const int from = ranks_here().at(static_cast<std::size_t>(root));
        std::vector<uint8_t> own;
        if (from == rank()) own.assign(bytes, bytes + values.nbytes());
        exchange().all(std::move(own), what, [&](int rank, const std::vector<uint8_t>& sent) {
            if (rank != from || from == this->rank()) return;
            require_size(sent, values.nbytes(), rank, what);
            std::memcpy(bytes, sent.data(), sent.size());
        });
    }
};

}  // namespace

Group::Group(int rank, const std::vector<std::string>& hosts) : rank_(rank), size_(static_cast<int>(hosts.size())) {
    for (int r = 0; r < size_; ++r) {
        if (hosts[static_cast<std::size_t>(r)] != hosts[static_cast<std::size_t>(rank)]) continue;
        if (r == rank) place_here_ = static_cast<int>(ranks_here_.size());
        ranks_here_.push_back(r);
    }
}

std::vector<std::string> StoreBackedGroup::gather(const std::string& text, const std::string& what) {
    constexpr std::size_t most = 16 << 20;
    std::vector<std::string> all;
    exchange_->all({text.begin(), text.end()}, what, [&](int from, const std::vector<uint8_t>& bytes) {
        if (bytes.size() > most)
            throw runtime_failure(cat("rank ", from, " sent a text of ", bytes.size(), " bytes for ", what));
        std::string& got = all.emplace_back(bytes.begin(), bytes.end());
        for (char& c : got)
            if (from != rank() && c != '\n' && (static_cast<unsigned char>(c) < ' ' || c == '\x7f')) c = '?';
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
    return std::make_unique<StoreGroup>(std::move(exchange));
}

}  // namespace unsloth::comm
