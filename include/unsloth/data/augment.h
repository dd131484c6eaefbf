// More training rows out of those that there are: copies with some words of the prompts changed, and back-translations.
// The word operations follow Wei and Zou, "EDA: Easy Data Augmentation" (EMNLP 2019).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/data/format.h"

namespace unsloth::data {

struct AugmentRequest {
    std::string in;                 ///< file, folder or glob; empty: data.train_file
    std::string out;                ///< never empty
    std::string eval_out;           ///< for the rows that data.val_size holds out; empty: none
    std::string thesaurus;          ///< JSON; empty: no synonyms
    std::string back_translations;  ///< file, folder or glob; empty: none
    std::string id_column = "id";
    std::vector<std::string> fields;  ///< whose texts change; empty: those of the prompt
    int64_t copies = 1;               ///< of a row, by each of the first three ways
    double synonym_rate = 0.1, swap_rate = 0, delete_rate = 0;
};

struct AugmentCounts {
    std::string by;
    int64_t made = 0;
    int64_t unchanged = 0;  ///< not written, for they would repeat the row, or a copy of it
};

struct AugmentResult {
    int64_t read = 0;      ///< rows of the input
    int64_t bad = 0;       ///< dropped (with data.skip_invalid)
    int64_t held_out = 0;  ///< written to eval_out, as they are, and without copies
    int64_t kept = 0;      ///< written to out, as they are
    std::vector<AugmentCounts> copies;
    int64_t back_translations_unknown = 0;   ///< rows whose id no row of the input has
    int64_t back_translations_held_out = 0;  ///< rows of held-out rows, not used
};

/// Reads the request's input (else data.train_file) and writes JSON Lines: to `out` the rows to train on, each followed
/// by its copies, and to `eval_out` the rows that data.val_size holds out: those that a run over the input would hold
/// out with the same training.seed (if it drops no row). Columns, their order and values stay, but for the prompts'
/// words and the provenance.
///
/// Random choices are functions of (training.seed, row's id, number of the copy, kind of copy): with an id column, the
/// order of the rows makes no difference. Both files are complete or absent. Memory holds ids and back-translations,
/// not the rows.
///
/// Usage Error for a val_size without an eval_out and the reverse, for nothing to do, and for fields that the format
/// does not have; input Error (file:line) for bad rows unless skip_bad_rows, for an id that comes twice, and for rows
/// that are copies themselves.
AugmentResult augment_rows(const config::Config& config, const AugmentRequest& request);

/// A few lines for the log.
std::string describe(const AugmentResult& result);

}  // namespace unsloth::data
