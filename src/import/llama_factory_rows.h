// LLaMA-Factory's data sets, which dataset_info.json describes.
#pragma once

#include <string>

#include "import/importer.h"

namespace unsloth::import {

struct LlamaFactoryRows {
    bool conversations = false;  ///< all rows to train on are known to be such
    bool single_turns = false;   ///< all rows to train on are known to have one question and one answer
    bool to_evaluate = false;    ///< there are rows to evaluate on
};

/// dataset, eval_dataset and what says how they are read.
LlamaFactoryRows import_llama_factory_rows(Importer& importer, const std::string& stage);

}  // namespace unsloth::import
