#include "app/sweep/axes.h"

#include <algorithm>
#include <array>

#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"
#include "unsloth/core/text.h"

namespace unsloth::app {
namespace {

/// At commas (or another separator) that no bracket, brace or quote encloses.
std::vector<std::string> split_outside(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    int depth = 0;
    bool quoted = false;
    for (const char letter : text) {
        if (letter == '"') quoted = !quoted;
        if (!quoted && (letter == '[' || letter == '{')) ++depth;
        if (!quoted && (letter == ']' || letter == '}')) --depth;
        if (letter == separator && depth == 0 && !quoted)
            parts.emplace_back();
        else
            parts.back() += letter;
    }
    for (std::string& part : parts) part = trimmed(part);
    return parts;
}

/// Whether a comma in a flag's text can only mean several values.
bool is_scalar(const Option& option) {
    return option.type == OptionType::boolean || option.type == OptionType::integer ||
           option.type == OptionType::number || option.type == OptionType::choice;
}

constexpr std::array comparable = {"training.learning_rate",     "training.seed",
                                   "training.weight_decay",      "training.max_grad_norm",
                                   "training.skip_on_spike",     "training.optim",
                                   "training.adam_beta1",        "training.adam_beta2",
                                   "training.adam_epsilon",      "training.neftune_noise_alpha",
                                   "training.lr_scheduler_type", "training.lr_scheduler_kwargs",
                                   "training.warmup_steps",      "training.warmup_ratio"};

/// Why trials with several values of this option cannot be compared; empty: they can.
std::string objection_to(const Option& option) {
    const std::string name = option.full_name();
    if (name == "lora.finetuning_type" || name == "lora.serve_grid")
        return "it changes what the trials are measured on";
    if (option.section == "lora") return "";
    if (std::find(comparable.begin(), comparable.end(), name) != comparable.end()) return "";
    if (option.section == "model") return "it changes the model";
    if (option.section == "data") return "it changes the data, and with it the loss";
    if (option.section == "preference" || option.section == "distill" || option.section == "grpo")
        return "it changes the loss itself";
    if (option.section == "training") return "a sweep's trials take the same steps, and report the same loss";
    return "it does not change training";
}

/// As an option reads them: of lists without the brackets that kept their commas together.
std::string as_flag_text(const Option& option, const std::string& value) {
    const bool bare_list = option.is_list() && value.starts_with("[") && value.ends_with("]") &&
                           Json::parse(value, nullptr, /*allow_exceptions=*/false).is_discarded();
    return bare_list ? value.substr(1, value.size() - 2) : value;
}

struct Table {
    Config config;
    OptionSet options;
    Table() { config::declare_options(options, config); }
    const Option& named(const std::string& name) const {
        if (const auto found = options.find_flag(name)) return *found->option;
        const std::string advice = did_you_mean(options.suggestions(name));
        throw Error("option.unknown", cat("--grid: there is no option ", name),
                    advice.empty() ? "unsloth-train help sweep lists the options." : advice);
    }
};

void refuse(const std::string& what, const std::string& advice) {
    throw Error("sweep.bad-axis", what, advice);
}

/// Of one axis; `given` by its own check of each value.
void check_axis(const Option& option, std::vector<std::string>& values, const Config& config) {
    const std::string name = option.full_name(), objection = objection_to(option);
    if (!objection.empty())
        refuse(cat(name, " cannot be swept: ", objection),
               "Axes are options of lora, and of training the learning rate, its schedule, the optimizer's and the "
               "seed.");
    if (values.size() < 2)
        refuse(cat(name, ": one value, ", values.front(), ", is no axis"),
               cat("Write --", name, " ", values.front(), ", or several values with commas between."));
    if (name == "training.seed" && config.data.val_size > 0)
        refuse("training.seed cannot be swept with data.val_size: each seed holds out other rows",
               "Name the held-out rows: data.eval_file.");
    std::vector<Json> read;
    std::vector<std::string> notes;
    for (std::string& value : values) {
        value = as_flag_text(option, value);
        const std::string origin = cat("--", name);
        if (value.empty()) throw Error("option.invalid-value", cat(origin, ": an empty value among those of the axis"));
        config::assign(option, config::parse_flag_text(option, value, origin), origin, notes);
        if (std::find(read.begin(), read.end(), option.get()) != read.end())
            refuse(cat(name, ": ", value, " is there twice"), "Name each value once.");
        read.push_back(option.get());
    }
}

}  // namespace

std::vector<std::string> take_axes(const std::vector<std::string>& arguments, SweepRequest& request) {
    const Table table;
    std::vector<std::string> left;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const auto name = config::flag_name(arguments[i]);
        const std::size_t equals = arguments[i].find('=');
        const bool joined = name && equals != std::string::npos;
        const bool separate = name && !joined && i + 1 < arguments.size() && !config::flag_name(arguments[i + 1]);
        const std::string text = joined ? arguments[i].substr(equals + 1) : separate ? arguments[i + 1] : "";
        const auto found = name ? table.options.find_flag(*name) : std::nullopt;
        if (found && is_scalar(*found->option) && split_outside(text, ',').size() > 1) {
            request.axes.emplace_back(found->option->full_name(), split_outside(text, ','));
            i += joined ? 0 : 1;
            continue;
        }
        const bool valued = name && (*name == "grid" || *name == "steps" || *name == "nproc_per_node");
        const bool bare = name && *name == "find_lr";
        const bool two = !joined && ((valued && separate) || (bare && separate && config::parse_boolean(text)));
        for (std::size_t word = i; word <= i + (two ? 1 : 0); ++word) {
            left.push_back(arguments[word]);
            if (!valued && !bare) request.arguments.push_back(arguments[word]);
        }
        i += two ? 1 : 0;
    }
    return left;
}

void read_axes(SweepRequest& request, const std::set<std::string>& typed, const Config& config) {
    const Table table;
    for (const std::string& part : split_outside(request.grid, ';')) {
        if (part.empty()) continue;
        const std::size_t equals = part.find('=');
        if (equals == std::string::npos)
            throw Error("option.invalid-value", cat("--grid: expected OPTION=VALUE,VALUE, found '", part, "'"),
                        "Axes are separated by semicolons: --grid 'learning_rate=1e-4,2e-4;r=8,16'.");
        request.axes.emplace_back(table.named(trimmed(part.substr(0, equals))).full_name(),
                                  split_outside(part.substr(equals + 1), ','));
    }
    std::set<std::string> names;
    std::size_t trials = 1;
    for (auto& [name, values] : request.axes) {
        if (!names.insert(name).second || typed.contains(name))
            throw Error("option.conflict", cat(name, " is given twice"), "Name all its values in one place.");
        check_axis(table.named(name), values, config);
        trials *= values.size();
    }
    if (trials > most_trials)
        refuse(cat("the axes make ", trials, " settings, and a sweep tries ", most_trials, " at most"),
               "Take fewer values; sweep the learning rate first, then the rest at the best one.");
}

std::vector<std::vector<std::pair<std::string, std::string>>> combinations(const SweepRequest& request) {
    std::vector<std::vector<std::pair<std::string, std::string>>> all(1);
    for (const auto& [name, values] : request.axes) {
        std::vector<std::vector<std::pair<std::string, std::string>>> longer;
        for (const auto& begun : all)
            for (const std::string& value : values) {
                longer.push_back(begun);
                longer.back().emplace_back(name, value);
            }
        all = std::move(longer);
    }
    return all;
}

}  // namespace unsloth::app
