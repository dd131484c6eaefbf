#include "app/rows_model.h"

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/hf_config.h"

namespace unsloth::app {

RowsModel open_rows_model(const config::Config& config) {
    RowsModel folder;
    if (config.model.path.empty()) return folder;
    std::filesystem::path path = formats::resolve_model_path(config.model.path, formats::ModelFiles::all_but_weights);
    if (std::filesystem::is_regular_file(path)) path = path.has_parent_path() ? path.parent_path() : ".";
    folder.tokenizer = data::run_tokenizer_folder(config, path);
    if (std::filesystem::exists(path / "config.json")) {
        spec::ModelSpec spec = formats::read_model_spec(path);
        if (config.model.rope_scaling != "{}")
            formats::set_rope_scaling(spec, config.model.rope_scaling, "model.rope_scaling");
        folder.limits = {spec.embedding_rows(), spec.usable_positions(), spec.bos_token_id.value_or(-1)};
    } else {
        log::warning(path.string(), " has no config.json: ids and positions are not checked against the model");
    }
    folder.limits.folder = path;
    return folder;
}

data::TrainingData load_rows(const config::Config& config, const RowsModel& folder, data::RefusedRows refused) {
    const auto no_model = [](const std::string&) -> std::unique_ptr<data::RowEncoder> {
        throw Error(
            "option.missing", "model.path is missing, and rows that are not tokenised need the model's tokenizer",
            "Set it in the config file, or with --model.path FOLDER; a folder with the tokenizer's files will do.");
    };
    if (config.model.path.empty()) return data::load_training_data(config, {}, no_model, {}, {refused, false});
    return data::load_training_data(config, folder.limits,
                                    data::run_encoder_maker(folder.tokenizer, folder.limits.vocab_size, config.data),
                                    data::run_encoder_fingerprint(folder.tokenizer, config.data), {refused, false});
}

}  // namespace unsloth::app
