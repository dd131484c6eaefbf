// Tables made by make_character_tables.py, each sorted by its first column.
#pragma once

#include <cstdint>
#include <vector>

namespace unsloth::tokenizer::jinja::text {

/// Every `step`th code point from first to last.
struct CharacterRun {
    char32_t first, last, step;
};
struct CaseRun {
    char32_t first, last, step;
    int32_t offset;  ///< to the mapped code point
};
/// One code point that becomes several, padded with zeros.
struct CaseExpansion {
    char32_t code_point, to[3];
};

const std::vector<CaseRun>& lower_runs();
const std::vector<CaseRun>& upper_runs();
const std::vector<CaseRun>& title_runs();
const std::vector<CaseRun>& fold_runs();
const std::vector<CaseExpansion>& lower_expansions();
const std::vector<CaseExpansion>& upper_expansions();
const std::vector<CaseExpansion>& title_expansions();
const std::vector<CaseExpansion>& fold_expansions();

const std::vector<CharacterRun>& uppercase_runs();
const std::vector<CharacterRun>& lowercase_runs();
const std::vector<CharacterRun>& titlecase_runs();
const std::vector<CharacterRun>& alphabetic_runs();
const std::vector<CharacterRun>& decimal_runs();
const std::vector<CharacterRun>& digit_runs();
const std::vector<CharacterRun>& numeric_runs();
const std::vector<CharacterRun>& printable_runs();
const std::vector<CharacterRun>& cased_runs();
const std::vector<CharacterRun>& case_ignorable_runs();

}  // namespace unsloth::tokenizer::jinja::text
