#include "unsloth/ops/kernel_table.h"

#include <mutex>
#include <set>

#include "unsloth/core/log.h"
#include "unsloth/ops/device.h"

#if UNSLOTH_CUDA
#include "kernels/common/launch.h"
#include "kernels/versions.h"
#endif

namespace unsloth::ops {
namespace {

#if UNSLOTH_CUDA
/// Once a table and process: every context asks.
void warn_of(const std::string& source, std::size_t left_out, std::size_t all, const spec::KernelVersions& measured,
             const spec::KernelVersions& here) {
    static std::mutex mutex;
    static std::set<std::string> said;
    const std::lock_guard lock(mutex);
    if (!said.insert(source).second) return;
    log::warning(
        source, ": ", left_out, " of ", all, " choices of kernels do not hold here and are left to cuBLASLt's ",
        "own choice (measured with cuBLASLt ", measured.cublaslt, " and our kernels ", measured.own, "; here are ",
        here.cublaslt, " and ", here.own, kernels::built_for_hopper() ? "" : ", without those for Hopper",
        "): products are slower. unsloth-train tune measures again.");
}
#endif

}  // namespace

spec::KernelCard kernel_card([[maybe_unused]] at::Device device) {
    spec::KernelCard card;
#if UNSLOTH_CUDA
    cudaDeviceProp properties{};
    UNSLOTH_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
    card = {properties.name, 10 * properties.major + properties.minor, properties.multiProcessorCount};
#endif
    return card;
}

spec::KernelVersions kernel_versions() {
    spec::KernelVersions versions;
#if UNSLOTH_CUDA
    versions.cublaslt = kernels::cublaslt_version();
    versions.cudnn = kernels::cudnn_version();
#endif
    versions.own = spec::own_kernels_version;
    return versions;
}

std::shared_ptr<const spec::KernelTable> usable_kernels([[maybe_unused]] at::Device device,
                                                        const spec::KernelTable& table,
                                                        [[maybe_unused]] const std::string& source) {
    auto usable = std::make_shared<spec::KernelTable>(table);
#if UNSLOTH_CUDA
    const spec::KernelVersions here = kernel_versions();
    *usable = spec::still_valid(table, here.cublaslt);
    // What was measured on Hopper are mostly kernels that only a build for Hopper holds.
    if (table.card.compute_capability == 90 && !kernels::built_for_hopper())
        std::erase_if(usable->choices,
                      [](const spec::KernelChoice& c) { return c.kernel != spec::KernelSource::library; });
    if (const std::size_t left = table.choices.size() - usable->choices.size(); left > 0)
        warn_of(source, left, table.choices.size(), table.versions, here);
#endif
    return usable;
}

std::shared_ptr<const spec::KernelTable> built_in_kernels(at::Device device) {
    static const auto none = std::make_shared<const spec::KernelTable>();
    if (!device.is_cuda() || is_absent(device)) return none;
    spec::KernelTable table{.card = kernel_card(device)};
    if (const auto measured = spec::built_in_kernels(table.card)) table = *measured;
    return usable_kernels(device, table, table.card.name + "'s built-in table");
}

}  // namespace unsloth::ops
