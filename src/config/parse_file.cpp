#include <algorithm>
#include <map>

#include "unsloth/config/file_owner.h"
#include "unsloth/config/parse.h"
#include "unsloth/config/peer_fields.h"
#include "unsloth/config/read_tree.h"
#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth::config {
namespace {

Names section_names(const OptionSet& options) {
    Names names;
    for (const auto& section : options.sections())
        if (!section.name.empty()) names.push_back(section.name);
    return names;
}

void add_unknown_section(Errors& errors, const std::string& file, const std::string& name, const OptionSet& options) {
    const Names sections = section_names(options);
    const Names near = nearest(name, sections);
    Names meant = options.suggestions(name);
    if (const PeerField* const field = find_peer_field(name)) meant = {cat(field->section, ".", name)};
    // A key without its section is more likely than a misspelt section.
    std::string advice = near.empty() ? did_you_mean(meant) : did_you_mean(near);
    if (near.empty() && !meant.empty()) advice += " Each key belongs in its section: {\"training\": {\"seed\": 1}}.";
    if (advice.empty()) {
        advice = "The sections are";
        for (const auto& section : sections) advice += (section == sections.front() ? " " : ", ") + section;
        advice += ".";
    }
    const Names& doubtful = !near.empty() ? near : !meant.empty() ? meant : sections;
    errors.add(Error("option.unknown", cat(file, ": unknown section '", name, "'"), advice), doubtful);
}

class FileReader {
  public:
    FileReader(std::string file, const OptionSet& options, ParseRecord& record)
        : file_(std::move(file)), options_(options), record_(record) {}

    void read(const Json& root) {
        if (!root.is_object())
            throw Error("config.not-an-object", cat(file_, ": expected an object of sections at the top"));
        refuse_foreign(owner_of(root));
        for (const auto& [name, content] : root.items()) {
            if (name == "$schema") continue;  // for editors
            if (name.empty() || !options_.has_section(name)) {
                add_unknown_section(record_.errors, file_, name, options_);
            } else if (!content.is_object()) {
                record_.errors.add(
                    Error("config.not-an-object", cat(file_, ": ", name, ": expected an object of options")), {name});
            } else {
                for (const auto& [key, value] : content.items()) read_key(name + "." + key, value);
            }
        }
    }

  private:
    /// One word on a file of another program, instead of one on each of its fields.
    void refuse_foreign(const FileOwner& owner) const {
        const auto is_ours = [&](const std::string& mark) {
            const auto has_key = [&](const auto& one) { return one.key == mark; };
            return std::any_of(options_.options().begin(), options_.options().end(), [&](const Option& option) {
                return has_key(option) || std::any_of(option.aliases.begin(), option.aliases.end(), has_key);
            });
        };
        if (owner.ours || std::all_of(owner.marks.begin(), owner.marks.end(), is_ours)) return;
        throw Error("config.other-program",
                    cat(file_, owner.importable ? " seems to be a configuration of " : " is of ", owner.name, " (",
                        owner.shown_marks(), "), not of this program"),
                    owner.importable ? cat("unsloth-train import-config ", file_, " --out run.json makes one of it.")
                                     : owner.advice);
    }

    void read_key(const std::string& name, const Json& value) {
        if (const auto found = options_.find(name)) {
            record_.errors.collect({found->option->full_name()}, [&] { read_option(*found, name, value); });
        } else if (const PeerField* const field = find_peer_field(name)) {
            record_.errors.collect({field->option}, [&] { read_peer_field(*field, name, value); });
        } else {
            const Names meant = options_.suggestions(name);
            const std::string advice = did_you_mean(meant);
            record_.errors.add(Error("option.unknown", cat(file_, ": unknown option ", name),
                                     advice.empty() ? "--help lists the options." : advice),
                               meant);
        }
    }

    void read_option(const Found& found, const std::string& name, const Json& value) {
        const Option& option = *found.option;
        const std::string origin = cat(file_, ": ", name);
        // Another name's null, unless it means something else than the default.
        const bool unset = found.alias != nullptr && value.is_null() && !option.nullable &&
                           (found.alias->when_true || !option.null_changes_it());
        if (unset) {
            // Where these names come from, null is "not set".
            record_.notes.push_back(cat(name, " is null: ", option.full_name(), " stays ", option.get().dump()));
        } else if (found.alias == nullptr || !found.alias->when_true) {
            set(option, name, value, origin);
            if (found.alias != nullptr && found.alias->section != option.section)
                record_.notes.push_back(cat(name, " is taken as ", option.full_name()));
        } else if (!value.is_boolean()) {
            throw Error("option.invalid-value", cat(origin, ": expected true or false, found ", value.dump()));
        } else if (value == true) {
            set(option, name, *found.alias->when_true, origin);
        }
    }

    void read_peer_field(const PeerField& field, const std::string& name, const Json& value) {
        const std::string origin = cat(file_, ": ", name);
        const auto meaning = meaning_of(field, value, origin, record_.notes);
        if (meaning) set(*options_.find(meaning->first)->option, name, meaning->second, origin);
    }

    // Two names of one option may both stand in a file only if they agree.
    void set(const Option& option, const std::string& name, const Json& value, const std::string& origin) {
        const Json before = option.get();
        assign(option, value, origin, record_.notes);
        const auto [earlier, is_first] = named_by_.emplace(option.full_name(), name);
        if (!is_first && option.get() != before)
            throw Error("option.conflict", cat(file_, ": ", earlier->second, " and ", name, " contradict each other"),
                        cat("Both set ", option.full_name(), "; leave one out."));
        record_.given.insert(option.full_name());
    }

    std::string file_;
    const OptionSet& options_;
    ParseRecord& record_;
    std::map<std::string, std::string> named_by_;
};

}  // namespace

void read_config_file(const std::filesystem::path& path, const OptionSet& options, ParseRecord& record) {
    // Of a file that cannot be read nothing is known.
    record.errors.collect(section_names(options),
                          [&] { read_config_tree(read_tree(path), path.string(), options, record); });
}

void read_config_tree(const Json& root, const std::string& source, const OptionSet& options, ParseRecord& record) {
    FileReader(source, options, record).read(root);
}

}  // namespace unsloth::config
