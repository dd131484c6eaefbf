// What a folder, or a repository on the hub, holds where a file was expected that is not there: the words of an error.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::formats {

/// What was looked for.
enum class Sought { model, adapter, tokenizer };

struct Contents {
    std::string what;    ///< "it holds pickle files (pytorch_model.bin)", "it is empty"
    std::string advice;  ///< what to do about it
};

/// `names`: of the files, with a slash at the end those of folders; any order. `place`: as the user named it.
Contents describe_contents(std::vector<std::string> names, Sought sought, const std::string& place);
/// input Error: "PLACE: no MISSING: it holds …".
Error missing_in(const std::filesystem::path& folder, const std::string& missing, Sought sought,
                 const std::string& place);

}  // namespace unsloth::formats
