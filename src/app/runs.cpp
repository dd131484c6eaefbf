// `watch`, `compare` and `report`: what runs' folders say, without the engine.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "app/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/core/terminal.h"
#include "unsloth/report/page.h"
#include "unsloth/report/plot.h"
#include "unsloth/report/sweep.h"

namespace unsloth::app {
namespace {

struct Terminal {
    int columns = 80, rows = 40;
    bool draws = false, colours = false;
};

Terminal terminal() {
    Terminal found;
    const TextSize size = text_size(STDOUT_FILENO);
    found.columns = std::clamp(size.columns, 40, 200);
    found.rows = std::max(size.rows, 24);
    found.draws = takes_escapes(STDOUT_FILENO);
    found.colours = takes_colours(STDOUT_FILENO);
    return found;
}

}  // namespace

void run_watch(const CommandLine& line) {
    report::RunReader reader(line.watch.run);
    const bool once = line.watch.once || !terminal().draws;
    for (bool first = true;; first = false) {
        const Terminal here = terminal();
        const std::string view = report::run_view(reader.run(), here.columns, here.rows - 1, here.colours);
        if (once) return print_coloured(view);
        print_coloured(cat(first ? "\033[2J" : "", "\033[H", view, "\033[J"));
        if (reader.run().ending || reader.run().killed()) return;
        std::this_thread::sleep_for(std::chrono::duration<double>(line.watch.interval));
        reader.update();
    }
}

void run_compare(const CommandLine& line) {
    std::vector<report::Run> runs;
    for (const std::string& folder : line.compare.runs) {
        const std::optional<report::Sweep> sweep = report::read_sweep(folder);
        if (!sweep) {
            runs.push_back(report::read_run(folder));
            continue;
        }
        print(report::sweep_table(*sweep) + "\n");
        for (const report::SweepTrial& trial : sweep->trials)
            if (!trial.scores.empty()) runs.push_back(report::read_run(report::trial_folder(folder, trial.number)));
    }
    const Terminal here = terminal();
    print_coloured(report::comparison(runs, here.columns, here.colours));
}

void run_report(const CommandLine& line) {
    const report::Run run = report::read_run(line.report.run);
    const bool picture = !line.report.svg.empty();
    if (picture && !line.report.out.empty())
        throw Error("option.conflict", "--out and --svg are both given",
                    "Write the page and the picture one after the other.");
    std::filesystem::path file = run.folder / report::page_file;
    if (picture || !line.report.out.empty()) file = picture ? line.report.svg : line.report.out;
    write_file_atomically(file, picture ? report::picture(run) : report::page(run, 0));
    log::info("written: ", file.string());
}

}  // namespace unsloth::app
