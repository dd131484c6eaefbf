#include "unsloth/weights/base_identity.h"

#include <algorithm>

#include "unsloth/core/build_id.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/version.h"
#include "unsloth/formats/bnb8.h"
#include "unsloth/ops/device.h"

namespace unsloth::weights {

std::string base_identity(const formats::WeightFile& file, at::Device device) {
    constexpr std::size_t sample = std::size_t{64} << 10;
    ContentHash hash;
    hash.add_field(version);
    for (const std::string& build : base_makers()) hash.add_field(build);
    hash.add_field(device.is_cpu() ? "cpu" : ops::device_name(device));
    const auto add = [&](const formats::SafetensorsFile& part) {
        hash.add_field(part.map().stamp());
        // Some file systems invent what they say of a file.
        const auto bytes = part.map().bytes();
        const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        hash.add_field(text.substr(0, sample));
        hash.add_field(text.substr(text.size() - std::min(sample, text.size())));
    };
    for (const formats::SafetensorsFile& part : file.checkpoint.files()) add(part);
    if (file.stand_ins) add(*file.stand_ins);
    return hash.hex();
}

std::array<std::string, 2> base_makers() {
    return {build_id(reinterpret_cast<const void*>(&base_makers)),
            build_id(reinterpret_cast<const void*>(&formats::quantize_int8_rows))};
}

}  // namespace unsloth::weights
