#include "unsloth/placement/agreement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"

namespace unsloth::placement {

std::string sample_hash(const formats::Checkpoint& checkpoint) {
    constexpr std::size_t sample = 256;
    ContentHash hash;
    for (const std::string& name : checkpoint.names()) {
        const formats::TensorView& tensor = checkpoint.at(name);
        hash.add_field(name);
        hash.add_field(formats::safetensors_name(tensor.dtype));
        hash.add_field(formats::shape_text(tensor.shape));
        const std::string_view bytes(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
        const std::size_t size = std::min(sample, bytes.size()), rest = bytes.size() - size;
        for (const std::size_t begin : {std::size_t{0}, rest / 2, rest}) hash.add_field(bytes.substr(begin, size));
    }
    return hash.hex();
}

std::string values_hash(const at::Tensor& values) {
    constexpr int64_t piece = 4 << 20;
    ContentHash hash;
    const at::Tensor flat = values.view({-1});
    for (int64_t begin = 0; begin < flat.numel(); begin += piece) {
        const at::Tensor host = flat.narrow(0, begin, std::min(piece, flat.numel() - begin)).cpu();
        hash.add({static_cast<const char*>(host.const_data_ptr()), host.nbytes()});
    }
    return hash.hex();
}

void require_equal_hashes(comm::Group& group, const std::string& own, int64_t steps, int stages) {
    const std::vector<std::string> all = group.gather(own, cat("the comparison of trained values after step ", steps));
    const std::size_t each = all.size() / static_cast<std::size_t>(stages);
    std::string text;
    for (std::size_t first = 0; first < all.size() && text.empty(); first += each) {
        std::map<std::string, std::string> parties;  // hash -> "0, 2"
        for (std::size_t rank = first; rank < first + each; ++rank) {
            std::string& members = parties[all[rank]];
            members += cat(members.empty() ? "" : ", ", rank);
        }
        if (parties.size() == 1) continue;
        for (const auto& [hash, members] : parties) text += cat(text.empty() ? "" : " | ", members);
    }
    if (text.empty()) return;
    throw Error("rank.values-differ",
                cat("after step ", steps, " the ranks do not hold the same trained values. Those that agree: ", text,
                    "\n  Nothing was saved of this step."),
                steps == 0
                    ? "Do all ranks read the same adapter, and run the same program?"
                    : "Checkpoints from before are sound. The memory or a GPU of one machine may be faulty: look at "
                      "unsloth-train doctor there, and continue without it.");
}

}  // namespace unsloth::placement
