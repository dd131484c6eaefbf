// What reads a run's folder takes: watch, compare, report, push, replay.
#include "app/commands/declarations.h"

namespace unsloth::app {

void declare_watch(OptionSet& options, CommandLine& line) {
    options.add("run", line.watch.run, "Folder of a run (its training.output_dir).")
        .path("RUN")
        .argument()
        .must_be_given();
    options.add("once", line.watch.once, "Draw once; so it is also where standard output is no terminal.");
    options.add("interval", line.watch.interval, "Seconds between two looks.").at_least(0.1).at_most(3600);
}

void declare_compare(OptionSet& options, CommandLine& line) {
    options.add("runs", line.compare.runs, "Folders of runs.").path("RUN …").argument().must_be_given();
}

void declare_report(OptionSet& options, CommandLine& line) {
    options.add("run", line.report.run, "Folder of a run (its training.output_dir).")
        .path("RUN")
        .argument()
        .must_be_given();
    options.add("out", line.report.out, "File to write; empty: report.html in the run's folder.").output("FILE");
    options.add("svg", line.report.svg, "Write a picture instead: the curve of the loss, and the memory's plan.")
        .output("FILE");
    declare_force(options, line);
}

void declare_push(OptionSet& options, CommandLine& line) {
    PushOptions& push = line.push;
    options.add("folder", push.folder, "Folder of a model or an adapter, such as a run's output_dir or a checkpoint-N.")
        .path("DIR")
        .argument()
        .must_be_given();
    options.add("repo", push.repo, "Repository to upload to: ORG/NAME, or NAME of the token's account.")
        .value("ORG/NAME")
        .must_be_given()
        .suggested_for({"hub_model_id", "repo_id"});
    options.add("private", push.is_private, "Create the repository as a private one. One that exists stays as it is.")
        .suggested_for({"hub_private_repo"});
    options.add("branch", push.branch, "Branch of the repository, which must exist.")
        .value("NAME")
        .suggested_for({"revision", "hub_revision"});
    options.add("message", push.message, "Message of the commit; empty: what was uploaded.").value("TEXT");
}

void declare_replay(OptionSet& options, CommandLine& line) {
    options
        .add("file", line.replay.file,
             "The file that a run wrote for a non-finite step or a spike: RUN/anomalies/step-N.json. The run's folder "
             "must also have run_config.json and the checkpoints.")
        .path("FILE")
        .argument()
        .must_be_given();
    options.add("device", line.replay.device, "auto, cpu, cuda or cuda:N; empty: as the run had it.")
        .value("DEVICE")
        .alias("hardware", "device");
    options.add("json", line.replay.json, "Print the findings as one JSON object.");
}

}  // namespace unsloth::app
