#include "unsloth/weights/packed_layer.h"

#include "unsloth/core/error.h"

namespace unsloth::weights {
namespace {

constexpr int64_t alignment = 512;

}  // namespace

void PackedLayer::add(const std::string& name, at::ScalarType type, int64_t elements) {
    const int64_t bytes = elements * static_cast<int64_t>(c10::elementSize(type));
    UNSLOTH_CHECK(parts_.try_emplace(name, Part{type, bytes_, bytes}).second, "in a layer's image twice: ", name);
    bytes_ += (bytes + alignment - 1) / alignment * alignment;
}

int64_t PackedLayer::offset(const std::string& name) const {
    const auto found = parts_.find(name);
    UNSLOTH_CHECK(found != parts_.end(), "not in a layer's image: ", name);
    return found->second.offset;
}

at::Tensor PackedLayer::part(const at::Tensor& memory, const std::string& name) const {
    const auto found = parts_.find(name);
    UNSLOTH_CHECK(found != parts_.end(), "not in a layer's image: ", name);
    UNSLOTH_CHECK(memory.numel() == bytes_, "an image of ", bytes_, " bytes in ", memory.numel());
    const Part& part = found->second;
    return memory.narrow(0, part.offset, part.bytes).view(part.type);
}

}  // namespace unsloth::weights
