// `data` and `data augment`: both do without the engine, for neither needs a model's weights.
#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "app/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
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
    ModelLimits limits;
};

ModelFolder open_folder(const Config& config) {
    ModelFolder folder;
    if (config.model.path.empty()) return folder;
    std::filesystem::path path = resolve_model_path(config.model.path, ModelFiles::all_but_weights);
    if (std::filesystem::is_regular_file(path)) path = path.has_parent_path() ? path.parent_path() : ".";
    folder.tokenizer = run_tokenizer_folder(config, path);
    if (std::filesystem::exists(path / "config.json")) {
        const ModelSpec spec = read_model_spec(path);
        folder.limits = {spec.vocab_size, spec.max_position_embeddings, spec.bos_token_id.value_or(-1)};
    } else {
        log::warning(path.string(), " has no config.json: ids and positions are not checked against the model");
    }
    return folder;
}

TrainingData load(const Config& config, const ModelFolder& folder, RefusedRows refused) {
    const auto no_model = []() -> std::unique_ptr<RowEncoder> {
        throw usage_error(
            "model.path is missing, and rows that are not tokenised need the model's tokenizer",
            "Set it in the config file, or with --model.path FOLDER; a folder with the tokenizer's files will do.");
    };
    if (config.model.path.empty()) return load_training_data(config, {}, no_model, {}, {refused, false});
    return load_training_data(config, folder.limits,
                              run_encoder_maker(folder.tokenizer, folder.limits.vocab_size, config.data),
                              run_encoder_fingerprint(folder.tokenizer, config.data), {refused, false});
}

/// What a message says before its advice.
std::string first_line(const std::string& text) {
    return text.substr(0, text.find('\n'));
}

bool by_colour(ColorChoice choice) {
    if (choice != ColorChoice::automatic) return choice == ColorChoice::always;
    const char* const refused = std::getenv("NO_COLOR");  // https://no-color.org
    return ::isatty(STDOUT_FILENO) != 0 && (refused == nullptr || *refused == '\0');
}

}  // namespace

bool run_data(const CommandLine& line) {
    install_interrupt_handlers();
    const Config& config = line.loaded.config;
    const ModelFolder folder = open_folder(config);
    TrainingData data;
    std::string refusal;
    try {
        data = load(config, folder, RefusedRows::as_configured);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        // Rows that stop a run are counted and shown; what else is wrong (no file, no tokenizer) stops this load too.
        refusal = first_line(error.what());
        data = load(config, folder, RefusedRows::set_aside);
    }
    const DataReport report = make_report(data, config, refusal, line.data.n);
    std::optional<Tokenizer> tokenizer;
    if (!report.samples.empty() && Tokenizer::exists(folder.tokenizer)) tokenizer = Tokenizer::load(folder.tokenizer);
    const Tokenizer* const shown_by = tokenizer ? &*tokenizer : nullptr;
    print(line.data.json ? report_json(report, shown_by)
                         : report_text(report, shown_by, by_colour(line.data.color) ? Marks::colour : Marks::brackets));
    return report.refusal.empty();
}

void run_augment(const CommandLine& line) {
    install_interrupt_handlers();
    const AugmentResult result = augment_rows(line.loaded.config, line.augment);
    log::info(describe(result));
    if (line.augment.eval_out.empty()) return;
    log::info("to train: --data.train_file ", line.augment.out, " --data.eval_file ", line.augment.eval_out,
              " (and no val_size)");
}

}  // namespace unsloth::app
