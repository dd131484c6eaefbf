#include "import/importer.h"

#include <algorithm>
#include <sstream>

#include "unsloth/config/option_table.h"
#include "unsloth/config/render.h"
#include "unsloth/config/validate.h"
#include "unsloth/core/error.h"
#include "unsloth/core/text.h"
#include "unsloth/hub/hub.h"

namespace unsloth::import {
namespace {

std::string first_line(const std::string& text) {
    return text.substr(0, text.find('\n'));
}

/// The message of an Error, without the place in front of it.
std::string reason_of(const Error& failure, const std::string& origin) {
    const std::string text = first_line(failure.what());
    return text.starts_with(origin + ": ") ? text.substr(origin.size() + 2) : text;
}

}  // namespace

Importer::Importer(Json fields, std::filesystem::path folder) : fields_(std::move(fields)), folder_(std::move(folder)) {
    declare_options(options_, config_);
}

std::optional<Json> Importer::take(const std::string& key) {
    const auto found = fields_.find(key);
    if (found == fields_.end()) return std::nullopt;
    Json value = *found;
    fields_.erase(found);
    ++result_.carried;
    if (value.is_null()) return std::nullopt;
    return value;
}

std::optional<std::string> Importer::take_text(const std::string& key) {
    const auto value = take(key);
    if (!value || *value == "") return std::nullopt;
    if (value->is_string()) return value->get<std::string>();
    lose(key, cat("a text is expected, found ", shown(*value)));
    return std::nullopt;
}

bool Importer::take_flag(const std::string& key) {
    const auto value = take(key);
    if (!value) return false;
    if (value->is_boolean()) return value->get<bool>();
    lose(key, cat("true or false is expected, found ", shown(*value)));
    return false;
}

std::vector<std::string> Importer::take_names(const std::string& key) {
    const auto value = take(key);
    std::vector<std::string> names;
    if (!value) return names;
    if (value->is_string()) {
        std::istringstream parts(value->get<std::string>());
        for (std::string part; std::getline(parts, part, ',');) names.push_back(trimmed(part));
    } else if (value->is_array() &&
               std::all_of(value->begin(), value->end(), [](const Json& one) { return one.is_string(); })) {
        names = value->get<std::vector<std::string>>();
    } else {
        lose(key, cat("a list of names is expected, found ", shown(*value)));
    }
    return names;
}

Json Importer::look(const std::string& key) const {
    const auto found = fields_.find(key);
    return found == fields_.end() ? Json(nullptr) : *found;
}

bool Importer::is_null(const std::string& key) const {
    const auto found = fields_.find(key);
    return found != fields_.end() && found->is_null();
}

void Importer::spread(const std::string& key) {
    const auto members = take(key);
    if (!members) return;
    if (!members->is_object()) return lose(key, cat("an object is expected, found ", shown(*members)));
    --result_.carried;  // its members are counted
    for (const auto& [name, value] : members->items()) fields_[cat(key, ".", name)] = value;
}

void Importer::set_default(const std::string& option, const Json& value) {
    std::vector<std::string> notes;
    assign(*options_.find(option)->option, value, option, notes);
    given_.insert(option);
}

Json Importer::known_names(const std::string& key, const Option& target, const Json& value) {
    const bool is_synonym = std::any_of(target.synonyms.begin(), target.synonyms.end(),
                                        [&](const Synonym& one) { return one.written == value; });
    if (target.type != OptionType::text_list || target.choices.empty() || is_synonym || !value.is_array()) return value;
    Json known = Json::array();
    for (const Json& name : value) {
        const bool unknown =
            name.is_string() && std::find(target.choices.begin(), target.choices.end(), name) == target.choices.end();
        if (!unknown) {
            known.push_back(name);
            continue;
        }
        const std::string advice = advice_on_value(target, name);
        lose(key, cat(shown(name), ": ", target.full_name(), " is ", expectation(target), advice.empty() ? "" : "; ",
                      advice));
    }
    return known;
}

void Importer::set(const std::string& key, const std::string& option, const Json& given) {
    const Option& target = *options_.find(option)->option;
    const Json value = known_names(key, target, given);
    if (value.empty() && !given.empty() && given.is_array()) return;  // all of it is lost
    std::vector<std::string> notes;
    try {
        assign(target, value, key, notes);
        given_.insert(option);
    } catch (const Error& refused) {
        if (refused.kind() != ErrorKind::usage) throw;
        lose(key, cat(shown(value), ": ", reason_of(refused, key), "; ", option, " stays ", shown(target.get())));
    }
    for (const std::string& text : notes) result_.notes.push_back(text);
}

void Importer::carry(const std::string& key, const Json& value, const PeerField& field) {
    const Taken taken = config::take(field, value);
    if (!taken.refusal.empty()) {
        const std::string why = cat(shown(value), ": ", taken.refusal);
        return field.aside ? leave(key, why) : lose(key, why);
    }
    const bool as_it_is = taken.meaning && taken.meaning->second == value;
    if (!taken.note.empty() && !as_it_is) result_.notes.push_back(cat(key, " ", taken.note));
    if (taken.meaning) set(key, taken.meaning->first, taken.meaning->second);
}

void Importer::note(const std::string& key, const std::string& text) {
    result_.notes.push_back(cat(key, ": ", text));
}

void Importer::lose(const std::string& key, const std::string& why) {
    result_.losses.push_back(cat(key, ": ", why));
}

void Importer::leave(const std::string& key, const std::string& why) {
    result_.aside.push_back(cat(key, ": ", why));
}

void Importer::lose_unknown(const std::string& key) {
    ++unknown_;
    lose(key, "is not known");
}

void Importer::carry_by_our_name(const std::string& key, const Json& value) {
    for (const char* section : {"training", "lora", "model", "data"}) {
        const auto found = options_.find(cat(section, ".", key));
        if (!found) continue;
        if (value.is_null() && !found->option->takes_null())  // "not set", where these names come from
            return note(key, cat("null: ", found->option->full_name(), " stays ", shown(found->option->get())));
        if (found->alias == nullptr || !found->alias->when_true) return set(key, found->option->full_name(), value);
        if (value == true) set(key, found->option->full_name(), *found->alias->when_true);
        return;
    }
    const PeerField* const field = find_peer_field(key);
    if (field != nullptr) return carry(key, value, *field);
    lose_unknown(key);
}

std::filesystem::path Importer::find_file(const std::filesystem::path& name) const {
    if (std::filesystem::is_regular_file(name)) return name;
    std::filesystem::path above = std::filesystem::current_path() / folder_ / "";
    while (above.has_relative_path()) {
        above = above.parent_path();
        if (std::filesystem::is_regular_file(above / name)) return above / name;
    }
    return {};
}

void Importer::take_rest(const std::vector<PeerField>& table, bool by_our_names) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : fields_.items()) keys.push_back(key);
    for (const std::string& key : keys) {
        const auto field = std::find_if(table.begin(), table.end(), [&](const auto& one) { return one.key == key; });
        const Json value = take(key).value_or(nullptr);
        if (field != table.end()) {
            carry(key, value, *field);
        } else if (by_our_names) {
            carry_by_our_name(key, value);
        } else {
            lose_unknown(key);
        }
    }
}

ImportedConfig Importer::finish(std::string program) {
    UNSLOTH_CHECK(fields_.empty(), "fields are left: ", fields_.dump());
    Json whole = effective_json(options_);
    for (auto& [section, options] : whole.items()) {
        std::vector<std::string> absent;
        for (const auto& [key, value] : options.items())
            if (given_.count(cat(section, ".", key)) == 0) absent.push_back(key);
        for (const std::string& key : absent) options.erase(key);
    }
    Json written = Json::object();
    for (const auto& [section, options] : whole.items())
        for (const auto& [key, value] : options.items()) {
            const std::string& former = options_.find(cat(section, ".", key))->option->former;
            written[section][former.empty() ? key : former] = value;
        }
    result_.json = written.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    result_.program = std::move(program);

    LoadedConfig loaded;
    OptionSet options;
    config::declare_options(options, loaded.config);
    loaded.config = config_, loaded.given = given_;  // the options are bound to these
    Errors errors;
    validate(loaded, options, errors);
    try {
        errors.raise();
    } catch (const Error& refused) {
        result_.losses.push_back(cat("as a whole: a run would refuse it: ", refused.what()));
    }
    // A field may be lost once it was taken.
    const auto lost = static_cast<int64_t>(result_.losses.size() + result_.aside.size());
    result_.carried -= std::min(result_.carried, lost);
    return std::move(result_);
}

void set_sources(Importer& importer, const std::string& key, const std::vector<ImportedSource>& sources) {
    static const std::vector<std::pair<DataFormat, const char*>> names = {
        {DataFormat::tokenized, "tokenized"},
        {DataFormat::alpaca, "alpaca"},
        {DataFormat::messages, "messages"},
        {DataFormat::sharegpt, "sharegpt"},
        {DataFormat::text, "text"},
        {DataFormat::prompt_completion, "prompt_completion"},
        {DataFormat::preference, "preference"}};
    const auto name_of = [](DataFormat format) {
        for (const auto& [known, name] : names)
            if (known == format) return name;
        return "auto";
    };
    if (sources.empty()) return;
    const ImportedSource& first = sources.front();
    // What all sources share applies to evaluation rows too.
    const auto alike = [&](const auto& what) {
        return std::all_of(sources.begin(), sources.end(), [&](const auto& one) { return what(one) == what(first); });
    };
    const bool one_format = alike([](const ImportedSource& one) { return one.format; }),
               same_columns = alike([](const ImportedSource& one) { return one.columns; });
    if (one_format && first.format != DataFormat::automatic) importer.set(key, "data.format", name_of(first.format));
    if (same_columns && !first.columns.empty()) importer.set(key, "data.columns", first.columns);
    if (sources.size() == 1 && first.split.empty() && first.max_samples.is_null() && first.template_name.empty() &&
        first.config_name.empty()) {
        importer.set(key, "data.train_file", first.path);
    } else {
        Json list = Json::array();
        for (const ImportedSource& source : sources) {
            Json& one = list.emplace_back(Json{{"path", source.path}});
            if (!source.config_name.empty()) {
                one["name"] = source.config_name;
                importer.note(key, cat(source.path, ": of its configuration ", source.config_name,
                                       " the files in the folder of that name are read"));
            }
            if (!one_format && source.format != DataFormat::automatic) one["format"] = name_of(source.format);
            if (!source.split.empty()) one["split"] = source.split;
            if (source.weight) one["weight"] = *source.weight;
            if (!same_columns && !source.columns.empty()) one["columns"] = source.columns;
            if (!source.template_name.empty()) one["template"] = source.template_name;
            if (!source.max_samples.is_null()) one["max_samples"] = source.max_samples;
        }
        importer.set(key, "data.datasets", list);
    }
}

bool set_evaluation_sources(Importer& importer, const std::string& key, const std::vector<NamedSource>& sources) {
    const DataOptions& data = importer.config().data;
    Json files = Json::object();
    const bool one = sources.size() == 1;
    for (const auto& [given, source] : sources) {
        if (source.path.empty()) continue;
        if (one && !source.split.empty()) importer.set(key, "data.eval_split", source.split);
        if (!one && !source.split.empty()) {
            importer.lose(cat(key, " ", given, ".split"),
                          cat(source.split, ": name that split's files as data.eval_file (of the hub ",
                              "hf://datasets/ORG/NAME/FILES); without, it would be the rows that are trained on"));
            continue;
        }
        Json columns = Json::object();
        for (const auto& [ours, theirs] : data.columns) columns[ours] = theirs;
        const bool other_format = data.format != DataFormat::automatic && source.format != data.format;
        if (source.columns != columns || other_format)
            importer.lose(cat(key, " ", given),
                          "its rows have another form than those that are trained on, and data.format "
                          "and data.columns are of both; bring them into that form");
        std::string name;
        for (const char letter : given) name += std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
        while (name.empty() || files.contains(name)) name += '_';
        files[name] = hub::folder_of_configuration(source.path, source.config_name);
    }
    if (files.size() == 1) importer.set(key, "data.eval_file", files.front());
    if (files.size() > 1) importer.set(key, "data.eval_files", files);
    return !files.empty();
}

}  // namespace unsloth::import
