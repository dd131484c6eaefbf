// A plan as its lines: what `plan` prints, and the log says.
#include "unsloth/core/text.h"
#include "unsloth/model/loader.h"

namespace unsloth::model {

std::map<std::string, int64_t> ModelPlan::groups() const {
    std::map<std::string, int64_t> groups;
    std::vector<memory::Plan> parts = {resident(), peer(), step()};
    if (request_.device.is_cpu()) parts.insert(parts.end(), {host(), common()});
    for (const memory::Plan& part : parts)
        for (const memory::Entry& entry : part.entries()) groups[entry.group] += entry.bytes;
    groups["recorded passes"] = recorded_bytes();
    std::erase_if(groups, [](const auto& group) { return group.second == 0; });
    return groups;
}

std::string ModelPlan::table_text() const {
    const int64_t there = need().there;
    const memory::Plan own = host(), common = this->common(), peers = peer();
    const std::string held = there > 0 ? cat(" (", human_bytes(there), " of it are there)") : "";
    const std::string host =
        cat(own.entries().empty() ? "" : cat("\nin host memory\n", own.table()),
            common.entries().empty()
                ? ""
                : cat("\nin host memory, once for all processes with this base", held, "\n", common.table()));
    const std::string not_planned =
        request_.device.is_cpu() ? ""
                                 : cat("\nscalars, and what the allocator rounds up ", human_bytes(outside_arenas()));
    const std::string recorded =
        recorded_bytes() > 0 ? cat("\nCUDA graphs, estimated ", human_bytes(recorded_bytes())) : "";
    const std::string peer =
        peers.entries().empty() ? "" : cat("\nresident, for all ranks of the machine\n", peers.table());
    return cat("resident\n", resident().table(), peer, "\nper step\n", step().table(), host, not_planned, recorded,
               "\nin all ", human_bytes(total_bytes()));
}

}  // namespace unsloth::model
