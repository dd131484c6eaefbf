// `data` and `data augment`: both do without the engine, for neither needs a model's weights.
#include <unistd.h>

#include <optional>

#include "app/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/terminal.h"
#include "unsloth/data/augment.h"
#include "unsloth/data/report.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/hf_config.h"

namespace unsloth::app {
namespace {

/// What of the model's folder the data needs.
struct ModelFolder {
    std::filesystem::path tokenizer;
    data::ModelLimits limits;
};

ModelFolder open_folder(const config::Config& config) {
    ModelFolder folder;
    if (config.model.path.empty()) return folder;
    std::filesystem::path path = formats::resolve_model_path(config.model.path, formats::ModelFiles::all_but_weights);
    if (std::filesystem::is_regular_file(path)) path = path.has_parent_path() ? path.parent_path() : ".";
    folder.tokenizer = data::run_tokenizer_folder(config, path);
    if (std::filesystem::exists(path / "config.json")) {
        spec::ModelSpec spec = formats::read_model_spec(path);
        if (config.model.rope_scaling != "{}")
            formats::set_rope_scaling(spec, config.model.rope_scaling, "model.rope_scaling");
        folder.limits = {spec.vocab_size, spec.usable_positions(), spec.bos_token_id.value_or(-1)};
    } else {
        log::warning(path.string(), " has no config.json: ids and positions are not checked against the model");
    }
    return folder;
}

data::TrainingData load(const config::Config& config, const ModelFolder& folder, data::RefusedRows refused) {
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

/// What a message says before its advice.
std::string first_line(const std::string& text) {
    return text.substr(0, text.find('\n'));
}

bool by_colour(ColorChoice choice) {
    if (choice != ColorChoice::automatic) return choice == ColorChoice::always;
    return takes_colours(STDOUT_FILENO);
}

}  // namespace

bool run_data(const CommandLine& line) {
    install_interrupt_handlers();
    config::Config config = line.loaded.config;
    const ModelFolder folder = open_folder(config);
    if (config.model.max_seq_length == 0) config.model.max_seq_length = folder.limits.max_positions;
    data::TrainingData data;
    std::optional<Error> refusal;
    try {
        data = load(config, folder, data::RefusedRows::as_configured);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        // Rows that stop a run are counted and shown; what else is wrong (no file, no tokenizer) stops this load too.
        refusal = Error(error.id(), first_line(error.what()));
        data = load(config, folder, data::RefusedRows::set_aside);
    }
    const data::DataReport report = data::make_report(data, config, refusal, line.data.n);
    std::optional<tokenizer::Tokenizer> tokenizer;
    if (!report.samples.empty() && tokenizer::Tokenizer::exists(folder.tokenizer))
        tokenizer = tokenizer::Tokenizer::load(folder.tokenizer);
    const tokenizer::Tokenizer* const shown_by = tokenizer ? &*tokenizer : nullptr;
    if (line.data.json)
        print(data::report_json(report, shown_by));
    else if (by_colour(line.data.color))
        print_coloured(data::report_text(report, shown_by, data::Marks::colour));
    else
        print(data::report_text(report, shown_by, data::Marks::brackets));
    return report.refusal.empty();
}

void run_augment(const CommandLine& line) {
    install_interrupt_handlers();
    const data::AugmentResult result = data::augment_rows(line.loaded.config, line.augment);
    log::info(data::describe(result));
    if (line.augment.eval_out.empty()) return;
    log::info("to train: --data.train_file ", line.augment.out, " --data.eval_file ", line.augment.eval_out,
              " (and no val_size)");
}

}  // namespace unsloth::app
