#include "unsloth/formats/shards.h"

#include <cstdio>

#include "formats/json.h"

namespace unsloth::formats {

std::string shard_file_name(std::size_t index, std::size_t count) {
    if (count == 1) return "model.safetensors";
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
    return name;
}

std::string shard_index_json(const std::map<std::string, std::string>& file_of_tensor, std::size_t total_bytes) {
    const OrderedJson index{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", file_of_tensor}};
    return index.dump(2) + "\n";
}

std::vector<std::vector<std::size_t>> split_into_shards(const std::vector<std::size_t>& item_bytes,
                                                        std::size_t largest) {
    std::vector<std::vector<std::size_t>> shards(1);
    std::size_t filled = 0;
    for (std::size_t i = 0; i < item_bytes.size(); ++i) {
        if (!shards.back().empty() && filled + item_bytes[i] > largest) {
            shards.emplace_back();
            filled = 0;
        }
        shards.back().push_back(i);
        filled += item_bytes[i];
    }
    return shards;
}

}  // namespace unsloth::formats
