// The texts of a row that augmentation may change.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/data/format.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {

/// Which texts of a row's format are meant.
struct TextFields {
    config::DataFormat format = config::DataFormat::automatic;
    ColumnNames columns;  ///< {name here, name in the file}: the rows have the file's names
    std::set<std::string>
        names;  ///< alpaca: instruction, input, system, output; prompt_completion: prompt, completion; messages and
                ///< sharegpt: roles (user, system, assistant, tool); text: text

    std::string column(const std::string& name) const;
};

/// `asked` empty: what a user says (instruction and input, prompt, user). Usage Error for names that the format does
/// not have, and for text, where nothing is the user's alone; input Error for formats that have no texts.
TextFields text_fields(config::DataFormat format, const ColumnNames& columns, const std::vector<std::string>& asked);

/// {name, text}: "instruction", "messages[2].content".
using NamedTexts = std::vector<std::pair<std::string, std::string>>;

/// The row's texts of these fields, in order; columns that are absent or null are skipped. BadRow for columns of
/// another type.
NamedTexts texts_of(const nlohmann::ordered_json& row, const TextFields& fields);

/// Puts texts back in their places, by name; BadRow for a name that the row does not have.
void set_texts(nlohmann::ordered_json& row, const TextFields& fields, const NamedTexts& texts);

}  // namespace unsloth::data
