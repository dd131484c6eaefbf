// A model's weights on disk: a folder with model.safetensors, a folder with shards and their index, or one file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/formats/safetensors.h"

namespace unsloth::formats {

/// What of a model is needed.
enum class ModelFiles { all, all_but_weights };

/// The folder or file that `model.path` means: as given when it exists; of an id of the Hugging Face hub
/// (hub::parse_repository) the folder in the local cache, into which it is downloaded first where it is not there:
/// safetensors, configuration and tokenizer alone. Input Error when there is no such model; hub::obtain's others.
/// Adapters are looked up in the same way.
std::filesystem::path resolve_model_path(const std::string& path, ModelFiles files = ModelFiles::all);

/// The same, when it is on this machine: nothing is downloaded.
std::optional<std::filesystem::path> find_model_path(const std::string& path, ModelFiles files = ModelFiles::all);

/// All tensors of a checkpoint, mapped. Movable; views stay valid when it moves.
class Checkpoint {
  public:
    /// `path` as for resolve_model_path. Input Error for a missing index, shard or tensor, a shard name with a path
    /// separator or "..", a tensor in another shard than the index says or in two, or whatever SafetensorsFile refuses.
    static Checkpoint open(const std::string& path);
    /// Without files, of a model of which only the description is there.
    static Checkpoint without_tensors(std::filesystem::path folder);

    const TensorView* find(std::string_view name) const;              ///< nullptr: absent
    const TensorView& at(std::string_view name) const;                ///< input Error: absent
    const std::vector<std::string>& names() const { return names_; }  ///< sorted
    std::size_t total_bytes() const { return total_bytes_; }          ///< of all tensors' data
    /// The folder of config.json and the tokenizer.
    const std::filesystem::path& folder() const { return folder_; }
    const std::vector<SafetensorsFile>& files() const { return files_; }

  private:
    Checkpoint() = default;
    void open_shards(const std::filesystem::path& index);
    void add_tensors_of(const SafetensorsFile& file);

    std::filesystem::path folder_;
    std::vector<SafetensorsFile> files_;
    std::map<std::string, const TensorView*, std::less<>> tensors_;
    std::vector<std::string> names_;
    std::size_t total_bytes_ = 0;
};

}  // namespace unsloth::formats
