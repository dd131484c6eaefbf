#include "unsloth/placement/loading.h"

#include <algorithm>
#include <set>

#include "unsloth/comm/peer_memory.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/numa.h"
#include "unsloth/ops/device.h"
#include "unsloth/weights/base_identity.h"

namespace unsloth::placement {

std::shared_ptr<memory::HeldMemory> held_memory(const formats::WeightFile& file, at::Device device) {
    if (!device.is_cuda()) return nullptr;
    return std::make_shared<memory::HeldMemory>(weights::base_identity(file, device));
}

std::unique_ptr<ops::Context> make_context(const config::Config& config, const model::ModelPlan& plan) {
    auto ctx = std::make_unique<ops::Context>(plan.request().device, plan.request().kernels);
    ctx->deterministic = config.training.deterministic;
    return ctx;
}

int64_t bucket_bytes(const config::Config& config, const comm::Group* group) {
    constexpr int64_t between_machines = 25;  // torch's DDP has the same
    const int64_t asked = config.distributed.ddp_bucket_cap_mb;
    if (asked >= 0) return asked << 20;
    const bool one_machine = group == nullptr || static_cast<int>(group->ranks_here().size()) == group->size();
    return one_machine ? 0 : between_machines << 20;
}

weights::LoadShare load_share(comm::Group* group, const model::ModelPlan& plan) {
    const model::LoadRequest& request = plan.request();
    const bool peers = request.peers.size > 1;
    if (group == nullptr || (request.device.is_cpu() && !peers)) return {};
    const bool cut = !request.tp.alone() || !request.pp.alone();
    if (cut && !peers) return {};  // each reads a part of its own
    const std::string own = plan.resident_fingerprint();
    const auto node = request.device.is_cuda() ? numa_node_of(ops::pci_address(request.device)) : std::nullopt;
    const std::vector<std::string> all = group->gather(cat(own, " ", node.value_or(-1)), "the comparison of plans");
    comm::Communicator& ranks = peers ? *request.peer_ranks : group->here();
    bool alike = true;
    std::set<int> nodes;
    for (const int rank : ranks.ranks()) {
        const std::string& text = all[static_cast<std::size_t>(rank)];
        alike = alike && text.substr(0, own.size()) ==
                             all[static_cast<std::size_t>(ranks.ranks().front())].substr(0, own.size());
        nodes.insert(std::stoi(text.substr(own.size())));
    }
    if (!alike && peers)
        throw Error("rank.peer-memory",
                    "the ranks of this machine plan their memory differently, and cannot hold a base together",
                    "Set distributed.zero_stage below 3.");
    if (!alike) {
        log::info("the ranks of this machine plan their memory differently: each reads the whole model");
        return {};
    }
    weights::LoadShare share{ranks.rank(), ranks.size(), [&ranks](const at::Tensor& values, int reader) {
                                 ranks.broadcast(values, reader, "the model's weights");
                             }};
    if (!nodes.contains(-1)) share.nodes = nodes;
    share.share_memory = [group, &ranks, device = request.device](int64_t bytes) {
        const std::vector<at::Tensor> here = comm::share_memory(*group, device, bytes);
        std::vector<at::Tensor> theirs;
        for (std::size_t place = 0; place < here.size(); ++place)
            if (std::binary_search(ranks.ranks().begin(), ranks.ranks().end(), group->ranks_here()[place]))
                theirs.push_back(here[place]);
        return theirs;
    };
    return share;
}

}  // namespace unsloth::placement
