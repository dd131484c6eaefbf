// Configurations of other programs, made into ours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace unsloth::import {

enum class PeerProgram { automatic, axolotl, llama_factory, trl, swift, studio };

struct ImportedConfig {
    std::string program;  ///< with its version, whose fields are all known: "axolotl 0.19.0"
    std::string json;     ///< a configuration of ours, indented; it ends in a newline
    int64_t carried = 0;  ///< fields that have an option, or ask for what is done anyway
    /// One line each, that begins with the field's name: what has another form or no effect here, and what cannot be
    /// carried over, with the reason.
    std::vector<std::string> notes, losses;
    /// The same for what cannot be carried over and does not change training: uploads, alarms, sharding.
    std::vector<std::string> aside;
};

/// Reads a YAML or JSON file of `program`; `automatic`: by the names of its fields. Where a field is absent and that
/// program's default is not ours, its default is written. A field that is not known is among the losses. Usage Error
/// for a file that cannot be read, and for one that is none of these programs'.
ImportedConfig import_config(const std::filesystem::path& file, PeerProgram program);

}  // namespace unsloth::import
