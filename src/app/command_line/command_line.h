// The command line of unsloth-train, read: which command, and the request and configuration it carries.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/command_line/names.h"
#include "unsloth/data/augment.h"
#include "unsloth/formats/pruning.h"
#include "unsloth/import/import.h"
#include "unsloth/spec/serve_grid.h"
#include "unsloth/spec/weight_type.h"

namespace unsloth::app {

enum class Command {
    train,
    new_config,
    launch,
    config,
    importing,
    data,
    augment,
    score,
    generate,
    serve,
    evaluate,
    tokenize,
    inspect,
    init,
    exporting,
    merge,
    quantize,
    prune,
    bench,
    tune,
    plan,
    sweep,
    doctor,
    explain,
    watch,
    compare,
    report,
    push,
    replay,
    probe_grpo,
    help,
    version
};

struct ConfigRequest {
    bool schema = false;     ///< print the JSON Schema instead of the effective configuration
    bool markdown = false;   ///< print the option reference instead
    bool man = false;        ///< print the manual page instead
    std::string completion;  ///< print a script for this shell instead; empty: not
};

/// Whether trained tokens are shown by colour; `automatic`: on a terminal.
enum class ColorChoice { automatic, always, never };

/// The answers to the questions of `new`; empty: to be asked.
struct NewRequest {
    std::string model;  ///< as model.path
    std::string data;   ///< as data.train_file
    std::string gpu;    ///< "here", "cpu", a card's name or file as plan's --gpu, or a size as plan's --gpu_memory
    std::string out = "run.json";
};

struct ImportRequest {
    std::string path;  ///< never empty
    import::PeerProgram from = import::PeerProgram::automatic;
    std::string out;  ///< empty: standard output
    bool strict = false;
    bool json = false;
};

struct DataRequest {
    int64_t n = 3;  ///< rows to show
    bool json = false;
    ColorChoice color = ColorChoice::automatic;
};

struct TokenizeRequest {
    std::string tokenizer;  ///< folder with tokenizer.json or tokenizer.model, or the .json file; never empty
    std::string chat_template = "auto";
    std::string chat_template_kwargs = "{}";  ///< JSON object
    bool decode = false;
    bool no_special = false;
    int64_t measure = 0;  ///< rounds of encoding to time, instead of writing ids; 0: none
};

struct InspectRequest {
    std::string path;  ///< folder, .safetensors or .gguf file; never empty
    bool json = false;
};

struct LaunchRequest {
    std::string nproc_per_node = "auto";  ///< "auto" (a process a GPU) or a number from 1
    int64_t nnodes = 1, node_rank = 0;    ///< node_rank < nnodes
    std::string master_addr;              ///< empty: this machine, which is then the only one
    int64_t master_port = 0;              ///< 0: a free one; never with several machines
    int64_t max_restarts = 0;             ///< 0 with several machines
    double grace_period = 30;             ///< seconds that the other ranks have after the first failure
    bool silent = false;
    std::string prefix = "[rank {rank}] ";
    bool no_pin = false;
    std::string program;                 ///< of the ranks; empty: this executable
    std::vector<std::string> arguments;  ///< of the ranks; understood already where `program` is empty
    // Of the ranks' configuration; with another program the defaults:
    std::string device = "auto";  ///< hardware.device
    double save_grace = 25;       ///< training.save_grace_seconds
    int64_t ddp_timeout = 120;    ///< distributed.ddp_timeout, seconds
    void follow(const Config& ranks);
};

enum class ExportFormat { gguf };
/// `automatic`: that of the checkpoint's (or the adapter's) own 16 or 32-bit weights.
enum class ExportType { automatic, f32, f16, bf16, q8_0, q4_0, mxfp4, q4_k_m, q5_k_m, q6_k };

/// `model` or `adapter` is given, or both.
struct ExportRequest {
    ExportFormat format = ExportFormat::gguf;
    std::string model;      ///< as model.path; with an adapter its base: empty then means as adapter_config.json says
    std::string adapter;    ///< PEFT folder; empty: the model is exported
    std::string out;        ///< file to write; never empty
    std::string tokenizer;  ///< folder; empty: the model's own
    std::string pre;        ///< llama.cpp's name of the tokenizer's splitting; empty: found
    ExportType type = ExportType::automatic;
    bool ignore_serve_grid = false;  ///< export an adapter that was trained through one, alone
    int64_t threads = 0;             ///< 0: as many as the machine has
};

/// A model folder from a base and an adapter.
struct MergeRequest {
    std::string adapter;  ///< folder; never empty
    std::string base;     ///< as model.path; empty: what the adapter's config names
    std::string out;      ///< folder to make; never empty
    spec::WeightType dtype = spec::WeightType::automatic;
    std::optional<spec::ServeGrid> grid;                         ///< nullopt: as the adapter was trained
    bool load_in_4bit = false;                                   ///< the base's values are rounded to NF4 first
    std::vector<std::pair<std::string, std::string>> precision;  ///< or as model.precision says
    std::string max_shard_size = "5GB";
    int64_t max_shard_bytes = 0;  ///< what max_shard_size says; above 0
    std::string verify;           ///< text, or a file of rows; empty: a text and rows of the program's own
    bool no_verify = false;
    std::optional<double> tolerance;  ///< nullopt: as `dtype` allows
    std::string device = "cpu";
};

enum class InitQuantize { none, nf4, mxfp4 };

/// A model folder with random weights. Either `shape` or `config_file` is given.
struct InitRequest {
    std::string shape;        ///< a built-in name such as "llama-3.1-8b"
    std::string config_file;  ///< a Hugging Face config.json
    int64_t layers = 0;       ///< how many instead of the shape's; 0: the shape's
    std::string out;          ///< the folder to write; never empty
    InitQuantize quantize = InitQuantize::none;
    std::string tokenizer;  ///< folder whose tokenizer files are copied to the weights' folder; empty: none
    int64_t seed = 3407;
    spec::DType dtype = spec::DType::bf16;  ///< of the weights that stay unquantised
};

/// A model folder with another one's weights, quantised.
struct QuantizeRequest {
    std::string model;  ///< as model.path; never empty
    std::string out;    ///< folder to make; never empty
    spec::WeightType type = spec::WeightType::nf4;
    std::vector<std::pair<std::string, std::string>> precision;  ///< of modules that `type` does not hold for
    std::string max_shard_size = "5GB";
    int64_t max_shard_bytes = 0;
};

/// Which layers go: those that change the residual stream least, the deepest ones, or one after another by the loss. Of
/// experts those that add least to it (reap).
enum class PruneMethod { block_influence, last, scan, reap };

/// A model folder without some of another one's layers, neurons, experts or weights. One of the four is asked for.
struct PruneRequest {
    std::string out;                                    ///< folder to make; never empty
    std::string calibration;                            ///< as data.train_file; never empty
    int64_t layers = 0;                                 ///< that remain; 0: all
    PruneMethod method = PruneMethod::block_influence;  ///< of layers; experts have one way
    int64_t intermediate = 0;                           ///< neurons of each MLP that remain; 0: all
    formats::Sparsity wanda = formats::Sparsity::none;
    int64_t experts = 0;  ///< of each layer that remain; 0: all
    std::string max_shard_size = "5GB";
    int64_t max_shard_bytes = 0;  ///< what max_shard_size says; above 0
};

/// Trials of several settings, of which the best by held-out loss becomes the run.
struct SweepRequest {
    std::string grid;      ///< as typed: "learning_rate=1e-4,2e-4;r=8,16"
    bool find_lr = false;  ///< instead: eight learning rates for `steps` steps each
    int64_t steps = 100;
    int64_t nproc_per_node = 1;  ///< processes of each trial
    /// Options with several values, {full name, its values as typed}: from `grid`, and from flags such as
    /// --learning_rate 1e-4,2e-4. No two share a name.
    std::vector<std::pair<std::string, std::vector<std::string>>> axes;
    std::vector<std::string> arguments;  ///< of each trial's run, without what is the sweep's
};

struct WatchRequest {
    std::string run;  ///< folder; never empty
    bool once = false;
    double interval = 1;  ///< seconds
};

struct CompareRunsRequest {
    std::vector<std::string> runs;  ///< folders; one at least
};

struct ReportRequest {
    std::string run;  ///< folder; never empty
    std::string out;  ///< empty: report.html in it
    std::string svg;  ///< file for the picture; empty: none
};

struct PushOptions {
    std::string folder;  ///< with a model or an adapter; never empty
    std::string repo;    ///< ORG/NAME, or NAME of the token's account; never empty
    bool is_private = true;
    std::string branch = "main";
    std::string message;  ///< the commit's; empty: the program's own
};

struct DoctorRequest {
    bool json = false;
    bool report = false;  ///< print one block for a bug report, without names, instead of the groups
};

struct ExplainRequest {
    std::string id;  ///< of an error; empty: list all ids
    bool markdown = false;
};

/// A path as an option gave it.
struct NamedPath {
    std::string option;  ///< full name: "data.train_file", "out"
    std::string path;    ///< never empty
};

/// Only the request of `command` means anything; `loaded` does for the commands that take a configuration.
struct CommandLine {
    Command command = Command::train;
    std::string name;        ///< of the command as it is typed: "data augment"
    std::string help_topic;  ///< of help: a command's name, or empty for the overview
    bool help_all = false;   ///< of the overview: with every option of train
    std::string config_file;
    std::string log_level = "info";
    LoadedConfig loaded;             ///< `given` has a command's own options, too
    std::vector<NamedPath> outputs;  ///< files that the command is to write, by its own options
    bool force = false;              ///< replaces those that exist
    std::vector<NamedPath> inputs;   ///< the other paths that were given
    std::set<std::string> typed;     ///< full names of the options among the arguments, which win over the file's
    LaunchRequest launch;
    NewRequest fresh;
    ConfigRequest config;
    ImportRequest importing;
    DataRequest data;
    data::AugmentRequest augment;
    ScoreRequest score;
    GenerateRequest generate;  ///< of serve, too: what it answers with
    ServeRequest serve;
    EvaluateRequest evaluate;
    TokenizeRequest tokenize;
    InspectRequest inspect;
    InitRequest init;
    ExportRequest exporting;
    MergeRequest merge;
    QuantizeRequest quantize;
    PruneRequest prune;
    BenchRequest bench;
    TuneRequest tune;
    PlanRequest plan;
    SweepRequest sweep;
    WatchRequest watch;
    CompareRunsRequest compare;
    ReportRequest report;
    PushOptions push;
    ReplayRequest replay;
    DoctorRequest doctor;
    ExplainRequest explain;
};

/// Reads the arguments after the program's name. An option first means `train`; --help or --help-all anywhere means
/// help. Usage Error for anything unknown (with the nearest known name), for bad values and for missing ones. `launch`
/// reads its own options up to the first argument that is none of them (or up to --); the rest is a command line of its
/// own, and checked as such.
CommandLine parse_command_line(const std::vector<std::string>& arguments);

/// What `unsloth-train help TOPIC` prints. For "" it is one screen of 80 columns: the commands, and the options of
/// train that are most used; with `all`, all of both. Usage Error for an unknown topic.
std::string help_text(const std::string& topic, bool all = false);

/// docs/reference/options.
std::string options_markdown();

/// A script that completes command lines in `shell`: bash, zsh or fish.
std::string shell_completion(const std::string& shell);

/// The manual page unsloth-train.1, in roff.
std::string manual_page();

}  // namespace unsloth::app
