#include "import/llama_factory_rows.h"

#include <algorithm>
#include <map>
#include <vector>

#include "import/model_names.h"
#include "unsloth/config/read_tree.h"
#include "unsloth/core/error.h"

namespace unsloth::import {
namespace {

/// dataset_info.json, which says what a data set's name means; null where there is none.
Json data_set_list(const Importer& importer, const std::string& folder) {
    const auto file = importer.find_file(std::filesystem::path(folder) / "dataset_info.json");
    return file.empty() ? Json(nullptr) : config::read_tree(file);
}

/// A column of theirs, what it is here, and its name in files where an entry has no `columns` at all; empty: unread.
struct LlamaFactoryColumn {
    const char *theirs, *ours, *usual;
    bool optional;  ///< rows may do without it
};

bool sees_images(const Importer& importer) {
    const Json model = importer.look("model_name_or_path");
    return model.is_string() && has_vision(model);
}

/// One entry of dataset_info.json.
class LlamaFactorySource {
  public:
    LlamaFactorySource(Importer& importer, std::string key, const Json& entry, std::string stage)
        : importer_(importer), key_(std::move(key)), entry_(entry), stage_(std::move(stage)) {}

    ImportedSource read(const std::string& folder) {
        const std::string file = text("file_name"), hub = text("hf_hub_url");
        source_.path = !file.empty() ? (std::filesystem::path(folder) / file).string() : hub;
        if (source_.path.empty())
            importer_.lose(key_, cat(shown(entry_), ": neither file_name nor hf_hub_url is given"));
        if (const std::string split = text("split"); !split.empty() && split != "train") source_.split = split;
        source_.config_name = text("subset");
        read_format();
        read_columns();
        read_tags();
        const bool pairs = entry_.value("ranking", Json(false)) == true;
        if (pairs != (stage_ == "dpo"))
            importer_.lose(key_, pairs ? "its rows are pairs, which stage dpo takes"
                                       : "stage dpo takes rows of pairs (ranking: true)");
        for (const char* field : {"num_samples", "script_url", "folder", "revision"})
            if (entry_.contains(field) && !entry_[field].is_null() && entry_[field] != false)
                importer_.lose(cat(key_, ".", field), cat(shown(entry_[field]), ": the data set is read without it"));
        return std::move(source_);
    }

  private:
    std::string text(const char* name) const {
        const Json value = entry_.value(name, Json(""));
        return value.is_string() ? value.get<std::string>() : "";
    }

    void read_format() {
        static const std::map<std::string, DataFormat> formats = {
            {"alpaca", DataFormat::alpaca}, {"sharegpt", DataFormat::sharegpt}, {"openai", DataFormat::messages}};
        const std::string name = text("formatting").empty() ? "alpaca" : text("formatting");
        const auto found = formats.find(name);
        if (found == formats.end())
            importer_.lose(key_ + ".formatting", cat(name, ": alpaca, sharegpt and openai are known; alpaca is taken"));
        form_ = found == formats.end() ? DataFormat::alpaca : found->second;
        source_.format = stage_ == "dpo" ? DataFormat::preference : stage_ == "pt" ? DataFormat::text : form_;
        if (stage_ == "pt" && form_ != DataFormat::alpaca)
            importer_.lose(key_ + ".formatting",
                           cat(name, ": of a conversation stage pt trains the first message as a ",
                               "text; write these texts into a column"));
    }

    std::vector<LlamaFactoryColumn> known_columns() const {
        if (stage_ == "pt") return {{"prompt", "text", "instruction", false}};
        std::vector<LlamaFactoryColumn> known;
        if (form_ == DataFormat::alpaca) {
            known = {{"prompt", "instruction", "instruction", false},
                     {"query", "input", "input", true},
                     {"history", "history", "", true},
                     {"system", "system", "", true}};
            if (stage_ != "dpo") known.push_back({"response", "output", "output", false});
        } else {
            const char* const ours = form_ == DataFormat::messages ? "messages" : "conversations";
            known = {{"messages", ours, "conversations", false},
                     {"system", "system", "", true},
                     {"tools", "tools", "", true}};
        }
        if (stage_ == "dpo")
            known.insert(known.end(),
                         {{"chosen", "chosen", "chosen", false}, {"rejected", "rejected", "rejected", false}});
        if (stage_ == "kto") known.push_back({"kto_tag", "kto_tag", "kto_tag", false});
        return known;
    }

    /// Columns by their names. LLaMA-Factory does not read other columns.
    void read_columns() {
        const bool says = entry_.contains("columns") && entry_["columns"].is_object();
        Json columns = says ? entry_["columns"] : Json::object();
        for (const auto& [theirs, ours, usual, optional] : known_columns()) {
            const Json given = columns.value(theirs, Json(nullptr));
            columns.erase(theirs);
            std::string column = given.is_string() ? given.get<std::string>() : "";
            if (!says) column = usual;
            if (says && !optional && column.empty())
                importer_.lose(key_ + ".columns", cat(theirs, " is not among them: there its rows have none"));
            if (column != ours && (optional || !column.empty())) source_.columns[ours] = column;
        }
        if (stage_ == "pt" && !says)
            importer_.lose(key_, "instruction and input are trained as one text there; here instruction alone");
        for (const auto& [theirs, column] : columns.items()) {
            if (column.is_null() || column == "") continue;
            if (theirs == "images" && sees_images(importer_) && stage_ != "pt") {
                source_.has_images = true;
                if (column != "images") source_.columns["images"] = column;
                continue;
            }
            const bool unread = stage_ == "pt" && theirs != "query" && theirs != "history";
            if (unread)
                importer_.note(key_ + ".columns", cat(theirs, " has no effect: stage pt trains prompt alone"));
            else
                importer_.lose(key_ + ".columns", cat(theirs, ": rows are read without it"));
        }
    }

    /// Names of a message's members, and of speakers.
    void read_tags() {
        const Json tags = entry_.value("tags", Json::object());
        if (form_ == DataFormat::alpaca) {
            if (!tags.empty()) importer_.note(key_ + ".tags", "has no effect: formatting is alpaca");
            return;
        }
        static const std::map<std::string, std::vector<std::string>> speakers = {
            {"user_tag", {"human", "user"}},
            {"assistant_tag", {"gpt", "assistant", "chatgpt", "model"}},
            {"observation_tag", {"observation", "tool", "function"}},
            {"function_tag", {"function_call"}},
            {"system_tag", {"system"}}};
        const std::string members = cat(tag(tags, "role_tag", "from"), ", ", tag(tags, "content_tag", "value"));
        const bool openai = form_ == DataFormat::messages;
        if (members != "role, content" && (openai || members != "from, value"))
            importer_.lose(key_ + ".tags",
                           cat("{", members, "}: a message is {role, content}", openai ? "" : " or {from, value}"));
        for (const auto& [name, value] : tags.items()) {
            if (name == "role_tag" || name == "content_tag" || value.is_null()) continue;
            const auto known = speakers.find(name);
            const bool taken = known != speakers.end() && std::find(known->second.begin(), known->second.end(),
                                                                    shown(value)) != known->second.end();
            if (!taken) importer_.lose(key_ + ".tags", cat(name, " ", shown(value), ": rename it in the rows"));
        }
    }

    static std::string tag(const Json& tags, const char* name, const char* usual) {
        return tags.contains(name) && tags[name].is_string() ? tags[name].get<std::string>() : usual;
    }

    Importer& importer_;
    std::string key_;
    const Json& entry_;
    std::string stage_;
    DataFormat form_ = DataFormat::alpaca;  ///< of its rows, for any objective
    ImportedSource source_;
};

std::vector<NamedSource> sources_of(Importer& importer, const std::string& key, const Json& list,
                                    const std::string& folder, const std::string& stage) {
    const bool online = folder == "ONLINE";
    std::vector<NamedSource> sources;
    for (const std::string& name : importer.take_names(key)) {
        const std::string place = cat(key, " ", name);
        if (online) {  // names are ids on the hub
            const Json entry = {{"hf_hub_url", name}};
            sources.emplace_back(name, LlamaFactorySource(importer, place, entry, stage).read(""));
        } else if (list.is_object() && list.contains(name) && list[name].is_object()) {
            sources.emplace_back(name, LlamaFactorySource(importer, place, list[name], stage).read(folder));
        } else {
            importer.lose(key, cat(name, " is a name in ", folder, "/dataset_info.json, which ",
                                   list.is_null() ? "is not here" : "does not have it",
                                   "; name the file with --data.train_file"));
        }
    }
    return sources;
}

/// interleave_probs and mix_strategy.
void import_mixture(Importer& importer, std::vector<ImportedSource>& sources) {
    const std::string mixing = importer.take_text("mix_strategy").value_or("concat");
    const auto shares = importer.take("interleave_probs");
    const bool numbers = shares && shares->is_array() && shares->size() == sources.size() &&
                         std::all_of(shares->begin(), shares->end(), [](const Json& one) { return one.is_number(); });
    if (shares && mixing == "concat") {
        importer.note("interleave_probs", "has no effect: mix_strategy is concat");
    } else if (numbers) {
        for (std::size_t i = 0; i < sources.size(); ++i) sources[i].weight = (*shares)[i].get<double>();
        importer.note("mix_strategy", cat(mixing, ": data.datasets' weights are shares of an epoch, which has as many ",
                                          "rows as all sources together"));
    } else if (shares) {
        importer.lose("interleave_probs", cat(shown(*shares), ": one number a data set is expected"));
    } else if (mixing != "concat") {
        importer.lose("mix_strategy",
                      cat(mixing, ": each row comes once an epoch; data.datasets' weights say otherwise"));
    }
}

/// The folder of the images, and their largest size.
void import_images(Importer& importer, const std::vector<ImportedSource>& sources) {
    const bool any = std::any_of(sources.begin(), sources.end(), [](const auto& source) { return source.has_images; });
    const auto folder = importer.take_text("media_dir");
    if (folder && any)
        importer.set("media_dir", "data.image_root", *folder);
    else if (folder)
        importer.note("media_dir", "has no effect: no rows with images are read");
    const auto given_most = importer.take("image_max_pixels");
    if (any) {
        importer.set("image_max_pixels", "data.image_max_pixels", given_most.value_or(768 * 768));
        importer.note("image_max_pixels",
                      "images with a side below 28, or of fewer than 1,024 pixels, are enlarged in one step here, and "
                      "in two there");
    } else if (given_most)
        importer.note("image_max_pixels", "has no effect: no rows with images are read");
    for (const char* key : {"image_min_pixels", "image_do_pan_and_scan", "crop_to_patches"}) {
        const auto given = importer.take(key);
        if (given && any && *given != false)
            importer.lose(key, cat(shown(*given),
                                   ": smaller images are enlarged as the model's "
                                   "preprocessor_config.json says, and cut as its class does"));
        else if (given)
            importer.note(key, "has no effect: no rows with images are read");
    }
}

}  // namespace

LlamaFactoryRows import_llama_factory_rows(Importer& importer, const std::string& stage) {
    const std::string folder = importer.take_text("dataset_dir").value_or("data");
    const Json list = data_set_list(importer, folder);
    std::vector<ImportedSource> sources;
    for (auto& [name, source] : sources_of(importer, "dataset", list, folder, stage))
        sources.push_back(std::move(source));
    if (const auto most = importer.take("max_samples")) {
        for (ImportedSource& source : sources) source.max_samples = *most;
        if (sources.empty()) importer.lose("max_samples", "it is of the data sets: data.datasets' max_samples");
    }
    import_mixture(importer, sources);
    set_sources(importer, "dataset", sources);
    const bool named =
        set_evaluation_sources(importer, "eval_dataset", sources_of(importer, "eval_dataset", list, folder, stage));
    const Json held_out = importer.look("val_size");
    const auto is_conversation = [](const ImportedSource& source) {
        return source.format == DataFormat::sharegpt || source.format == DataFormat::messages;
    };
    const auto is_single_turn = [](const ImportedSource& source) {
        return source.format == DataFormat::alpaca && source.columns.value("history", Json("history")) == "";
    };
    import_images(importer, sources);
    return {!sources.empty() && std::all_of(sources.begin(), sources.end(), is_conversation),
            !sources.empty() && std::all_of(sources.begin(), sources.end(), is_single_turn),
            named || (held_out.is_number() && held_out > 0)};
}

}  // namespace unsloth::import
