#include "app/new_config/subject.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "app/rows_model.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/data/format.h"
#include "unsloth/data/source.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/folder_contents.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/hub/hub.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::app {
namespace {

namespace fs = std::filesystem;

bool holds_weights(const std::string& path) {
    const auto place = formats::find_model_path(path);
    return place && (!fs::is_directory(*place) || fs::exists(*place / "model.safetensors") ||
                     fs::exists(*place / "model.safetensors.index.json"));
}

config::Objective objective_of(config::DataFormat format) {
    if (format == config::DataFormat::preference) return config::Objective::dpo;
    return format == config::DataFormat::decision ? config::Objective::decision : config::Objective::sft;
}

/// Rows {prompt, completion, label}, of KTO, not all of whose completions are targets; nothing where rows have no
/// label. Leaves the objective as the rows are loaded with.
template <class Load>
std::optional<data::Dataset> judged_rows(config::Config& config, const Load& load) {
    const config::Objective otherwise = std::exchange(config.training.objective, config::Objective::kto);
    try {
        return load();
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
    }
    config.training.objective = otherwise;
    return std::nullopt;
}

/// The length that `percent` percent of the rows do not exceed.
int64_t percentile(const std::vector<int64_t>& sorted, std::size_t percent) {
    return sorted[std::min(sorted.size() - 1, sorted.size() * percent / 100)];
}

/// The split, other than train, that usually has the rows to evaluate on; empty: there is none.
std::string find_eval_split(const std::string& path) {
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) return "";
    for (const char* split : {"validation", "valid", "val", "dev", "eval", "evaluation", "test"}) try {
            const std::vector<fs::path> train = data::files_of(path, ""), held_out = data::files_of(path, split);
            if (std::find_first_of(train.begin(), train.end(), held_out.begin(), held_out.end()) == train.end())
                return split;
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::input) throw;
        }
    return "";
}

}  // namespace

ModelFacts examine_model(const std::string& path) {
    fs::path folder = formats::resolve_model_path(path, formats::ModelFiles::all_but_weights);
    if (fs::is_regular_file(folder) && folder.extension() != ".safetensors")
        (void)formats::Checkpoint::open(folder);  // which says what it is instead
    if (fs::is_regular_file(folder)) folder = folder.has_parent_path() ? folder.parent_path() : ".";
    if (!fs::exists(folder / "config.json"))
        throw formats::missing_in(folder, "config.json", formats::Sought::model, path);
    const spec::ModelSpec spec = formats::read_model_spec(folder);
    std::error_code ignored;
    ModelFacts facts{
        .path = path,
        .description = cat(spec.model_type, ", ", spec.num_layers, " layers, hidden size ", spec.hidden_size),
        .positions = spec.usable_positions(),
        .quantized = formats::read_quantization_config(folder).has_value(),
        .has_weights = holds_weights(path),
        .from_hub = !fs::exists(path, ignored) && hub::parse_repository(hub::Kind::model, path).has_value()};
    if (tokenizer::Tokenizer::exists(folder))
        facts.has_chat_template = !tokenizer::Tokenizer::load(folder).chat_templates().empty();
    return facts;
}

RowFacts examine_rows(const ModelFacts& model, const std::string& file) {
    // As long as the model allows: how long the rows are is to be found out.
    config::Config config = config::load_config({}, {"--model.path", model.path, "--data.train_file", file,
                                                     "--model.max_seq_length", std::to_string(model.positions)})
                                .config;
    const RowsModel opened = open_rows_model(config);
    const config::DataFormat format =
        data::probe_format(config.data.train_file, data::dataset_options(config, opened.limits));
    config.data.format = format;
    config.training.objective = objective_of(format);
    const auto load = [&] {
        try {
            return load_rows(config, opened, data::RefusedRows::as_configured).train;
        } catch (const Error& error) {
            if (error.id().name() != std::string_view("data.all-masked")) throw;
            data::Dataset others = load_rows(config, opened, data::RefusedRows::set_aside).train;
            if (others.size() == 0) throw;
            return others;
        }
    };
    std::optional<data::Dataset> judged;
    if (format == config::DataFormat::prompt_completion) judged = judged_rows(config, load);
    const data::Dataset rows = judged ? std::move(*judged) : load();
    if (rows.size() == 0) throw Error("data.empty", cat(file, " has no rows to train on"));
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < rows.size(); ++i) lengths.push_back(rows.longest_segment(i));
    std::sort(lengths.begin(), lengths.end());
    return {.file = file,
            .format = data::format_name(format),
            .objective = config.training.objective,
            .rows = rows.size(),
            .skipped = rows.stats().masked_rows,
            .eval_split = find_eval_split(file),
            .median = percentile(lengths, 50),
            .p99 = percentile(lengths, 99),
            .longest = lengths.back(),
            .alpaca = format == config::DataFormat::alpaca,
            .augmented = rows.stats().augmented_rows > 0,
            .warnings = rows.stats().warnings};
}

}  // namespace unsloth::app
