// `prune`: a model folder without some of another one's layers, neurons, experts or weights. The engine measures what
// they are worth on a file of rows, before and after; the folder itself is written without it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "app/as_trained.h"
#include "app/commands.h"
#include "app/engine_loader.h"
#include "app/model_folder.h"
#include "app/paths.h"
#include "app/prune_report.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/parallel.h"
#include "unsloth/core/text.h"

namespace unsloth::app {
namespace {

using engine_api::Calibration;
using formats::Sparsity;

void check_layers(const PruneRequest& request, const spec::ModelSpec& spec) {
    if (request.layers >= spec.num_layers)
        throw Error("option.out-of-range",
                    cat("--layers ", request.layers, ": the model has ", spec.num_layers, " layers"),
                    cat("--layers is the number that remain: from 1 to ", spec.num_layers - 1, "."));
    if (!spec.part_of.empty())
        throw Error(
            "model.unsupported",
            cat("the model is the text part of ", spec.part_of, ", whose other parts would not fit a pruned one"),
            "Prune a model that is text alone.");
}

void check_neurons(const PruneRequest& request, const spec::ModelSpec& spec) {
    if (request.intermediate == 0) return;
    if (spec.experts)
        throw Error("model.unsupported",
                    "--intermediate: the model's MLPs are of experts, whose neurons are not ranked",
                    "This model takes --layers and --experts.");
    if (request.intermediate >= spec.intermediate_size)
        throw Error("option.out-of-range",
                    cat("--intermediate ", request.intermediate, ": the model's MLPs have ", spec.intermediate_size,
                        " neurons"),
                    cat("--intermediate is the number that remain: below ", spec.intermediate_size, "."));
    if (spec.has(spec::Projection::gate_up))
        throw Error("option.unsupported",
                    "--intermediate: the model's gate_up_proj has the rows of gate and up, of which neurons are not "
                    "taken out",
                    "This model takes --layers and --wanda.");
    if (request.intermediate % 128 != 0)
        log::warning("--intermediate ", request.intermediate,
                     " is no multiple of 128: 4-bit kernels need multiples of 64 or 128, GGUF's K types of 256");
}

void check_experts(const PruneRequest& request, const spec::ModelSpec& spec) {
    if (request.experts == 0) return;
    if (!spec.experts)
        throw Error("model.unsupported", cat("--experts ", request.experts, ": the model has no experts"),
                    "This model takes --layers and --intermediate.");
    const spec::ExpertsSpec& experts = *spec.experts;
    if (request.experts >= experts.count || request.experts < experts.top_k)
        throw Error("option.out-of-range",
                    cat("--experts ", request.experts, ": the model's layers have ", experts.count,
                        " experts, of which a token passes ", experts.top_k),
                    experts.top_k < experts.count ? cat("--experts is the number that remain: from ", experts.top_k,
                                                        " to ", experts.count - 1, ".")
                                                  : "A token passes them all: none can be removed.");
}

void check_wanda(const PruneRequest& request, const spec::ModelSpec& spec) {
    if (request.wanda == Sparsity::none) return;
    if (spec.experts)
        throw Error("model.unsupported", "--wanda: the model's MLPs are of experts, whose inputs are not measured",
                    "This model takes --layers and --experts.");
    for (const int64_t cols : {spec.hidden_size, spec.q_size(), spec.intermediate_size})
        if (request.wanda == Sparsity::two_of_four && cols % 4 != 0)
            throw Error("option.invalid-value",
                        cat("--wanda 2:4: a matrix has ", cols, " columns, which is no multiple of 4"),
                        "--wanda 0.5 takes any number.");
    log::warning("--wanda writes a folder of the same size, and no loader runs it faster: its zeros are stored");
}

void check_sizes(const PruneRequest& request, const spec::ModelSpec& spec) {
    check_layers(request, spec);
    check_neurons(request, spec);
    check_experts(request, spec);
    check_wanda(request, spec);
}

/// The deepest layers go but the final one: the simple heuristic of Gromov et al., "The Unreasonable Ineffectiveness of
/// the Deeper Layers" (arXiv 2403.17887), section 4.4.
std::vector<int64_t> without_deepest(int64_t layers, int64_t remain) {
    std::vector<int64_t> kept;
    for (int64_t layer = 0; layer + 1 < remain; ++layer) kept.push_back(layer);
    kept.push_back(layers - 1);
    return kept;
}

std::vector<int64_t> layers_to_keep(const PruneRequest& request, int64_t layers, const Calibration& found) {
    std::vector<int64_t> kept;
    if (request.layers > 0 && request.method == PruneMethod::block_influence)
        return formats::places_of_largest(found.influence, request.layers);
    if (request.layers > 0 && request.method == PruneMethod::last) return without_deepest(layers, request.layers);
    for (int64_t layer = 0; layer < layers; ++layer)
        if (std::ranges::find(found.scan, layer, &Calibration::Removal::layer) == found.scan.end())
            kept.push_back(layer);
    return kept;
}

/// Of each layer and neuron the size of what it adds to the residual stream: its activation's aggregate times the norm
/// of its column of down.
std::vector<std::vector<double>> neuron_importance(const formats::WeightFile& base, const Calibration& found) {
    std::vector<std::vector<double>> importance = found.neurons;
    parallel_ranges(static_cast<int64_t>(importance.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t layer = begin; layer < end; ++layer) {
            stop_if_interrupted();
            std::vector<double>& neurons = importance[static_cast<std::size_t>(layer)];
            const std::vector<double> norms =
                formats::column_norms(base.tensors.linear({static_cast<int>(layer), spec::Projection::down}));
            std::ranges::transform(neurons, norms, neurons.begin(), std::multiplies());
        }
    });
    return importance;
}

engine_api::LinearInput input_of(spec::Projection projection) {
    switch (projection) {
        case spec::Projection::o:
            return engine_api::LinearInput::o;
        case spec::Projection::gate:
        case spec::Projection::up:
        case spec::Projection::gate_up:
            return engine_api::LinearInput::gate_up;
        case spec::Projection::down:
            return engine_api::LinearInput::down;
        default:
            return engine_api::LinearInput::qkv;
    }
}

/// Refers to `found`.
formats::Pruning pruning_of(const PruneRequest& request, const PruneReport& report, const spec::ModelSpec& spec) {
    const Calibration& found = report.before;
    formats::Pruning pruning{.layers = layers_to_keep(request, spec.num_layers, found)};
    if (request.intermediate > 0)
        for (const int64_t layer : pruning.layers)
            pruning.neurons.push_back(
                formats::places_of_largest(report.importance[static_cast<std::size_t>(layer)], request.intermediate));
    for (const engine_api::Calibration::Experts& of_layer : found.experts) pruning.experts.push_back(of_layer.kept);
    if (request.wanda == Sparsity::none) return pruning;
    pruning.zero = [&found, sparsity = request.wanda](const spec::TensorRule& rule, int64_t rows, float* values) {
        const auto& norms = found.inputs.at(
            static_cast<std::size_t>(rule.id.layer))[static_cast<std::size_t>(input_of(rule.id.projection))];
        const auto cols = static_cast<int64_t>(norms.size());
        for (int64_t row = 0; row < rows; ++row) formats::zero_least(sparsity, norms.data(), cols, values + row * cols);
    };
    return pruning;
}

/// What the measurements read: the model alone, with the values that the folder will have unless others are asked for.
void settle_configuration(CommandLine& line) {
    take_from_run(line);  // which may name a run's adapter
    config::ModelOptions& model = line.loaded.config.model;
    if (model.adapter_name_or_path)
        throw Error(
            "option.conflict",
            cat("prune takes a model, and model.adapter_name_or_path is given (", *model.adapter_name_or_path, ")"),
            "Merge the adapter first, with unsloth-train merge, and prune the merged model.");
    model.rope_scaling = config::ModelOptions().rope_scaling;
    line.loaded.config.data.train_file = line.prune.calibration;
    line.loaded.config.data.train_split.clear();
    line.loaded.config.data.datasets.clear();
    line.loaded.config.data.eval_file.reset();
    line.loaded.config.data.eval_split.clear();
    line.loaded.config.data.eval_files.clear();
    if (!line.loaded.is_given("model.load_in_4bit")) model.load_in_4bit = false;
}

void describe_base(const formats::WeightFile& base) {
    const bool mxfp4 = base.quantization && base.quantization->quant_method == "mxfp4";
    if (mxfp4 && base.spec.experts->transposed) return log::info("the remaining experts stay in MXFP4, as they are");
    const int64_t in_4bit = base.tensors.quantised_linears(), in_8bit = base.tensors.int8_linears();
    if (in_4bit + in_8bit > 0)
        log::info("the model's ", in_4bit + in_8bit, " ", in_4bit > 0 ? "4" : "8",
                  "-bit weights are dequantised: the pruned folder is in ", name_of(base.spec.dtype),
                  ", and `quantize` makes it small again. Pruning the 16-bit original loses less");
}

/// Measures the folder that was written. Where it cannot be had, hours of work stay under another name.
Calibration result_of(StagedFolder& written, engine_api::Engine& engine, config::LoadedConfig loaded,
                      const std::string& rows) {
    config::ModelOptions& model = loaded.config.model;
    model.path = written.path().string();
    // What names single layers means those of the model before.
    model.device_map = config::ModelOptions().device_map;
    std::erase_if(model.precision, [](const auto& entry) { return entry.first.starts_with("model.layers."); });
    try {
        return engine.calibrate(loaded, {.file = rows});
    } catch (const Error& error) {
        throw Error(error.id(), cat("the pruned model was written, and its loss could not be measured: ", error.what()),
                    cat("It stays in ", written.keep_as("unverified").string()));
    }
}

/// Seconds of what the engine does not measure.
struct PhaseTimes {
    double score = 0, write = 0;

    /// Since the last call, or since it was made.
    double lap() {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// One line with all that a comparison of two prunings asks for.
void tell_times(const Calibration& before, const Calibration& after, const PhaseTimes& times) {
    char text[192];
    std::snprintf(text, sizeof text,
                  "read %.1f s, pass %.1f s (%.0f tokens/s), score %.1f s, write %.1f s, loss of the result %.1f s",
                  before.read_seconds, before.pass_seconds,
                  static_cast<double>(before.passed_tokens) / before.pass_seconds, times.score, times.write,
                  after.read_seconds + after.pass_seconds);
    log::info("time: ", text, "; memory: plan ", human_bytes(before.planned_bytes), ", peak ",
              human_bytes(before.taken_bytes));
}

/// As training prints a loss.
std::string loss_text(double loss) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4f", loss);
    return text;
}

}  // namespace

void run_prune(const CommandLine& given) {
    install_interrupt_handlers("Stopping");
    CommandLine line = given;
    settle_configuration(line);
    const PruneRequest& request = line.prune;
    const std::string model_path = line.loaded.config.model.path;
    StagedFolder staged(request.out);
    require_inputs(line);
    const formats::WeightFile base = formats::WeightFile::open(model_path);
    check_sizes(request, base.spec);
    describe_base(base);
    const auto engine = load_engine(line.loaded.config);
    PruneReport report;
    report.before =
        engine->calibrate(line.loaded, {.file = request.calibration,
                                        .influence = request.layers > 0,
                                        .neurons = request.intermediate > 0,
                                        .inputs = request.wanda != Sparsity::none,
                                        .scan_layers = request.layers > 0 && request.method == PruneMethod::scan
                                                           ? base.spec.num_layers - request.layers
                                                           : 0,
                                        .experts = request.experts});
    PhaseTimes times;
    report.importance = neuron_importance(base, report.before);
    report.pruning = pruning_of(request, report, base.spec);
    times.score = times.lap();
    log::info(prune_table(request, base.spec, report));
    write_weights(formats::MergedModel(base, report.pruning), staged,
                  {.shard_bytes = static_cast<std::size_t>(request.max_shard_bytes)});
    copy_companions(base.checkpoint.folder(), {}, staged.path());
    pass_on_run(base.checkpoint.folder(), staged.path());
    times.write = times.lap();
    const Calibration after = result_of(staged, *engine, line.loaded, request.calibration);
    report.loss_after = after.loss;
    write_file_atomically(staged.path() / prune_report_file, prune_json(request, model_path, base.spec, report));
    stop_if_interrupted();
    staged.commit();
    tell_times(report.before, after, times);
    log::info("pruned model in ", staged.target().string(), ": loss ", loss_text(report.loss_after), ", before ",
              loss_text(report.before.loss), " (", request.calibration,
              "). Training can recover most of it: ", "docs/how-to/prune.md");
}

}  // namespace unsloth::app
