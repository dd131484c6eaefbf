// What a new configuration is for: a model and its rows, looked at without the weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unsloth/config/config.h"

namespace unsloth::app {

struct ModelFacts {
    std::string path;          ///< as the user named it
    std::string description;   ///< "llama, 32 layers, hidden size 4096"
    int64_t positions = 0;     ///< that a row may have
    bool quantized = false;    ///< stored in 4 or 8 bit
    bool has_weights = false;  ///< on this machine
    bool from_hub = false;     ///< a run downloads what is missing
    bool has_chat_template = false;
};
/// Downloads config.json and the tokenizer of a hub's model that is not here. Input Error for what is no model, with
/// what is missing.
ModelFacts examine_model(const std::string& path);

struct RowFacts {
    std::string file;  ///< as the user named it
    std::string format;
    config::Objective objective = config::Objective::sft;  ///< that such rows are for
    int64_t rows = 0;
    int64_t skipped = 0;                       ///< not in `rows`: rows that leave nothing to train on
    std::string eval_split;                    ///< that the files have, other than train, for evaluations; empty: none
    int64_t median = 0, p99 = 0, longest = 0;  ///< tokens of a row, or of a pair's longer half
    bool alpaca = false;
    bool augmented = false;             ///< copies are among them, so none can be held out
    std::vector<std::string> warnings;  ///< of the rows: what is in doubt about them
};
/// Reads and encodes all rows. Input or usage Error for rows that a run would refuse.
RowFacts examine_rows(const ModelFacts& model, const std::string& file);

}  // namespace unsloth::app
