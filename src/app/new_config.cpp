// `unsloth-train new`: three questions, and a configuration that fits the answers.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "app/commands.h"
#include "app/engine_loader.h"
#include "app/machine/gpus.h"
#include "app/new_config/proposal.h"
#include "app/paths.h"
#include "unsloth/config/option.h"
#include "unsloth/config/peer_fields.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/shell_word.h"
#include "unsloth/core/text.h"

namespace unsloth::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* this_machine = "here";

struct Question {
    const char* words;
    const char* flag;
    const char* standard;  ///< for an empty line; "": there is none
};
constexpr Question of_model = {"Which model? (a folder, or a Hugging Face id such as unsloth/Llama-3.2-1B)", "--model",
                               ""};
constexpr Question of_rows = {"Which rows? (a file, folder or glob of JSONL, CSV, Parquet or text)", "--data", ""};
constexpr Question of_card = {"Which card? (24GiB, RTX 4090, …, cpu; empty: this machine)", "--gpu", this_machine};

/// Where there is no terminal to ask at.
void require_answers(const NewRequest& request) {
    std::string missing;
    for (const auto& [question, answer] :
         {std::pair{of_model, request.model}, {of_rows, request.data}, {of_card, request.gpu}})
        if (answer.empty()) missing += cat(missing.empty() ? "" : ", ", question.flag);
    if (!missing.empty() && ::isatty(STDIN_FILENO) == 0)
        throw Error("option.missing", cat("new needs ", missing),
                    "Standard input is no terminal, so no one can be asked. --gpu here means this machine.");
}

std::string read_answer(const Question& question) {
    print(cat(question.words, "\n> "));
    std::string text;
    if (!std::getline(std::cin, text))
        throw Error("option.missing", cat("no answer"), cat("Give it with ", question.flag, "."));
    text = trimmed(text);
    return text.empty() ? question.standard : config::expand_home(text);
}

/// Takes the answer that a flag gave, whose errors end the command; else asks until one passes.
void settle(const Question& question, std::string& answer, const std::function<void(const std::string&)>& take) {
    if (!answer.empty()) return take(answer);
    for (;;) {
        const std::string text = read_answer(question);
        if (text.empty()) continue;
        try {
            take(text);
            answer = text;
            return;
        } catch (const Error& error) {
            print(cat("  ", error.what(), "\n"));
        }
    }
}

/// What a plan is asked for.
struct Card {
    engine_api::PlanRequest request;
    bool on_cpu = false;
    bool here = false;
};

Card read_card(const std::string& text) {
    Card card;
    card.here = text == this_machine || text == "cpu";
    if (card.here) {
        card.on_cpu = text == "cpu" || visible_gpus(find_gpus().gpus).empty();
        return card;
    }
    if (text.find_first_not_of("0123456789.") == std::string::npos)
        throw Error("option.invalid-value", cat("--gpu ", text, ": a size needs a unit, and a name its series"),
                    cat("As in ", text, "GiB, or RTX ", text, "."));
    try {
        card.request.gpu_memory_bytes = config::parse_byte_size(text, "--gpu");
    } catch (const Error&) {
        card.request.gpu = text;  // a name, which the planner knows or refuses
    }
    return card;
}

class Dialogue {
  public:
    Dialogue(const NewRequest& request, bool force) : request_(request), force_(force) {}

    void run() {
        refuse_existing(request_.out, force_, "--out");
        require_answers(request_);
        settle(of_model, request_.model, [&](const std::string& path) { model_ = examine_model(path); });
        print(cat("  ", model_.description, model_.quantized ? ", stored in 4 or 8 bit" : "", "\n"));
        settle(of_rows, request_.data, [&](const std::string& file) { rows_ = examine_rows(model_, file); });
        print(cat("  ", rows_.rows, " rows of format ", rows_.format, ", ", rows_.median, " tokens in the median, ",
                  rows_.longest, " at most\n"));
        if (rows_.skipped > 0)
            print(cat("  note: ", rows_.skipped, " of ", rows_.rows + rows_.skipped,
                      " rows leave nothing to train on: their prompts take all ", model_.positions,
                      " positions, or no label counts\n"));
        for (const std::string& warning : rows_.warnings) print(cat("  note: ", warning, "\n"));
        settle(of_card, request_.gpu, [&](const std::string& text) { plan(text); });
        write();
    }

  private:
    void plan(const std::string& text) {
        card_ = read_card(text);
        if (engine_ == nullptr) engine_ = load_engine();
        const fs::path out = request_.out;
        proposal_ =
            propose(model_, rows_, card_.on_cpu, (fs::path("out") / out.stem()).string(),
                    [&](const config::LoadedConfig& config) { return engine_->estimate(config, card_.request); });
    }

    void write() const {
        print(cat("  ", proposal_.estimate.device, ", ", human_size(proposal_.estimate.budget_bytes),
                  " may be planned for\n\n"));
        for (const Choice& choice : proposal_.choices) {
            if (choice.reason.empty()) continue;
            print(cat(choice.option.substr(choice.option.find('.') + 1), " ", config::shown(choice.value), ": ",
                      choice.reason, "\n"));
        }
        if (proposal_.estimate.tokens_per_second > 0)
            print(cat("predicted: ", std::llround(proposal_.estimate.tokens_per_second), " tokens/s with full rows\n"));
        write_file_atomically(request_.out, json_of(proposal_.choices));
        print(cat("\nWritten: ", request_.out, "\n"));
        if (!model_.has_weights)
            print(model_.from_hub ? "The weights are not here yet: the run downloads them.\n"
                                  : cat("The weights are missing: put model.safetensors into ", model_.path, ".\n"));
        print(cat("Run next", card_.here ? "" : ", on the machine with that card", ":\n  unsloth-train data ",
                  shell_word(request_.out), "\n  unsloth-train ", shell_word(request_.out), "\n"));
    }

    NewRequest request_;
    bool force_;
    ModelFacts model_;
    RowFacts rows_;
    Card card_;
    std::unique_ptr<engine_api::Engine> engine_;
    Proposal proposal_;
};

}  // namespace

void run_new(const CommandLine& line) {
    Dialogue(line.fresh, line.force).run();
}

}  // namespace unsloth::app
