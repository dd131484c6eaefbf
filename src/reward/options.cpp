#include "reward/options.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "reward/built_in.h"
#include "unsloth/core/error.h"
#include "unsloth/core/json_reader.h"
#include "unsloth/core/suggest.h"

namespace unsloth::reward {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_built_in(const std::string& name) {
    return std::ranges::find(built_in_names(), name) != built_in_names().end();
}

[[noreturn]] void refuse_entry(const Entry& entry, const std::string& what, const std::string& advice = {}) {
    throw Error("reward.bad-entry", cat(entry.where, ": ", what), advice);
}

/// "FILE.py:FUNCTION", "MODULE:FUNCTION" or "MODULE.FUNCTION".
void read_function(Entry& entry, const std::string& text, const fs::path& folder) {
    entry.kind = Entry::Kind::python;
    const std::size_t colon = text.rfind(':'), dot = text.rfind('.');
    if (text.ends_with(".py") && colon == std::string::npos)
        refuse_entry(entry, cat("'", text, "' names a file, and no function of it"),
                     cat("Write it as '", text, ":FUNCTION'."));
    const std::size_t cut = colon != std::string::npos ? colon : dot;
    if (cut == std::string::npos || cut == 0 || cut + 1 == text.size()) {
        std::vector<std::string> names = built_in_names();
        refuse_entry(entry, cat("'", text, "' is neither a built-in reward nor a function"),
                     cat(did_you_mean(nearest(text, names)), names.empty() ? "" : " ",
                         "Functions are FILE.py:FUNCTION or MODULE:FUNCTION."));
    }
    const std::string from = text.substr(0, cut);
    entry.function = text.substr(cut + 1);
    entry.name = entry.function;
    if (!from.ends_with(".py")) {
        entry.module = from;
        return;
    }
    std::error_code reason;
    entry.file = fs::weakly_canonical(fs::absolute(folder / from), reason);
    if (!fs::is_regular_file(entry.file, reason))
        refuse_entry(entry, cat("there is no file ", entry.file.string()),
                     "Relative files are looked up in the configuration's folder.");
}

const std::vector<std::string>& kinds_with_process() {
    static const std::vector<std::string> all{"py", "command", "http"};
    return all;
}

void read_style(Entry& entry, const std::string& style) {
    const std::vector<std::string> known = entry.kind == Entry::Kind::http
                                               ? std::vector<std::string>{"json", "openrlhf", "slime"}
                                               : std::vector<std::string>{"trl", "swift", "verl", "openrlhf"};
    if (std::ranges::find(known, style) == known.end()) {
        std::string all;
        for (const std::string& one : known) all += cat(all.empty() ? "" : ", ", one);
        refuse_entry(entry, cat("style is '", style, "'"), cat("Known styles: ", all, "."));
    }
    entry.style = style;
}

void read_common(Entry& entry, const std::string& key, const JsonReader<json>& value) {
    if (key == "name") {
        entry.name = value.string();
        if (entry.name.empty()) value.refuse("a name");
    } else if (key == "weight") {
        entry.weight = value.number();
    } else if (key == "timeout") {
        const double seconds = value.number();
        if (!(seconds > 0) || seconds > 1e6) value.refuse("seconds above 0");
        entry.timeout = std::chrono::milliseconds(std::llround(std::max(1.0, seconds * 1000)));
    } else if (key == "on_error") {
        const std::string& text = value.string();
        if (text != "stop" && text != "none" && text != "drop") value.refuse("stop, none or drop");
        entry.on_error = text == "stop" ? OnError::stop : text == "none" ? OnError::none : OnError::drop;
    } else if (entry.kind == Entry::Kind::built_in) {
        value.refuse("no such key for a built-in reward, whose arguments are in its own object");
    } else if (key == "kwargs" && entry.kind != Entry::Kind::http) {
        if (!value.value().is_object()) value.refuse("an object");
        entry.arguments = value.value();
    } else if (key == "style" && entry.kind != Entry::Kind::command) {
        read_style(entry, value.string());
    } else if (key == "label" && entry.kind != Entry::Kind::command) {
        entry.label = value.string();
    } else if (key == "factory" && entry.kind == Entry::Kind::python) {
        entry.factory = value.boolean();
    } else if (key == "gpu" && entry.kind != Entry::Kind::http) {
        entry.gpu = value.boolean();
    } else {
        refuse_entry(entry, cat("unknown key '", key, "'"),
                     did_you_mean(nearest(key, {"name", "weight", "timeout", "on_error", "kwargs", "style", "label",
                                                "factory", "gpu"})));
    }
}

/// The one key that says what kind of reward the entry is.
std::string kind_of(const Entry& entry, const json& object) {
    std::string found;
    for (const auto& [key, ignored] : object.items()) {
        if (!is_built_in(key) && std::ranges::find(kinds_with_process(), key) == kinds_with_process().end()) continue;
        if (!found.empty())
            refuse_entry(entry, cat("is both '", found, "' and '", key, "'"), "Make two entries of it.");
        found = key;
    }
    if (found.empty()) {
        std::string all = "py, command, http";
        for (const std::string& name : built_in_names()) all += cat(", ", name);
        refuse_entry(entry, "does not say what it is", cat("It needs one of the keys ", all, "."));
    }
    return found;
}

void read_http(Entry& entry, const std::string& url) {
    entry.kind = Entry::Kind::http;
    entry.style = "json";
    entry.name = "http";
    entry.url = url;
    const bool plain = url.starts_with("http://"), safe = url.starts_with("https://");
    const std::string rest = url.substr(std::min(url.size(), std::size_t(safe ? 8 : 7)));
    const std::string host = rest.substr(0, rest.find_first_of("/?#"));
    if ((!plain && !safe) || host.empty() || host.starts_with(':') || host.find('@') != std::string::npos ||
        std::ranges::any_of(url, [](unsigned char c) { return c <= ' ' || c == 0x7F; }))
        refuse_entry(entry, cat("'", url, "' is no address"), "Expected http://HOST[:PORT]/PATH or https://….");
}

void read_object(Entry& entry, const json& object, const fs::path& folder) {
    const std::string kind = kind_of(entry, object);
    const JsonReader<json> reader(object, entry.where);
    const JsonReader<json> value = reader[kind];
    if (kind == "py") {
        read_function(entry, value.string(), folder);
    } else if (kind == "http") {
        read_http(entry, value.string());
    } else if (kind == "command") {
        entry.kind = Entry::Kind::command;
        if (!value.value().is_array() || value.size() == 0) value.refuse("a list of the program and its arguments");
        for (const auto& word : value.elements()) entry.command.push_back(word.string());
        entry.name = fs::path(entry.command.front()).filename().string();
        if (entry.command.front().find('/') != std::string::npos)
            entry.command.front() = fs::absolute(folder / entry.command.front()).lexically_normal().string();
    } else {
        entry.built_in = entry.name = kind;
        entry.arguments = value.value();
    }
    for (const auto& [key, ignored] : object.items())
        if (key != kind) read_common(entry, key, reader[key]);
}

Entry read_entry(const json& one, const std::string& where, const fs::path& folder) {
    Entry entry;
    entry.where = where;
    if (one.is_object()) {
        read_object(entry, one, folder);
    } else if (one.is_string() && is_built_in(one.get<std::string>())) {
        entry.built_in = entry.name = one.get<std::string>();
    } else if (one.is_string()) {
        read_function(entry, one.get<std::string>(), folder);
    } else {
        refuse_entry(entry, cat("expected a string or an object, found ", shown(one)));
    }
    return entry;
}

}  // namespace

std::vector<Entry> read_entries(const json& list, const fs::path& folder) {
    if (!list.is_array() || list.empty())
        throw Error("reward.bad-entry", "rewards: expected a list of at least one reward");
    std::vector<Entry> all;
    std::set<std::string> names;
    for (std::size_t i = 0; i < list.size(); ++i) {
        try {
            all.push_back(read_entry(list[i], cat("rewards[", i, "]"), folder));
        } catch (const Error& error) {  // the reader's are of input files
            throw Error("reward.bad-entry", error.what());
        }
        if (!names.insert(all.back().name).second)
            refuse_entry(all.back(), cat("a second reward has the name '", all.back().name, "'"),
                         "Give one of them another with the key name.");
    }
    return all;
}

}  // namespace unsloth::reward
