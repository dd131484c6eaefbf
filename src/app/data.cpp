// `data` and `data augment`: both do without the engine, for neither needs a model's weights.
#include <unistd.h>

#include <optional>

#include "app/commands.h"
#include "app/rows_model.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/shell_word.h"
#include "unsloth/core/terminal.h"
#include "unsloth/data/augment.h"
#include "unsloth/data/report.h"

namespace unsloth::app {
namespace {

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
    const RowsModel folder = open_rows_model(config);
    if (config.model.max_seq_length == 0) config.model.max_seq_length = folder.limits.max_positions;
    data::TrainingData data;
    std::optional<Error> refusal;
    try {
        data = load_rows(config, folder, data::RefusedRows::as_configured);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        // Rows that stop a run are counted and shown; what else is wrong (no file, no tokenizer) stops this load too.
        refusal = Error(error.id(), first_line(error.what()));
        data = load_rows(config, folder, data::RefusedRows::set_aside);
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
    log::info("to train: --data.train_file ", shell_word(line.augment.out), " --data.eval_file ",
              shell_word(line.augment.eval_out), " (and no val_size)");
}

}  // namespace unsloth::app
