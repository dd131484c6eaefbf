#include "unsloth/config/allocator.h"

#include "unsloth/config/json.h"
#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

constexpr const char* allocator_option = "hardware.allocator";

/// A run's own buffers are a few large blocks that last; the presets change how the other, shorter-lived blocks fit in.
Json preset(const std::string& name) {
    if (name == "throughput") return {{"backend", "native"}, {"expandable_segments", false}};
    // One segment that grows, without gaps between segments and without rounding them up to 20 MiB.
    if (name == "low_memory") return {{"expandable_segments", true}};
    // long_context: the same, and blocks for rows of nearly the same length have one size.
    return {{"expandable_segments", true}, {"roundup_power2_divisions", 8}};
}

[[noreturn]] void refuse(const std::string& key, const Json& value, const char* expected) {
    throw Error("option.invalid-value",
                cat(allocator_option, ": ", key, ": expected ", expected, ", found ", value.dump()));
}

bool is_whole(const Json& value, int64_t least, int64_t most) {
    return value.is_number_integer() && value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

/// "key:value" as LibTorch spells it.
std::string setting(const std::string& key, const Json& value) {
    if (key == "backend") {
        if (value != "native" && value != "cudaMallocAsync") refuse(key, value, "native or cudaMallocAsync");
        return cat(key, ":", value.get<std::string>());
    }
    if (key == "max_split_size_mb") {
        if (!is_whole(value, 21, 1 << 20)) refuse(key, value, "a whole number of MiB above 20");
    } else if (key == "expandable_segments") {
        if (!value.is_boolean()) refuse(key, value, "true or false");
        return cat(key, value.get<bool>() ? ":True" : ":False");
    } else if (key == "roundup_power2_divisions") {
        if (!is_whole(value, 1, 64) || (value.get<int64_t>() & (value.get<int64_t>() - 1)) != 0)
            refuse(key, value, "a power of two up to 64");
    } else if (key == "garbage_collection_threshold") {
        if (!value.is_number() || !(value.get<double>() > 0 && value.get<double>() < 1))
            refuse(key, value, "a number between 0 and 1");
    } else {
        throw Error("option.unknown-key", cat(allocator_option, ": there is no setting '", key, "'"),
                    "There are backend, max_split_size_mb, expandable_segments, roundup_power2_divisions and "
                    "garbage_collection_threshold.");
    }
    return cat(key, ":", value.dump());
}

}  // namespace

std::string allocator_settings(const HardwareOptions& hardware) {
    Json settings = Json::parse(hardware.allocator);
    if (settings.is_string()) settings = preset(settings.get<std::string>());
    if (settings.contains("backend") && settings["backend"] == "cudaMallocAsync" && settings.size() > 1)
        throw Error("option.conflict", cat(allocator_option, ": backend cudaMallocAsync heeds no other setting"),
                    "Leave the others out, or take backend native.");
    std::string text;
    for (const auto& [key, value] : settings.items()) text += (text.empty() ? "" : ",") + setting(key, value);
    return text;
}

}  // namespace unsloth::config
