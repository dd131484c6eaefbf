#include "unsloth/model/kept_features.h"

#include "unsloth/core/error.h"

namespace unsloth::model {
namespace {

constexpr int64_t part_alignment = 64;

int64_t aligned(int64_t bytes) {
    return (bytes + part_alignment - 1) / part_alignment * part_alignment;
}

int64_t bytes_of(const std::vector<at::Tensor>& parts) {
    int64_t bytes = 0;
    for (const at::Tensor& part : parts) bytes += aligned(static_cast<int64_t>(part.nbytes()));
    return bytes;
}

}  // namespace

void KeptFeatures::open(const at::Tensor& memory) {
    const std::lock_guard lock(mutex_);
    memory_ = memory;
    places_.clear();
    counts_ = {};
}

bool KeptFeatures::keeps(const std::string& content) const {
    const std::lock_guard lock(mutex_);
    return places_.contains(content);
}

at::Tensor KeptFeatures::part_at(int64_t offset, const at::Tensor& like) const {
    UNSLOTH_CHECK(like.is_contiguous(), "features that are not together");
    return memory_.narrow(0, offset, static_cast<int64_t>(like.nbytes())).view(like.scalar_type()).view(like.sizes());
}

bool KeptFeatures::fetch(const std::string& content, const std::vector<at::Tensor>& parts) {
    int64_t offset = 0;
    {
        const std::lock_guard lock(mutex_);
        const auto found = places_.find(content);
        if (found == places_.end()) return false;
        offset = found->second;
        ++counts_.fetched;
    }
    for (const at::Tensor& part : parts) {
        part.copy_(part_at(offset, part), /*non_blocking=*/true);
        offset += aligned(static_cast<int64_t>(part.nbytes()));
    }
    return true;
}

void KeptFeatures::keep(const std::string& content, const std::vector<at::Tensor>& parts) {
    const int64_t bytes = bytes_of(parts);
    int64_t offset = 0;
    {
        const std::lock_guard lock(mutex_);
        ++counts_.seen;
        if (content.empty() || !memory_.defined() || counts_.bytes + bytes > memory_.numel()) return;
        offset = counts_.bytes;
        // What is fetched later is copied after this, on the same stream.
        if (!places_.emplace(content, offset).second) return;
        counts_.bytes += bytes;
        ++counts_.images;
    }
    for (const at::Tensor& part : parts) {
        part_at(offset, part).copy_(part, /*non_blocking=*/true);
        offset += aligned(static_cast<int64_t>(part.nbytes()));
    }
}

KeptFeatures::Counts KeptFeatures::counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
}

int64_t kept_bytes(const spec::ModelSpec& spec, const weights::LayerLayout& layout, at::ScalarType dtype,
                   int64_t patches) {
    const spec::VisionSpec& vision = spec.vision.value();
    const auto value = static_cast<int64_t>(c10::elementSize(dtype));
    if (vision.tiles)
        return part_alignment +  // those of its own tiles, and those of padding
               aligned(vision.tiles->features() *
                       weights::row_stride(spec.hidden_size + layout[weights::Group::cross_kv].r) * value);
    const auto parts = 1 + static_cast<int64_t>(vision.deepstack.size());
    return parts * aligned(vision.tokens_of(patches) * vision.out_size * value);
}

}  // namespace unsloth::model
