// README.md of a folder with a model or an adapter, as the Hugging Face hub reads it.
#pragma once

#include <filesystem>
#include <string>

namespace unsloth::report {

inline constexpr const char* model_card_file = "README.md";

/// Markdown with a YAML header: base model, library, tags and data sets that are on the hub, then the run's metrics and
/// settings, as far as the folder's files have them. No path of this machine is in it. `repository`: ORG/NAME.
std::string model_card(const std::filesystem::path& folder, const std::string& repository);

/// Writes the card, unless the folder has a README.md that is not of this program; false then. Runtime Error when it
/// cannot be written.
bool write_model_card(const std::filesystem::path& folder, const std::string& repository);

}  // namespace unsloth::report
