// axolotl's lists of data sets: datasets, test_datasets, pretraining_dataset.
#pragma once

#include <optional>
#include <string>

#include "import/importer.h"

namespace unsloth::import {

/// The entry `key` ("datasets[0]") of a list. `rl`: of the file; empty: rows are trained on as they are. Without a path
/// where the entry says none.
ImportedSource read_axolotl_source(Importer& importer, const std::string& key, const Json& entry,
                                   const std::string& rl);

/// "chatml" and the like by our names; nothing when the model's own template is meant.
std::optional<std::string> axolotl_template(Importer& importer, const std::string& key, const Json& name);

}  // namespace unsloth::import
