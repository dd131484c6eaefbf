// Chat templates by the names that other programs have for them.
#pragma once

#include <optional>
#include <string>

namespace unsloth::import {

struct ImportedTemplate {
    std::string ours;  ///< a name or a text of data.template; empty: it is the model's own template
    std::string note;  ///< what becomes of it; empty: nothing to tell
};

/// Of `program` ("axolotl", "llamafactory", "swift") the template `name`, for `model` ("ORG/NAME"; empty: not known).
/// Templates for texts without images or tools are meant. Nothing for a name that is not known.
std::optional<ImportedTemplate> find_template(const std::string& program, const std::string& name,
                                              const std::string& model);

}  // namespace unsloth::import
