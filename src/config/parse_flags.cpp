#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "unsloth/config/parse.h"
#include "unsloth/config/peer_fields.h"
#include "unsloth/core/error.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/core/shell_word.h"
#include "unsloth/core/suggest.h"

namespace unsloth::config {
namespace {

/// What files of rows are called that are not configurations.
constexpr std::array row_suffixes{".jsonl", ".csv", ".tsv", ".txt", ".parquet", ".arrow", ".gz", ".zst"};

struct Flag {
    std::string name;                  ///< without the dashes in front, with underscores inside
    std::string written;               ///< "--name" as the user wrote it
    std::optional<std::string> value;  ///< what follows '='
};

bool is_flag(const std::string& argument) {
    return argument.size() > 2 && argument.starts_with("--");
}

Flag split_flag(const std::string& argument) {
    const auto equals = argument.find('=');
    Flag flag;
    flag.written = argument.substr(0, equals);
    flag.name = flag.written.substr(2);
    std::replace(flag.name.begin(), flag.name.end(), '-', '_');
    if (equals != std::string::npos) flag.value = argument.substr(equals + 1);
    return flag;
}

/// What a flag's text says where no option's type tells: JSON where it is some, Python's constants, else a string.
Json guessed_value(const std::string& text) {
    if (text == "True") return true;
    if (text == "False") return false;
    if (text == "None") return nullptr;
    const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    return value.is_discarded() ? Json(text) : value;
}

class FlagReader {
  public:
    FlagReader(const std::vector<std::string>& arguments, const OptionSet& options, ParseRecord& record)
        : arguments_(arguments), options_(options), record_(record) {
        for (const auto& option : options.options())
            if (option.positional) positionals_.push_back(&option);
    }

    std::vector<Assignment> read() {
        while (next_ < arguments_.size()) {
            const std::string& argument = arguments_[next_++];
            if (is_flag(argument)) {
                read_flag(split_flag(argument));
            } else {
                record_.errors.collect({}, [&] { read_positional(argument); });
            }
        }
        return std::move(assignments_);
    }

    std::vector<Assignment> read_leading(std::size_t& used) {
        while (next_ < arguments_.size() && is_flag(arguments_[next_])) {
            const Flag flag = split_flag(arguments_[next_]);
            if (!options_.find_flag(flag.name)) break;
            ++next_;
            read_flag(flag);
        }
        used = next_;
        return std::move(assignments_);
    }

  private:
    void read_flag(const Flag& flag) {
        Names doubtful;
        record_.errors.collect(doubtful, [&] {
            const auto found = options_.find_flag(flag.name);
            if (!found || found->option->positional) return read_unknown(flag);
            doubtful = {found->option->full_name()};
            read_known(flag, *found);
        });
    }

    void read_known(const Flag& flag, const Found& found) {
        const Option& option = *found.option;
        if (found.alias != nullptr && found.alias->when_true) {
            if (read_shorthand(flag)) add(option, *found.alias->when_true, flag.written, found.alias);
            return;
        }
        const auto text =
            option.flag_needs_no_value ? value_or_nothing(flag, option) : std::optional(value_of(flag, option));
        add(option, text ? parse_flag_text(option, *text, flag.written) : Json(true), flag.written, found.alias);
    }

    void read_unknown(const Flag& flag) {
        // What follows is its value, and no error of its own.
        const auto text = flag.value ? flag.value
                          : next_ < arguments_.size() && !is_flag(arguments_[next_])
                              ? std::optional(arguments_[next_++])
                              : std::nullopt;
        const PeerField* const field = find_peer_field(flag.name);
        if (field != nullptr && options_.has_section(field->section)) {
            const Json value = text ? guessed_value(*text) : Json(true);
            const auto meaning = meaning_of(*field, value, flag.written, record_.notes);
            if (meaning) add(*options_.find(meaning->first)->option, meaning->second, flag.written);
            return;
        }
        const Names meant = options_.suggestions(flag.name);
        std::string advice = did_you_mean(meant, "--");
        if (advice.empty() && record_.advice_on_flag != nullptr) advice = record_.advice_on_flag(flag.name);
        Names doubtful = meant;
        if (advice.empty()) {
            // With --help nothing would be missing.
            if (const Names others = nearest(flag.name, {"help", "help-all", "version", "config"}); !others.empty())
                advice = did_you_mean(others, "--"), doubtful.push_back("config");
        }
        record_.errors.add(Error("option.unknown", cat("unknown option ", flag.written),
                                 advice.empty() ? "--help lists the options." : advice),
                           doubtful);
    }

    void read_positional(const std::string& argument) {
        if (argument.size() > 1 && argument.starts_with("-"))
            return refuse_argument(
                {"option.unknown", cat("unknown option ", argument), "Options start with two dashes; see --help."});
        for (const Option& option : options_.options())
            if (option.is_named_by != nullptr && option.is_named_by(argument))
                return add(option, argument, option.placeholder);
        if (positionals_.empty()) {
            return refuse_argument(
                {"option.misplaced", cat("unexpected argument '", argument, "'"), advice_on_misplaced(argument)});
        }
        const Option& option = *positionals_.front();
        if (option.type == OptionType::text_list) {  // takes all that follow
            rest_.push_back(argument);
            return add(option, rest_, option.placeholder);
        }
        positionals_.erase(positionals_.begin());
        add(option, parse_flag_text(option, argument, option.placeholder), option.placeholder);
    }

    /// It may have been meant as the configuration: what that would hold is then not missed.
    void refuse_argument(const Error& error) { record_.errors.add(error, {"config"}); }

    std::string advice_on_misplaced(const std::string& argument) const {
        const Assignment* const last = assignments_.empty() ? nullptr : &assignments_.back();
        if (last != nullptr && last->option->is_list() && last->value.is_array())
            return "Lists are written with commas: " + last->origin + " A,B,C";
        for (const auto& [file, option] :
             {std::pair{"adapter_config.json", "model.adapter_name_or_path"}, {"config.json", "model.path"}}) {
            const auto found = options_.find(option);
            std::error_code ignored;
            if (found && !found->option->unread &&
                std::filesystem::exists(std::filesystem::path(argument) / file, ignored))
                return cat("Name the folder with --", option, " ", shell_word(argument), ".");
        }
        const auto rows = options_.find("data.train_file");
        const bool holds_rows = std::any_of(row_suffixes.begin(), row_suffixes.end(),
                                            [&](const char* suffix) { return argument.ends_with(suffix); });
        std::error_code ignored;
        const bool exists = std::filesystem::exists(argument, ignored);
        if (exists && holds_rows && rows && !rows->option->unread)
            return cat("Name a file of rows with --data.train_file ", shell_word(argument), ".");
        const std::string meant =
            exists || argument.find_first_of("./") == std::string::npos ? "" : nearest_path(argument);
        return meant.empty() ? "Options are written --key VALUE; see --help." : meant;
    }

    // The next argument belongs to the flag whatever it holds (-1, a text with spaces), unless it is a flag itself.
    std::string value_of(const Flag& flag, const Option& option) {
        if (flag.value) return *flag.value;
        if (next_ >= arguments_.size() || is_flag(arguments_[next_]))
            throw Error(
                "option.invalid-value", cat(flag.written, " needs a value: ", expectation(option)),
                cat("Write ", flag.written, " VALUE, or ", flag.written, "=VALUE for one that starts with --."));
        return arguments_[next_++];
    }

    // A flag that may stand alone takes the next argument only where it can be its value.
    std::optional<std::string> value_or_nothing(const Flag& flag, const Option& option) {
        if (flag.value) return flag.value;
        if (next_ >= arguments_.size()) return std::nullopt;
        const std::string& next = arguments_[next_];
        const bool is_value = option.type == OptionType::boolean
                                  ? parse_boolean(next).has_value() || (option.nullable && next == "null")
                                  : !is_flag(next);
        if (!is_value) return std::nullopt;
        return arguments_[next_++];
    }

    bool read_shorthand(const Flag& flag) {
        Option boolean;
        boolean.type = OptionType::boolean;
        const auto text = value_or_nothing(flag, boolean);
        if (!text) return true;
        if (const auto value = parse_boolean(*text)) return *value;
        throw Error("option.invalid-value", cat(flag.written, ": expected true or false, found '", *text, "'"));
    }

    void add(const Option& option, Json value, std::string origin, const Alias* alias = nullptr) {
        const auto before = std::find_if(assignments_.begin(), assignments_.end(),
                                         [&](const Assignment& a) { return a.option == &option; });
        if (option.adds_to_list && before != assignments_.end() && before->value.is_array() && value.is_array()) {
            before->value.insert(before->value.end(), value.begin(), value.end());
            return;
        }
        assignments_.push_back({&option, std::move(value), std::move(origin), alias});
    }

    const std::vector<std::string>& arguments_;
    const OptionSet& options_;
    ParseRecord& record_;
    std::vector<Assignment> assignments_;
    std::vector<const Option*> positionals_;
    Json rest_ = Json::array();  ///< of the arguments of a positional list
    std::size_t next_ = 0;
};

/// Of one option. A shorthand such as --fp16 is a value: of it and the option itself the later flag wins, and two
/// shorthands contradict each other.
bool are_two_names(const Assignment& one, const Assignment& other) {
    const auto is_name = [](const Alias* alias) { return alias == nullptr || !alias->when_true; };
    return one.alias != other.alias && is_name(one.alias) == is_name(other.alias);
}

}  // namespace

std::vector<Assignment> parse_flags(const std::vector<std::string>& arguments, const OptionSet& options,
                                    ParseRecord& record) {
    return FlagReader(arguments, options, record).read();
}

void settle_shared_keys(std::vector<Assignment>& assignments, const OptionSet& options) {
    const auto objective = options.find("training.objective");
    if (!objective) return;
    Json chosen = objective->option->get();
    for (const Assignment& assignment : assignments)
        if (assignment.option == objective->option) chosen = assignment.value;
    if (chosen != "grpo") return;
    for (Assignment& assignment : assignments) {
        const bool is_short = assignment.origin.find('.') == std::string::npos && assignment.alias == nullptr;
        if (!is_short || assignment.option->section.empty()) continue;  // a command's own option
        const auto shared = options.find("grpo." + assignment.option->key);
        if (shared && shared->option->full_name_only && !shared->option->unread) assignment.option = shared->option;
    }
}

std::vector<Assignment> parse_leading_flags(const std::vector<std::string>& arguments, const OptionSet& options,
                                            ParseRecord& record, std::size_t& used) {
    return FlagReader(arguments, options, record).read_leading(used);
}

std::optional<std::string> flag_name(const std::string& argument) {
    return is_flag(argument) ? std::optional(split_flag(argument).name) : std::nullopt;
}

void apply(const std::vector<Assignment>& assignments, ParseRecord& record) {
    std::map<const Option*, const Assignment*> first;
    for (const auto& assignment : assignments) {
        const Option& option = *assignment.option;
        const Assignment& earlier = *first.emplace(&option, &assignment).first->second;  // or this one
        record.errors.collect({option.full_name()}, [&] {
            const Json before = option.get();
            assign(option, assignment.value, assignment.origin, record.notes);
            if (&earlier != &assignment && are_two_names(earlier, assignment) && option.get() != before)
                throw Error("option.conflict",
                            cat(earlier.origin, " and ", assignment.origin, " contradict each other"),
                            cat("Both set ", option.full_name(), "; leave one out."));
        });
        record.given.insert(option.full_name());
    }
}

}  // namespace unsloth::config
