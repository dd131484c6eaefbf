#include "unsloth/comm/group.h"

#include <cstring>

#include "comm/nccl_group.h"
#include "comm/store.h"
#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

/// On the CPU: every rank's values through the store, added in the order of the ranks.
class StoreGroup final : public StoreBackedGroup {
  public:
    explicit StoreGroup(std::unique_ptr<Exchange> exchange) : StoreBackedGroup(std::move(exchange)) {}

    void all_reduce(const at::Tensor& sum, const std::string& what) override {
        UNSLOTH_CHECK(sum.is_cpu() && sum.scalar_type() == at::kFloat && sum.is_contiguous(), "all_reduce takes contiguous fp32 of the CPU");
        float* const values = sum.mutable_data_ptr<float>();
        const auto count = static_cast<std::size_t>(sum.numel());
        std::vector<uint8_t> own(count * sizeof(float));
        std::memcpy(own.data(), values, own.size());
        exchange().all(std::move(own), what, [&](int rank, const std::vector<uint8_t>& bytes) {
            UNSLOTH_CHECK(bytes.size() == count * sizeof(float), what, " of rank ", rank, ": ", bytes.size(), " bytes");
            for (std::size_t i = 0; i < count; ++i) {
                float value;
                std::memcpy(&value, bytes.data() + i * sizeof(float), sizeof(float));
                values[i] = rank == 0 ? value : values[i] + value;
            }
        });
    }
};

}  // namespace

std::vector<std::string> StoreBackedGroup::gather(const std::string& text, const std::string& what) {
    std::vector<std::string> all;
    exchange_->all({text.begin(), text.end()}, what, [&](int, const std::vector<uint8_t>& bytes) { all.emplace_back(bytes.begin(), bytes.end()); });
    return all;
}

std::unique_ptr<Group> make_group(const LaunchEnvironment& environment, at::Device device, std::chrono::seconds timeout) {
    if (environment.alone()) return nullptr;
    auto exchange = std::make_unique<Exchange>(environment, timeout);
#if UNSLOTH_CUDA
    if (device.is_cuda()) return make_nccl_group(std::move(exchange), device);
#endif
    (void)device;
    return std::make_unique<StoreGroup>(std::move(exchange));
}

}  // namespace unsloth::comm
