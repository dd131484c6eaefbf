// Filling an OptionSet's objects from a JSON or YAML file and from flags.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "unsloth/config/errors.h"
#include "unsloth/config/option_set.h"

namespace unsloth::config {

/// What was set by whom, what the user must be shown, and what was wrong.
struct ParseRecord {
    std::set<std::string> given;  ///< full names
    std::vector<std::string> notes;
    Errors errors;
    /// What to do about an unknown flag that is like no option here; null: nothing is known.
    std::string (*advice_on_flag)(const std::string& name) = nullptr;
};

/// A JSON or YAML file (by its name) of sections. Unreadable, malformed (with line and column), unknown, doubly named
/// or wrong: among the record's errors.
void read_config_file(const std::filesystem::path& path, const OptionSet& options, ParseRecord& record);
/// The same of its sections as a value; `source` names them in messages. Throws where they are no object, or of another
/// program.
void read_config_tree(const Json& root, const std::string& source, const OptionSet& options, ParseRecord& record);

/// A flag or positional argument, understood but not yet assigned.
struct Assignment {
    const Option* option = nullptr;
    Json value;
    std::string origin;            ///< as the user wrote it: "--lora-r"
    const Alias* alias = nullptr;  ///< by which it was called
};

/// Flags and positional arguments in their order. Unknown ones and missing values are among the record's errors.
std::vector<Assignment> parse_flags(const std::vector<std::string>& arguments, const OptionSet& options,
                                    ParseRecord& record);

/// The flags in front, up to the first argument that is no flag of `options`; `used`: how many arguments they are.
std::vector<Assignment> parse_leading_flags(const std::vector<std::string>& arguments, const OptionSet& options,
                                            ParseRecord& record, std::size_t& used);

/// The name that "--some-name=value" calls, "some_name"; nothing for an argument that is no flag.
std::optional<std::string> flag_name(const std::string& argument);

/// Assigns in order, so that a later flag wins over an earlier one of the same name; two names of one option must
/// agree. Wrong values are among the record's errors.
void apply(const std::vector<Assignment>& assignments, ParseRecord& record);

/// A key without its section that section grpo and another one have, such as --beta, means grpo's where
/// training.objective is grpo. After the file was read, before apply().
void settle_shared_keys(std::vector<Assignment>& assignments, const OptionSet& options);

}  // namespace unsloth::config
