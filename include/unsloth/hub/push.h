// Uploads to the Hugging Face hub, by libunsloth_hub.so. Token and address are those of downloads: HF_TOKEN (or what
// `hf auth login` saved) and HF_ENDPOINT.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "unsloth/hub/hub.h"

namespace unsloth::hub {

/// A repository of models to upload to.
struct PushTarget {
    std::string repository;  ///< ORG/NAME, or NAME of the token's account
    bool is_private = true;  ///< where it is created
    std::string branch = "main";
};

struct PushRequest {
    PushTarget target;
    std::filesystem::path folder;
    std::vector<std::string> files;  ///< names in the folder, which they have in the repository, too
    std::string message;             ///< the commit's
};

struct Pushed {
    std::string page;                        ///< address of the repository
    int64_t files = 0, unchanged_files = 0;  ///< committed; there already with the same content
    int64_t bytes = 0;                       ///< of large files that were sent
};

/// Checks that a later push() may succeed: the target's name, a token, the account, and the right to write. Creates the
/// repository where `creates` is set and there is none; without it an account that may not be asked for is let pass.
/// Returns the target's full name. A hub that cannot be reached is a warning in the log.
///
/// Usage Error for a name that the hub does not allow; input Error without a token, for one that may not write, and
/// where HF_HUB_OFFLINE is set.
std::string require_pushable(const PushTarget& target, bool creates);

/// Uploads files as one commit. Large ones that the hub has already are not sent again, so a call after a broken one
/// resumes; files that the branch has with this content are skipped, and without any other there is no commit.
///
/// The target's name is the one that require_pushable() returned. Errors as that has; input Error for a hub that cannot
/// be reached or refuses. Interrupted when stopped.
Pushed push(const PushRequest& request);

/// The repository that a name of a model or data set meant when it was used here: one of which the cache has something.
/// nullopt for a path.
std::optional<Repository> used_repository(Kind kind, const std::string& name);

}  // namespace unsloth::hub
