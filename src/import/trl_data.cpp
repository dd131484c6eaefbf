// Data sets of TRL (dataset_name, datasets) and of the alignment handbook's recipes (dataset_mixture, dataset_mixer).
#include "import/trl_data.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "unsloth/core/error.h"
#include "unsloth/hub/hub.h"

namespace unsloth::import {
namespace {

/// What a file says of its rows.
struct TrlData {
    std::vector<ImportedSource> sources;
    std::string test_split = "test";  ///< of the only source; empty: there is none
    std::optional<Json> held_out;     ///< rows of the training rows
};

std::string unless_usual(const std::string& name, const char* usual) {
    return name == usual ? "" : name;
}

/// A file has no splits.
bool is_file(const std::string& path) {
    static const std::vector<std::string> endings = {".jsonl", ".json", ".csv", ".parquet", ".arrow", ".txt"};
    return std::find(endings.begin(), endings.end(), std::filesystem::path(path).extension()) != endings.end();
}

/// The handbook's weight: the share of a data set's rows that is taken, of a random order.
void take_share(Importer& importer, const std::string& key, const Json& weight, ImportedSource& source) {
    if (weight.is_null() || weight == 1) return;
    const double percent = weight.is_number() ? 100 * weight.get<double>() : 0;
    const bool whole = std::abs(percent - std::round(percent)) < 1e-9 && percent > 0 && percent < 100;
    if (!whole || source.split.find('[') != std::string::npos)
        return importer.lose(key, cat(shown(weight), ": all of its rows are taken; split takes a slice such as ",
                                      "train[:20%], in whole percent"));
    source.split = cat(source.split.empty() ? "train" : source.split, "[:", std::lround(percent), "%]");
    importer.note(key, cat(shown(weight), ": the first ", std::lround(percent),
                           " % of its rows are taken, there as many of a random order"));
}

/// `columns` are those that are kept there.
void take_columns(Importer& importer, const std::string& key, const Json& columns, ImportedSource& source) {
    if (columns.is_null()) return;
    const auto has = [&](const char* name) { return std::find(columns.begin(), columns.end(), name) != columns.end(); };
    if (!columns.is_array())
        importer.lose(key, cat(shown(columns), ": a list of names is expected"));
    else if (has("chosen") && has("rejected"))
        source.format = DataFormat::preference;
    else if (has("messages"))
        source.format = DataFormat::messages;
    else
        importer.note(key, cat(shown(columns), ": columns that are known are read, and no others"));
}

/// An entry of a list of data sets.
std::optional<ImportedSource> read_entry(Importer& importer, const std::string& key, Json entry) {
    if (entry.is_string()) entry = Json{{"path", entry}};
    const auto take = [&](const char* field) {
        const Json value = entry.value(field, Json(nullptr));
        entry.erase(field);
        return value;
    };
    const auto text = [&](const char* field, const char* other, const char* absent) -> std::string {
        const Json first = take(field), second = other == nullptr ? Json(nullptr) : take(other);
        const Json& value = first.is_null() ? second : first;
        return value.is_null() ? absent : shown(value);
    };
    if (!entry.is_object()) {
        importer.lose(key, cat(shown(entry), ": a data set is an object with a path"));
        return std::nullopt;
    }
    ImportedSource source;
    source.path = text("path", "id", "");
    if (source.path.empty()) {
        importer.lose(key, "a data set is an object with a path");
        return std::nullopt;
    }
    source.config_name = unless_usual(text("name", "config", ""), "default");
    source.split = unless_usual(text("split", nullptr, "train"), "train");
    take_columns(importer, key + ".columns", take("columns"), source);
    take_share(importer, key + ".weight", take("weight"), source);
    for (const auto& [field, value] : entry.items())
        if (!value.is_null())
            importer.lose(cat(key, ".", field), cat(shown(value), ": the data set is read without it"));
    return source;
}

void read_list(Importer& importer, const std::string& key, const Json& list, TrlData& data) {
    if (!list.is_array()) return importer.lose(key, "a list of data sets is expected");
    for (std::size_t i = 0; i < list.size(); ++i)
        if (auto source = read_entry(importer, cat(key, "[", i, "]"), list[i])) data.sources.push_back(*source);
    if (data.sources.size() != 1 || is_file(data.sources.front().path)) data.test_split.clear();
}

/// {"datasets": [...], "test_split_size": N, "seed": N}.
void read_mixture(Importer& importer, Json mixture, TrlData& data) {
    constexpr const char* key = "dataset_mixture";
    if (!mixture.is_object()) return importer.lose(key, cat(shown(mixture), ": an object is expected"));
    read_list(importer, cat(key, ".datasets"), mixture.value("datasets", Json::array()), data);
    if (const Json held_out = mixture.value("test_split_size", Json(nullptr)); !held_out.is_null())
        data.held_out = held_out;
    if (const Json seed = mixture.value("seed", Json(nullptr)); !seed.is_null())
        importer.note(cat(key, ".seed"), cat(shown(seed), ": training.seed draws the order of rows"));
    for (const char* known : {"datasets", "test_split_size", "seed"}) mixture.erase(known);
    for (const auto& [field, value] : mixture.items())
        importer.lose(cat(key, ".", field), cat(shown(value), ": the rows are read without it"));
    data.test_split.clear();
}

/// {"ORG/NAME": share}, each with the splits of a list of their own.
void read_mixer(Importer& importer, const Json& mixer, TrlData& data) {
    const std::vector<std::string> named = importer.take_names("dataset_splits");
    const std::vector<std::string> splits = named.empty() ? std::vector<std::string>{"train", "test"} : named;
    if (!mixer.is_object()) return importer.lose("dataset_mixer", cat(shown(mixer), ": an object is expected"));
    data.test_split.clear();
    for (const std::string& split : splits) {
        const bool tests = split.find("test") != std::string::npos;
        if (tests && data.test_split.empty() && mixer.size() == 1) {
            data.test_split = split;
        } else if (tests) {
            importer.lose("dataset_splits", cat(split, ": name its files in data.eval_files"));
        } else {
            for (const auto& [path, share] : mixer.items())
                if (auto source = read_entry(importer, cat("dataset_mixer ", path),
                                             Json{{"path", path}, {"split", split}, {"weight", share}}))
                    data.sources.push_back(*source);
        }
    }
}

TrlData read_data(Importer& importer) {
    TrlData data;
    const auto name = importer.take_text("dataset_name");
    const auto config = importer.take_text("dataset_config");
    const std::string train = importer.take_text("dataset_train_split").value_or("train");
    const Json list = importer.take("datasets").value_or(Json::array());
    const auto mixture = importer.take("dataset_mixture"), mixer = importer.take("dataset_mixer");
    const bool others = !list.empty() || mixture || mixer;
    if (name && others) importer.note("dataset_name", "has no effect: other data sets are given too, and win");
    if (name && !others) {
        ImportedSource& source = data.sources.emplace_back();
        source.path = *name;
        source.config_name = unless_usual(config.value_or(""), "default");
        source.split = unless_usual(train, "train");
    }
    read_list(importer, "datasets", list, data);
    if (mixture) read_mixture(importer, *mixture, data);
    if (mixer) read_mixer(importer, *mixer, data);
    if (const auto held_out = importer.take("test_split_size")) data.held_out = held_out;
    return data;
}

}  // namespace

void import_trl_data(Importer& importer) {
    TrlData data = read_data(importer);
    const Json named_test = importer.take("dataset_test_split").value_or(nullptr);
    if (named_test.is_string() && !data.test_split.empty()) data.test_split = named_test;
    const Json given = importer.look("eval_strategy"),
               strategy = given.is_null() ? importer.look("evaluation_strategy") : given;
    const bool asks = strategy.is_string() && strategy != "no";
    const bool held_out = data.held_out.has_value(),
               tests = asks && !held_out && !data.test_split.empty() && !data.sources.empty();
    if (held_out) importer.set("test_split_size", "data.val_size", *data.held_out);
    if (named_test.is_string() && !tests)
        importer.note("dataset_test_split",
                      cat("has no effect: ", held_out ? "test_split_size is given" : "eval_strategy is no"));
    if (asks && !held_out && !tests) {
        const Json steps = importer.look("eval_steps");
        importer.leave("eval_strategy", cat(shown(strategy), ": the rows to evaluate on have to be named: ",
                                            "--data.eval_file FILE, or --data.val_size N of the training rows",
                                            steps.is_null() ? "" : cat("; with --training.eval_steps ", shown(steps))));
        for (const char* key : {"eval_strategy", "evaluation_strategy", "eval_steps"}) importer.take(key);
    }
    set_sources(importer, "dataset_name", data.sources);
    if (tests) {
        const ImportedSource& source = data.sources.front();
        if (importer.config().data.train_file.empty() || !source.config_name.empty())
            importer.set("dataset_name", "data.eval_file",
                         hub::folder_of_configuration(source.path, source.config_name));
        importer.set("dataset_test_split", "data.eval_split", data.test_split);
    }
    import_evaluation(importer, "no", held_out || tests);
}

}  // namespace unsloth::import
