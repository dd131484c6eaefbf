// Rows of ms-swift: data sets with their samples, columns and shares, and which parts of a row are labels.
#include <algorithm>
#include <cctype>
#include <sstream>

#include "import/swift_parts.h"
#include "import/template_names.h"
#include "unsloth/core/error.h"
#include "unsloth/core/json.h"

namespace unsloth::import {
namespace {

bool on_disk(const Importer& importer, const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored) || std::filesystem::exists(importer.folder() / path, ignored);
}

/// ORG/NAME, as far as the text tells.
bool is_hub_id(const std::string& text) {
    return std::count(text.begin(), text.end(), '/') == 1 && text.front() != '.' && text.front() != '/' &&
           text.front() != '~' && text.find('.', text.find('/')) == std::string::npos;
}

/// Columns as data.columns has them, of ms-swift's {name in the file: name of ms-swift}.
Json swift_columns(Importer& importer, const std::string& method) {
    const Json said = importer.take("columns").value_or(nullptr);
    const Json given = said.is_string() ? try_parse_json<Json>(said.get<std::string>()) : said;
    Json columns = Json::object();
    if (given.is_null()) return columns;
    if (!given.is_object()) {
        importer.lose("columns", cat(shown(said), ": an object is expected"));
        return columns;
    }
    // A row {query, response} is a conversation there, as instruction and output are here.
    static const std::map<std::string, std::string> names = {
        {"query", "instruction"}, {"response", "output"}, {"rejected_response", "rejected"}};
    for (const auto& [theirs, meant] : given.items()) {
        const std::string name = meant.is_string() ? meant.get<std::string>() : "";
        if (name.empty() || ((name == "query" || name == "history") && method == "grpo")) {
            importer.lose(
                cat("columns.", theirs),
                cat(shown(meant), ": write the rows as {messages}, whose text goes through the chat template"));
            continue;
        }
        const auto known = names.find(name);
        columns[known == names.end() ? name : known->second] = theirs;
    }
    return columns;
}

class SwiftSources {
  public:
    SwiftSources(Importer& importer, Json columns)
        : importer_(importer), columns_(std::move(columns)), use_hf_(importer.look("use_hf") == true) {}

    /// [hf::|ms::]PATH[:SUBSETS][#ROWS]
    std::optional<ImportedSource> parse(const std::string& key, const std::string& given) {
        ImportedSource source;
        source.columns = columns_;
        source.path = given;
        if (on_disk(importer_, given)) return source;
        std::string hub;
        if (const std::size_t at = given.find("::"); at != std::string::npos)
            hub = given.substr(0, at), source.path = given.substr(at + 2);
        if (const std::size_t at = source.path.rfind('#'); at != std::string::npos) {
            const std::string rows = source.path.substr(at + 1);
            const bool number =
                !rows.empty() && rows.size() < 10 &&
                std::all_of(
                    rows.begin(), rows.end(), [](char c) { return std::isdigit(static_cast<unsigned char>(c)); });
            source.path.resize(at);
            if (number) {
                source.max_samples = std::stoll(rows);
                importer_.note(key, cat(given, ": the first ", rows, " rows are read here, and drawn ones there"));
            } else {
                importer_.lose(key, cat(given, ": a number of rows is expected after #"));
            }
        }
        if (const std::size_t at = source.path.find(':'); at != std::string::npos) {
            importer_.lose(key, cat(given, ": of subsets nothing is known here; ORG/NAME/FOLDER names their files"));
            source.path.resize(at);
        }
        if (source.path.empty()) return std::nullopt;
        if (is_hub_id(source.path) && !on_disk(importer_, source.path) && (hub == "ms" || hub == "MS" || !use_hf_) &&
            hub != "hf" && hub != "HF")
            importer_.note(key, cat(source.path,
                                    ": is of ModelScope there, where some sets are also rewritten, and of the "
                                    "Hugging Face Hub here; unsloth-train data shows the rows"));
        return source;
    }

    std::vector<ImportedSource> take(const std::string& key) {
        std::vector<ImportedSource> sources;
        for (const std::string& name : importer_.take_names(key))
            if (auto source = parse(key, name)) sources.push_back(std::move(*source));
        return sources;
    }

  private:
    Importer& importer_;
    Json columns_;
    bool use_hf_;
};

/// Whether there are rows to evaluate on.
bool import_swift_sources(Importer& importer, const std::string& method) {
    SwiftSources reader(importer, swift_columns(importer, method));
    std::vector<ImportedSource> sources = reader.take("dataset");
    const Json shares = importer.take("interleave_prob").value_or(nullptr);
    const bool fit = shares.is_array() && shares.size() == sources.size() &&
                     std::all_of(shares.begin(), shares.end(), [](const Json& one) { return one.is_number(); });
    if (fit && sources.size() > 1)
        for (std::size_t i = 0; i < sources.size(); ++i) sources[i].weight = shares[i].get<double>();
    else if (!shares.empty())
        importer.lose("interleave_prob", cat(shown(shares), ": a number for each of several data sets is expected"));
    set_sources(importer, "dataset", sources);
    if (importer.config().model.path.empty()) {
        const Json model = importer.look("model");
        const std::string path = model.is_string() ? model.get<std::string>() : "";
        if (!path.empty() && is_hub_id(path) && !on_disk(importer, path) && importer.look("use_hf") != true)
            importer.note("model", cat(path, ": is of ModelScope there, and of the Hugging Face Hub here"));
    }
    std::vector<NamedSource> held_out;
    for (ImportedSource& source : reader.take("val_dataset")) {
        if (!source.max_samples.is_null())
            importer.lose("val_dataset", cat(source.path, ": all its rows are evaluated on"));
        const std::string name = std::filesystem::path(source.path).stem().string();
        held_out.emplace_back(name, std::move(source));
    }
    const bool named = set_evaluation_sources(importer, "val_dataset", held_out);
    const auto share = importer.take("split_dataset_ratio");
    const bool splits = share && *share != 0;
    if (splits && named)
        importer.note("split_dataset_ratio", "has no effect: val_dataset is given too, and wins");
    else if (splits)
        importer.set("split_dataset_ratio", "data.val_size", *share);
    return named || (splits && importer.config().data.val_size > 0);
}

/// Both the data set and the loader shuffle rows there; GRPO reads the data set's setting alone.
void import_swift_order(Importer& importer, const std::string& method) {
    const Json of_set = importer.take("dataset_shuffle").value_or(true);
    const Json of_loader = importer.take("train_dataloader_shuffle").value_or(true);
    const bool policy = method == "grpo";
    if (of_set == false && (policy || of_loader == false))
        importer.set("dataset_shuffle", "data.shuffle", false);
    else if (of_set == false)
        importer.note("dataset_shuffle", "false alone: train_dataloader_shuffle draws the order of rows");
    else if (of_loader == false)
        importer.note("train_dataloader_shuffle", "false alone: dataset_shuffle draws the order of rows");
    for (const auto& [key, value] :
         {std::pair{"dataset_shuffle", of_set}, std::pair{"train_dataloader_shuffle", of_loader}})
        if (!value.is_boolean()) importer.lose(key, cat("true or false is expected, found ", shown(value)));
}

/// What becomes of rows that are longer than max_length, and of rows that cannot be read.
void import_swift_lengths(Importer& importer, const std::string& method) {
    const Json strict = importer.take("strict").value_or(false);
    if (strict.is_boolean())
        importer.set("strict", "data.skip_invalid", strict == false);
    else
        importer.lose("strict", cat("true or false is expected, found ", shown(strict)));
    if (method == "grpo") return;
    const auto longest = importer.take("max_length");
    importer.set("max_length", "model.max_seq_length", longest.value_or(nullptr));
    if (!longest) importer.note("max_length", "is not given: rows may be as long as the model allows");
    const std::string cut = importer.take_text("truncation_strategy").value_or("delete");
    static const std::map<std::string, const char*> ours = {
        {"delete", "drop"}, {"right", "truncate"}, {"split", "split"}};
    if (const auto found = ours.find(cut); found != ours.end())
        importer.set("truncation_strategy", "data.overflow_strategy", found->second);
    else
        importer.lose("truncation_strategy", cat(cut, ": of a long row the start is kept (data.overflow_strategy is ",
                                                 "truncate, split or drop)"));
}

void import_swift_packing(Importer& importer, const std::string& method) {
    const auto packs = importer.take("packing"), length = importer.take("packing_length");
    const bool on = packs && *packs != false;
    if (on && method.empty())
        importer.set("packing", "data.packing", *packs);
    else if (on)
        importer.note("packing", "has no effect: rows of preferences and of policies are not padded, nor packed");
    if (length && on && method.empty() && *length != importer.config().model.max_seq_length)
        importer.lose("packing_length", cat(shown(*length), ": packed rows have model.max_seq_length tokens"));
    else if (length)
        importer.note("packing_length",
                      on && method.empty() ? "is model.max_seq_length" : "has no effect: it is for packing");
}

/// Names with + between: which answers are labels, and tokens that are not.
void import_swift_targets(Importer& importer, const std::string& method) {
    const auto given = importer.take_text("loss_scale");
    if (!given) return;
    std::istringstream parts(*given);
    for (std::string part; std::getline(parts, part, '+');) {
        const bool answers = part == "default" || part == "last_round";
        if (!method.empty() && answers)
            importer.note("loss_scale", cat(part, ": has no effect: the last answer is trained"));
        else if (part == "default")
            importer.note("loss_scale", "default: only answers are trained, as is done anyway");
        else if (part == "last_round")
            importer.set("loss_scale", "data.train_on_last_turn_only", true);
        else if (part == "all" && method.empty())
            importer.set("loss_scale", "data.train_on_prompt", true);
        else
            importer.lose("loss_scale", cat(part, ": the tokens of an answer have one weight"));
    }
}

void import_swift_template(Importer& importer, const std::string& method) {
    if (const auto thinking = importer.take("enable_thinking"))
        importer.set("enable_thinking", "data.chat_template_kwargs", {{"enable_thinking", *thinking}});
    if (const auto system = importer.take_text("system"))
        importer.lose("system", cat(shown(*system), ": rows have their own: write it into their messages"));
    // Rows {instruction, output} and {query, response} go through the chat template there.
    const char* const own = method == "grpo" ? "auto" : "default";
    importer.set_default("data.template", own);
    const auto name = importer.take_text("template");
    if (!name) return;
    if (const auto known = find_template("swift", *name, ""))
        return importer.set("template", "data.template", known->ours);
    importer.lose("template", cat(*name, ": data.template ", own, " takes the model's own, which may differ in its ",
                                  "system text; unsloth-train data shows the rows"));
}

/// Forms of rows that ms-swift reads, and that have other names here.
void tell_forms_of_rows(Importer& importer, const std::string& method) {
    if (importer.is_set("data.columns") || importer.is_set("data.train_file") == importer.is_set("data.datasets"))
        return;
    if (method == "grpo")
        importer.note("dataset",
                      "a text in the column prompt or query is a user's message there; here rows {messages} go "
                      "through the chat template, and a text in prompt is taken as it is");
    else if (method.empty())
        importer.note("dataset",
                      "rows {messages} and {instruction, input, output} are read; rows {query, response} need "
                      "data.columns {\"instruction\": \"query\", \"output\": \"response\"}");
    else
        importer.note("dataset",
                      "rows {messages, rejected_response} have to become {prompt, chosen, rejected}; "
                      "unsloth-train data shows the rows");
}

}  // namespace

bool import_swift_data(Importer& importer, const std::string& method) {
    importer.set_default("data.skip_invalid", true);
    const bool has_rows = import_swift_sources(importer, method);
    tell_forms_of_rows(importer, method);
    import_swift_order(importer, method);
    import_swift_lengths(importer, method);
    import_swift_packing(importer, method);
    import_swift_targets(importer, method);
    import_swift_template(importer, method);
    return has_rows;
}

}  // namespace unsloth::import
