#include "unsloth/data/source.h"

#include <fnmatch.h>
#include <glob.h>
#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "data/row_errors.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/core/suggest.h"
#include "unsloth/data/format.h"
#include "unsloth/data/reader.h"
#include "unsloth/hub/hub.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

/// LICENSE.txt, README.txt, requirements.txt and similar files, which are found next to data and are none.
bool is_about_the_folder(const fs::path& path) {
    static const std::set<std::string> words = {
        "authors", "changelog", "citation", "citations", "contributing", "copying", "copyright", "credits",
        "install", "licence",   "license",  "licenses",  "notice",       "notices", "readme",    "requirements"};
    std::string word = path.stem().string();
    std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
    return path.extension() == ".txt" && words.contains(word.substr(0, word.find_first_of("-_. ")));
}

/// Whether a part of the path begins as that of files which are not rows.
bool is_hidden(const fs::path& path) {
    return std::any_of(path.begin(), path.end(), [](const fs::path& part) {
        return part.string().starts_with('.') || part.string().starts_with('_');
    });
}

bool is_data_file(const fs::path& path) {
    const std::string name = path.filename().string();
    if (is_hidden(name) || is_about_the_folder(path)) return false;
    // Files that the datasets library writes next to its data; cache-HASH.arrow are results of its map() and filter().
    if (name == "dataset_info.json" || name == "dataset_infos.json" || name == "dataset_dict.json" ||
        name == "state.json")
        return false;
    const std::string last = path.extension().string();
    const bool compressed = last == ".gz" || last == ".zst";
    const std::string kind = compressed ? path.stem().extension().string() : last;
    const std::vector<std::string> text = {".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".txt"};
    return std::find(text.begin(), text.end(), kind) != text.end() ||
           (!compressed && (kind == ".parquet" || (kind == ".arrow" && !name.starts_with("cache-"))));
}

using Identity = std::pair<dev_t, ino_t>;

/// `above`: the folders that lead here. Links are followed, and one that leads back to them would never end.
void add_folder(const fs::path& folder, std::vector<Identity>& above, Paths& files) {
    struct stat status{};
    if (::stat(folder.c_str(), &status) != 0)
        throw Error("disk.cannot-read", cat("cannot read ", folder.string(), ": ", std::strerror(errno)));
    const Identity own(status.st_dev, status.st_ino);
    if (std::find(above.begin(), above.end(), own) != above.end())
        throw Error("data.bad-source", cat(folder.string(), " is a link that leads back to a folder above it"),
                    "Remove it, or name the files by a pattern (FOLDER/*.jsonl).");
    above.push_back(own);
    std::error_code failure, gone;
    for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end; entry.increment(failure)) {
        stop_if_interrupted("stopped while the data was looked for; nothing was written");
        if (entry->is_directory(gone) && !is_hidden(entry->path().filename()))
            add_folder(entry->path(), above, files);
        else if (entry->is_regular_file(gone) && is_data_file(entry->path()))
            files.push_back(entry->path());
    }
    if (failure) throw Error("disk.cannot-read", cat("cannot read ", folder.string(), ": ", failure.message()));
    above.pop_back();
}

void add_folder(const fs::path& folder, Paths& files) {
    std::vector<Identity> above;
    add_folder(folder, above, files);
}

/// Matches of a pattern, sorted by bytes whatever the locale.
Paths matches(const std::string& pattern) {
    glob_t found{};
    const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
    Paths paths;
    if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    if (status != 0 && status != GLOB_NOMATCH)
        throw Error("disk.cannot-read", cat("cannot look up ", pattern, ": glob's error ", status));
    std::sort(paths.begin(), paths.end());
    return paths;
}

/// What a file's name says before a number or its extension: "train" of train-00000-of-00002.parquet.
std::string first_word(const fs::path& file) {
    const std::string name = file.filename().string();
    return name.substr(0, name.find_first_of("-._"));
}

bool belongs_to(const fs::path& file, const fs::path& root, const std::string& split) {
    const std::string name = file.filename().string();
    if (name.starts_with(split) && name.size() > split.size() &&
        std::string_view("-._").find(name[split.size()]) != std::string_view::npos)
        return true;
    const fs::path folders = file.lexically_relative(root).parent_path();
    return std::find(folders.begin(), folders.end(), fs::path(split)) != folders.end();
}

bool is_held_out(const fs::path& file, const fs::path& root) {
    constexpr const char* names[] = {"test", "validation", "valid", "val", "dev", "eval", "testing", "evaluation"};
    return std::any_of(std::begin(names), std::end(names),
                       [&](const char* name) { return belongs_to(file, root, name); });
}

Paths of_split(const Paths& files, const fs::path& root, const std::string& split) {
    Paths kept;
    std::copy_if(files.begin(), files.end(), std::back_inserter(kept),
                 [&](const fs::path& file) { return belongs_to(file, root, split); });
    if (!kept.empty() || split != "train") return kept;
    // Files that name no split are those of train, as in datasets.
    const bool held_out = std::any_of(files.begin(), files.end(), [&](auto& file) { return is_held_out(file, root); });
    return held_out ? kept : files;
}

/// What is read if no split is named: train, if there is one. If a pattern chose the files, only files of other
/// splits are dropped.
Paths without_split(const Paths& files, const fs::path& root, bool pattern) {
    Paths train = of_split(files, root, "train");
    if (train.empty()) return files;
    if (!pattern) return train;
    Paths kept;
    std::copy_if(files.begin(), files.end(), std::back_inserter(kept),
                 [&](const fs::path& file) { return belongs_to(file, root, "train") || !is_held_out(file, root); });
    return kept;
}

Error no_such_split(const std::string& named, const Paths& files, const std::string& split) {
    std::set<std::string> names;
    for (const fs::path& file : files) names.insert(first_word(file));
    std::string known;
    constexpr std::size_t shown_names = 10;
    for (const std::string& name : names)
        if (names.size() <= shown_names) known += cat(known.empty() ? "" : ", ", name);
    return Error("data.no-files", cat(named, ": none of its ", files.size(), " files belongs to the split ", split),
                 cat(known.empty() ? "" : cat("Its files are of ", known, ". "), "Files of a split are named such as ",
                     split, "-00000.parquet or ", split, ".jsonl, or be in a folder ", split, "/."));
}

/// A file is of the split that its name or one of its folders says; any is of train.
void require_split(const fs::path& file, const std::string& split) {
    const fs::path folder = file.parent_path();
    if (split.empty() || split == "train" || belongs_to(file, folder, split)) return;
    if (std::find(folder.begin(), folder.end(), fs::path(split)) == folder.end())
        throw no_such_split(file.string(), {file}, split);
}

}  // namespace

namespace {

/// Where the rows of a hub data set are stored, downloaded if need be: only its files of the split.
std::string from_hub(const hub::Repository& repository, const std::string& split) {
    const std::string& inside = repository.inside;
    const bool pattern = inside.find_first_of("*?[") != std::string::npos;
    const auto is_inside = [&](const std::string& name) {
        if (pattern) return ::fnmatch(inside.c_str(), name.c_str(), FNM_PATHNAME) == 0;
        return inside.empty() || name == inside || name.starts_with(inside + "/");
    };
    Paths seen;
    const auto choose = [&](const std::vector<std::string>& names) {
        Paths files;
        for (const std::string& name : names)
            if (is_inside(name) && (name == inside || (is_data_file(name) && !is_hidden(name))))
                files.emplace_back(name);
        const fs::path root = pattern ? "" : inside;
        Paths kept = split.empty() ? without_split(files, root, pattern) : of_split(files, root, split);
        seen = files;
        std::vector<std::string> chosen;
        for (const fs::path& file : kept) chosen.push_back(file.string());
        return chosen;
    };
    // An earlier download of some of its files need not contain the files that are wanted here.
    const auto whole = [](const fs::path&) { return false; };
    try {
        return (hub::obtain({repository, choose, whole}) / inside).string();
    } catch (const Error& failure) {
        if (failure.id().name() != std::string_view("hub.no-useful-files") || split.empty() || seen.empty()) throw;
        throw no_such_split(repository.id, seen, split);
    }
}

/// The path on this machine that a source's path means.
std::string local_path(const std::string& path, const std::string& split) {
    if (fs::exists(path)) return path;
    const auto repository = hub::parse_repository(hub::Kind::dataset, path);
    if (repository && (path.starts_with("hf://") || !is_data_file(path))) {
        if (repository->kind != hub::Kind::dataset)
            throw Error("data.bad-source", cat(path, ": names a model"),
                        "A data set is hf://datasets/ORG/NAME, or ORG/NAME.");
        return from_hub(*repository, split);
    }
    if (path.find("://") != std::string::npos)
        throw Error("data.bad-source",
                    cat(path, ": rows are read from files of this machine or of the Hugging Face hub, not from a URL"),
                    cat("Download them first: curl -LO ", path));
    return path;
}

}  // namespace

Paths files_of(const std::string& named, const std::string& split) {
    const std::string path = local_path(named, split);
    const fs::path root(path);
    Paths files;
    const bool folder = fs::is_directory(root),
               pattern = !fs::exists(root) && path.find_first_of("*?[") != std::string::npos;
    if (!folder && !pattern) {
        require_split(root, split);
        return {root};
    }
    if (folder) {
        add_folder(root, files);
    } else {
        for (const fs::path& match : matches(path)) {
            if (fs::is_directory(match))
                add_folder(match, files);
            else
                files.push_back(match);
        }
    }
    std::sort(files.begin(), files.end());
    if (files.empty())
        throw Error("data.no-files", cat(named, folder ? ": the folder holds no file of rows" : ": no file matches"),
                    folder ? "Expected .jsonl, .json, .ndjson, .csv, .tsv, .txt, .parquet or .arrow files in it."
                           : advice_on_missing(named));
    if (split.empty()) {
        Paths train = without_split(files, root, pattern);
        if (train.size() < files.size())
            log::info(named, ": taking the ", train.size(), " of ", files.size(),
                      " files that belong to the split train", pattern ? " or to none" : "");
        return train;
    }
    Paths kept = of_split(files, root, split);
    if (kept.empty()) throw no_such_split(named, files, split);
    return kept;
}

namespace {

/// The format that a file's first readable row tells; nothing where no row does. `first`: what was wrong with the first
/// row of all that does not.
std::optional<config::DataFormat> format_of_file(RowReader& file, bool pairs, bool skip_bad_rows,
                                                 std::optional<Error>& first, std::string& columns) {
    for (RowChunk chunk = file.next(); !chunk.empty(); chunk = file.next()) {
        for (std::size_t i = 0; i < chunk.size(); ++i) {
            const RawRow raw = chunk.row(i);
            try {
                const nlohmann::ordered_json row = file.parse(raw);
                const config::DataFormat format = detect_format(row, pairs);
                for (const auto& [name, value] : row.items()) columns += cat(columns.empty() ? "" : ", ", name);
                return format;
            } catch (const BadRow& bad) {
                if (!first) first = error_at(file, raw.line, bad);
            }
            if (!skip_bad_rows) throw *first;
        }
    }
    return std::nullopt;
}

/// The names in a file are those that the user typed: a slip must not train on the file's own column instead. Looks at
/// the source's first readable row, without renaming.
void check_column_names(const SourceFiles& source, ReaderOptions options) {
    options.columns.clear();
    const auto renamed = [](const auto& names) { return !names.second.empty(); };
    if (source.files.empty() || std::none_of(source.columns.begin(), source.columns.end(), renamed)) return;
    const std::unique_ptr<RowReader> file = open_rows(source.files.front(), options);
    const RowChunk chunk = file->next();
    for (std::size_t i = 0; i < chunk.size(); ++i) {
        const RawRow raw = chunk.row(i);
        nlohmann::ordered_json row;
        try {
            row = file->parse(raw);
        } catch (const BadRow&) {
            continue;
        }
        for (const auto& [ours, theirs] : source.columns) {
            if (theirs.empty() || row.contains(theirs)) continue;
            std::vector<std::string> others;
            for (const auto& [name, value] : row.items())
                if (name != ours) others.push_back(name);
            const std::string missing = cat(file->place(raw.line), ": there is no column \"", theirs,
                                            "\", which data.columns names for \"", ours, "\"");
            if (const auto meant = nearest(theirs, others); !meant.empty())
                throw Error("data.missing-column", missing, did_you_mean(meant));
            if (row.contains(ours)) log::warning(missing, ": the file's own \"", ours, "\" is read");
        }
        return;
    }
}

/// A run opens a file several times where it trains and evaluates on slices of it, and says once what is in it.
void log_once(const std::string& text) {
    static std::mutex mutex;
    static std::set<std::string> logged;
    const std::lock_guard lock(mutex);
    if (logged.insert(text).second) log::info(text);
}

}  // namespace

config::DataFormat find_format(const SourceFiles& source, const ReaderOptions& options, bool skip_bad_rows) {
    check_column_names(source, options);
    if (source.format != config::DataFormat::automatic) return source.format;
    std::optional<Error> first;
    std::optional<config::DataFormat> found;
    std::string found_in;
    for (const fs::path& path : source.files) {
        ReaderOptions own = options;
        own.columns = source.columns;
        const std::unique_ptr<RowReader> file = open_rows(path, own);
        std::string columns;
        const auto format = format_of_file(*file, options.pairs, skip_bad_rows, first, columns);
        if (!format) continue;
        if (found && *format != *found)
            throw Error("data.mixed-formats",
                        cat(source.name, ": its files are not of one format: ", found_in, " has rows of format ",
                            format_name(*found), ", ", path.string(), " of format ", format_name(*format)),
                        "Move away what is not to be trained on, name the files by a glob, or list them as "
                        "sources of their own in data.datasets.");
        if (found) continue;
        found = format;
        found_in = path.string();
        log_once(cat(file->name(), ": ", file->kind(), ", rows of format ", format_name(*format), " (columns ", columns,
                     ")"));
    }
    ::malloc_trim(0);  // of a long first row: other threads, which read it again, have heaps of their own
    if (found) return *found;
    if (first) throw *first;
    throw Error("data.empty", cat(source.name, ": has no rows"),
                "Expected one JSON object on each line, or another known form.");
}

SourceFiles with_files(const config::DataSource& source) {
    SourceFiles result{source.path, {}, source.format, source.columns, source.template_name, source.max_samples, {}};
    const std::string path = hub::folder_of_configuration(source.path, source.config_name);
    const std::vector<config::SplitPart> splits = config::parse_split(source.split, source.path);
    for (const config::SplitPart& split : splits) {
        const Paths files = files_of(path, split.name);
        result.files.insert(result.files.end(), files.begin(), files.end());
        result.parts.push_back({split, files.size()});
    }
    if (std::all_of(splits.begin(), splits.end(), [](const auto& split) { return split.whole(); }))
        result.parts.clear();
    return result;
}

SourceFiles resolve(const config::DataSource& source, const ReaderOptions& options, bool skip_bad_rows) {
    SourceFiles result = with_files(source);
    result.format = find_format(result, options, skip_bad_rows);
    return result;
}

}  // namespace unsloth::data
