#include <algorithm>
#include <map>
#include <string_view>

#include "config/parse.h"
#include "config/suggest.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth::config {
namespace {

// ":line:column" of a character, all counted from 1.
std::string position_text(const std::string& content, std::size_t character) {
    const std::size_t index = std::min(character > 0 ? character - 1 : 0, content.size());
    const std::string_view before = std::string_view(content).substr(0, index);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const auto line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    return cat(":", line, ":", index - line_start + 1);
}

// The library's text without its own prefix and position.
std::string reason_of(const nlohmann::json::exception& failure) {
    const std::string text = failure.what();
    if (const auto column = text.find("column "); column != std::string::npos)
        if (const auto colon = text.find(": ", column); colon != std::string::npos) return text.substr(colon + 2);
    const auto bracket = text.find("] ");
    return bracket == std::string::npos ? text : text.substr(bracket + 2);
}

// No option takes so much; what is shown in messages is written by a function that recurses.
constexpr int deepest = 64;

// The library keeps the last of two equal keys without a word.
Json::parser_callback_t refuse_oddities(const std::string& file) {
    return [file, seen = std::vector<std::set<std::string>>()](int depth, Json::parse_event_t event,
                                                               Json& parsed) mutable {
        if (depth > deepest) throw usage_error(cat(file, ": lists and objects nest deeper than ", deepest, " levels"));
        if (event == Json::parse_event_t::object_start) seen.emplace_back();
        if (event == Json::parse_event_t::object_end) seen.pop_back();
        if (event == Json::parse_event_t::key && !seen.back().insert(parsed.get<std::string>()).second)
            throw usage_error(cat(file, ": the key ", parsed.dump(), " stands twice in one object"));
        return true;
    };
}

Json parse_json_file(const std::filesystem::path& path) {
    std::string content;
    try {
        content = read_file(path);
    } catch (const Error& failure) {
        throw usage_error(cat("configuration: ", failure.what()));
    }
    try {
        return Json::parse(content, refuse_oddities(path.string()), /*allow_exceptions=*/true,
                           /*ignore_comments=*/true);
    } catch (const nlohmann::json::parse_error& failure) {
        throw usage_error(
            cat(path.string(), position_text(content, failure.byte), ": no valid JSON: ", reason_of(failure)));
    } catch (const nlohmann::json::exception& failure) {  // a number that no double holds
        throw usage_error(cat(path.string(), ": no valid JSON: ", reason_of(failure)));
    }
}

[[noreturn]] void unknown_section(const std::string& file, const std::string& name, const OptionSet& options) {
    std::vector<std::string> sections;
    for (const auto& section : options.sections())
        if (!section.name.empty()) sections.push_back(section.name);
    const auto near = nearest(name, sections);
    const auto meant = options.suggestions(name);
    // A key without its section is more likely than a misspelt section.
    std::string advice = near.empty() ? did_you_mean(meant) : did_you_mean(near);
    if (near.empty() && !meant.empty()) advice += " Each key stands in its section: {\"training\": {\"seed\": 1}}.";
    if (advice.empty()) {
        advice = "The sections are";
        for (const auto& section : sections) advice += (section == sections.front() ? " " : ", ") + section;
        advice += ".";
    }
    throw usage_error(cat(file, ": unknown section '", name, "'"), advice);
}

class FileReader {
  public:
    FileReader(std::string file, const OptionSet& options, ParseRecord& record)
        : file_(std::move(file)), options_(options), record_(record) {}

    void read(const Json& root) {
        if (!root.is_object()) throw usage_error(cat(file_, ": expected an object of sections at the top"));
        for (const auto& [name, content] : root.items()) {
            if (name == "$schema") continue;  // for editors
            const auto& sections = options_.sections();
            const auto known = [&, &name = name](const Section& section) { return section.name == name; };
            if (name.empty() || std::none_of(sections.begin(), sections.end(), known))
                unknown_section(file_, name, options_);
            if (!content.is_object()) throw usage_error(cat(file_, ": ", name, ": expected an object of options"));
            for (const auto& [key, value] : content.items()) read_key(name + "." + key, value);
        }
    }

  private:
    void read_key(const std::string& name, const Json& value) {
        const auto found = options_.find(name);
        if (!found) {
            const std::string advice = did_you_mean(options_.suggestions(name));
            throw usage_error(cat(file_, ": unknown option ", name),
                              advice.empty() ? "--help lists the options." : advice);
        }
        const Option& option = *found->option;
        const std::string origin = cat(file_, ": ", name);
        if (found->alias != nullptr && found->alias->when_true) {
            if (!value.is_boolean()) throw usage_error(cat(origin, ": expected true or false, found ", value.dump()));
            if (!value.get<bool>()) return;
            set(option, name, *found->alias->when_true, origin);
        } else {
            set(option, name, value, origin);
        }
    }

    // Two names of one option may both stand in a file only if they agree.
    void set(const Option& option, const std::string& name, const Json& value, const std::string& origin) {
        const Json before = option.get();
        assign(option, value, origin, record_.notes);
        const auto [earlier, is_first] = named_by_.emplace(option.full_name(), name);
        if (!is_first && option.get() != before)
            throw usage_error(cat(file_, ": ", earlier->second, " and ", name, " contradict each other"),
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
    FileReader(path.string(), options, record).read(parse_json_file(path));
}

}  // namespace unsloth::config
