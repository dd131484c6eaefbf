// Helpers of the tests of import-config.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/config/support.h"
#include "unsloth/import/import.h"

namespace unsloth::testing {

using Columns = std::vector<std::pair<std::string, std::string>>;

inline import::ImportedConfig import_text(const std::string& content,
                                          import::PeerProgram program = import::PeerProgram::automatic) {
    const ScratchFolder folder;
    return import::import_config(folder.write("theirs.yaml", content), program);
}
inline config::LoadedConfig loaded(const import::ImportedConfig& imported) {
    return load_text(imported.json);
}
inline std::string all(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
}

}  // namespace unsloth::testing
