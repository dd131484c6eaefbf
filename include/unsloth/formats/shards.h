// The files of a model's weights: how they are named, filled and listed, as transformers does.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace unsloth::formats {

/// What most programs write: 5 GB.
inline constexpr std::size_t default_shard_bytes = 5'000'000'000;

/// "model-00001-of-00002.safetensors", or "model.safetensors" for a single one; `index` from 0.
std::string shard_file_name(std::size_t index, std::size_t count);

inline constexpr const char* shard_index_file = "model.safetensors.index.json";
/// The text of model.safetensors.index.json: which file holds each tensor. `total_bytes`: of all tensors' data.
std::string shard_index_json(const std::map<std::string, std::string>& file_of_tensor, std::size_t total_bytes);

/// Fills shards with items of these sizes, in order: a shard ends where the next item would make it exceed `largest`
/// bytes, so that an item above that has one for itself. Returns the items' numbers; at least one shard.
std::vector<std::vector<std::size_t>> split_into_shards(const std::vector<std::size_t>& item_bytes,
                                                        std::size_t largest);

}  // namespace unsloth::formats
