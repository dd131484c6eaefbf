// Repositories of the Hugging Face hub: found in the local cache, whose layout is huggingface_hub's, or downloaded into
// it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::hub {

enum class Kind { model, dataset };

struct Repository {
    Kind kind = Kind::model;
    std::string id;                 ///< "org/name"
    std::string revision = "main";  ///< branch, tag or commit
    std::string inside;             ///< file, folder or glob in it; empty: all. Only hf:// names have one
};

/// What `text` names: `org/name` or `org/name@revision` of the characters that the hub allows, or
/// `hf://[datasets/]org/name[@revision][/inside]`. nullopt for anything else.
std::optional<Repository> parse_repository(Kind kind, const std::string& text);

/// The path of a data set with the folder of its configuration: hf://datasets/ORG/NAME/FOLDER where it is of the hub.
/// An empty `configuration`: the path as it is.
std::string folder_of_configuration(const std::string& path, const std::string& configuration);

/// What of a repository is wanted.
struct Request {
    Repository repository;
    /// Of all files of the repository (sorted paths with `/`) those that are wanted.
    std::function<std::vector<std::string>(const std::vector<std::string>& files)> choose;
    /// Whether a snapshot's folder holds all that is wanted, where it is not known what files the repository has.
    std::function<bool(const std::filesystem::path& folder)> whole;
};

/// Where the cache is: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub or
/// ~/.cache/huggingface/hub. Input Error where none of these and no HOME is set.
std::filesystem::path cache_folder();

/// The snapshot's folder, when the cache holds everything that is wanted; never asks the hub. Input Error for a cache
/// whose refs are no revisions.
std::optional<std::filesystem::path> find(const Request& request);

/// The same, downloaded first (libunsloth_hub.so) when the cache lacks something; not where HF_HUB_OFFLINE is set. Of
/// several processes one downloads and the others wait. What the cache holds in full is taken as it is: a branch that
/// moved on is not noticed.
///
/// Input Error for a repository that is not there, not open to HF_TOKEN, or whose files are not what the hub says; for
/// a hub that cannot be reached; all with what to do. Runtime Error when the disk is full. Interrupted when stopped:
/// what was downloaded stays, and the next call resumes from there.
std::filesystem::path obtain(const Request& request);

}  // namespace unsloth::hub
