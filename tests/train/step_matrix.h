// Every combination of the settings that must not change a step's bits: what layers keep, where it lies, recorded
// passes, micro-batches one after the other or layer by layer; for each way to split a step's rows into micro-batches
// and ranks, rows of equal length or not. Run on the CPU by step_matrix_test.cpp; a GPU's test walks the same list.
#pragma once

#include "comm/ranks.h"
#include "train/support.h"
#include "unsloth/ops/device.h"
#include "unsloth/train/step.h"

namespace unsloth::test {

/// How a step's rows are divided. Other splits round otherwise: they agree within a bound, not in bits.
struct StepSplit {
    int micro_batches = 1, ranks = 1;
    bool equal_rows = true, dora = false;
    bool hybrid = false;  ///< most layers have gated delta nets
    std::string name() const {
        return cat(micro_batches, "_micro_", ranks, "_ranks_", equal_rows ? "equal" : "unequal", "_rows",
                   dora ? "_dora" : "", hybrid ? "_hybrid" : "");
    }
};
inline void PrintTo(const StepSplit& split, std::ostream* out) {
    *out << split.name();
}

inline std::vector<StepSplit> step_splits(int most_ranks) {
    std::vector<StepSplit> splits;
    for (const bool equal : {true, false})
        for (int ranks = 1; ranks <= most_ranks; ++ranks)
            for (const int micro : {1, 2}) splits.push_back({micro, ranks, equal});
    splits.push_back({.micro_batches = 2, .ranks = most_ranks, .dora = true});
    return splits;
}

constexpr int matrix_layers = 6, matrix_steps = 3, matrix_rows = 8;  ///< rows of a step, over all ranks
constexpr int64_t matrix_bucket_bytes = 16 << 10;  ///< several layers make several buckets, with more than one rank

/// What must not be seen in any bit.
struct StepSettingsCase {
    std::string layers_name = "none";
    std::vector<spec::LayerPlan> layers{spec::LayerPlan{}};  ///< one for all, or one each
    bool records = false;
    int in_flight = 1;
    int64_t row_tile = 0;  ///< this and the next change bits
    bool inputs_in_fp8 = false;
    spec::CodedProducts fp8 = spec::CodedProducts::none;
    std::string name() const { return cat(layers_name, records ? ", recorded" : "", ", ", in_flight, " in flight"); }
    const spec::LayerPlan& layer(std::size_t index) const { return layers[layers.size() > 1 ? index : 0]; }
};

/// Each keep and place for all layers, and layers that differ.
inline std::vector<StepSettingsCase> layer_settings(bool gpu) {
    std::vector<StepSettingsCase> cases;
    for (const spec::Place place : {spec::Place::device, spec::Place::host})
        for (const spec::Keep keep :
             {spec::Keep::everything, spec::Keep::but_mlp, spec::Keep::attention, spec::Keep::input})
            cases.push_back({name_of(spec::LayerPlan{keep, place}), {{keep, place}}});
    const spec::LayerPlan everything{spec::Keep::everything}, but_mlp{spec::Keep::but_mlp},
        attention{spec::Keep::attention}, input{spec::Keep::input};
    const auto on_host = [](spec::LayerPlan layer) { return layer.activations_at = spec::Place::host, layer; };
    const std::vector<spec::LayerPlan> unlike{everything, input, but_mlp, attention, input, but_mlp};
    cases.push_back({"layers unlike", unlike});
    cases.push_back({"four layers offload",
                     {on_host(attention), on_host(input), on_host(everything), on_host(but_mlp), input, everything}});
    // Weights that are copied ahead of use: all of them, some with the top and the lowest resident, one alone.
    const auto elsewhere = [&](const char* name, const spec::LayerPlan& layer,
                               std::initializer_list<std::size_t> which) {
        cases.push_back({name, std::vector<spec::LayerPlan>(matrix_layers, layer)});
        for (const std::size_t i : which) cases.back().layers[i].weights_at = spec::Place::host;
    };
    elsewhere("all weights in host memory", everything, {0, 1, 2, 3, 4, 5});
    elsewhere("all weights and activations in host memory", on_host(input), {0, 1, 2, 3, 4, 5});
    elsewhere("weights of layers 1, 2 and 4 in host memory", attention, {1, 2, 4});
    elsewhere("weights of the top layer in host memory", input, {5});
    if (gpu) {  // where weights are expanded, and some of them once
        cases.push_back({"every second layer cached", unlike});
        for (std::size_t i = 0; i < unlike.size(); i += 2) cases.back().layers[i].cached = true;
    }
    return cases;
}

/// The first is the plain one that the others are compared with. Passes are recorded on a GPU alone.
inline std::vector<StepSettingsCase> step_settings(bool gpu, const StepSplit& split) {
    std::vector<StepSettingsCase> cases;
    for (int in_flight = 1; in_flight <= split.micro_batches; ++in_flight)
        for (const bool records : {false, true})
            for (StepSettingsCase settings : layer_settings(gpu)) {
                settings.records = records;
                settings.in_flight = in_flight;
                if (gpu || !records) cases.push_back(std::move(settings));
            }
    return cases;
}

/// The same of Qwen 3.5: attention in layers 2 and 5.
inline fs::path hybrid_matrix_model() {
    static const ScratchFolder folder;
    static const fs::path made =
        random_nf4_model(folder / "model", R"({"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text",
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 16, "linear_value_head_dim": 32, "full_attention_interval": 3, "vocab_size": 256,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
            "torch_dtype": "bfloat16"})");
    return made;
}

/// A model of six layers: four leave the device with +offload, and each slot is used again.
inline fs::path matrix_model() {
    static const ScratchFolder folder;
    static const fs::path made =
        random_nf4_model(folder / "model", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "bfloat16"})");
    return made;
}

/// Row number `row` of the run.
inline data::Sample matrix_row(int row, bool equal_rows) {
    data::Sample sample;
    sample.row = row;
    const int length = equal_rows ? 12 : 5 + row * 5 % 11;
    for (int32_t t = 0; t < length; ++t) {
        sample.ids.push_back((row * 31 + t * t * 7 + t) % 256);
        sample.positions.push_back(t);
    }
    sample.labels = sample.ids;
    sample.labels[1] = data::ignore_label;
    return sample;
}

/// A rank's part of step number `step`, from 0.
inline data::StepBatch matrix_batch(const StepSplit& split, int step, int rank) {
    data::StepBatch batch;
    const int parts = split.micro_batches * split.ranks, each = matrix_rows / parts;
    for (int part = 0; part < parts; ++part) {
        std::vector<data::Sample> rows;
        for (int i = 0; i < each; ++i)
            rows.push_back(matrix_row(step * matrix_rows + part * each + i, split.equal_rows));
        data::Batch micro = data::make_batch(rows);
        batch.labels += micro.labels;
        batch.tokens += micro.tokens();
        if (part / split.micro_batches == rank) batch.micro.push_back(std::move(micro));
    }
    return batch;
}

/// What one rank has after the run's steps.
struct StepRun {
    std::vector<float> losses, norms;
    at::Tensor values_P;     ///< on the CPU
    at::Tensor gradients_P;  ///< of the first step, on the CPU
    model::PassCounts counts;
    std::size_t buckets = 0;  ///< of gradients that the ranks sum
};

inline StepRun run_rank(const StepSplit& split, const StepSettingsCase& settings, at::Device device,
                        at::ScalarType dtype, comm::Group* group) {
    model::LoadRequest request;
    request.device = device;
    request.dtype = dtype;
    request.lora.emplace();
    request.lora->r = 8;
    request.lora->lora_dropout = split.dora ? 0 : 0.1;
    request.lora->use_dora = split.dora;
    request.lora->target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    if (split.hybrid)
        for (const char* const own : {"in_proj_qkv", "in_proj_z", "out_proj"})
            request.lora->target_modules.emplace_back(own);
    request.trains = true;
    request.optim = config::Optimizer::adamw_torch;
    request.records = settings.records;
    request.coded = settings.fp8;
    model::ActivationSizes& sizes = request.sizes;
    sizes.tokens = 16 * matrix_rows / split.micro_batches / split.ranks;
    sizes.segments = matrix_rows / split.micro_batches / split.ranks;
    sizes.longest = 16;
    sizes.head_rows = sizes.tokens;
    request.run.head_tile = 24;  // several chunks
    sizes.deterministic = true;
    request.run.layers = settings.layers;
    request.run.in_flight = settings.in_flight;
    request.run.row_tile = settings.row_tile;
    request.run.inputs_in_fp8 = settings.inputs_in_fp8;
    const fs::path folder = split.hybrid ? hybrid_matrix_model() : matrix_model();
    const model::ModelPlan plan(std::make_shared<const formats::WeightFile>(formats::WeightFile::open(folder.string())),
                                request);
    ops::Context ctx(device);
    ctx.deterministic = true;
    model::Model model(ctx, plan.load(ctx));
    train::StepSettings step_settings;
    step_settings.group = group;
    step_settings.bucket_bytes = matrix_bucket_bytes;
    train::Stepper stepper(ctx, model, step_settings);
    StepRun run;
    for (int step = 0; step < matrix_steps; ++step) {
        stepper.issue(matrix_batch(split, step, group != nullptr ? group->rank() : 0), step + 1, 0.01);
        while (const auto result = stepper.take(/*must=*/true)) {
            run.losses.push_back(result->outcome.loss);
            run.norms.push_back(result->outcome.grad_norm);
        }
        if (step == 0) run.gradients_P = model.parameters()->gradients_P.cpu().clone();
    }
    run.values_P = model.parameters()->state().params_P.cpu().clone();
    run.counts = model.counts();
    run.buckets = model::cut_gradients(*plan.table(), matrix_bucket_bytes).size();
    return run;
}

/// The run on all ranks of the split, by rank; `device`: "cpu", or "cuda" (rank r takes GPU r).
inline std::vector<StepRun> run_ranks(const StepSplit& split, const StepSettingsCase& settings,
                                      const std::string& device, at::ScalarType dtype) {
    const auto device_of = [&](int rank) { return ops::choose_device(device == "cpu" ? "cpu" : cat("cuda:", rank)); };
    if (split.ranks == 1) return {run_rank(split, settings, device_of(0), dtype, nullptr)};
    std::vector<StepRun> runs(static_cast<std::size_t>(split.ranks));
    comm::on_ranks(
        split.ranks,
        [&](comm::Group& group) {
            runs[static_cast<std::size_t>(group.rank())] =
                run_rank(split, settings, device_of(group.rank()), dtype, &group);
        },
        std::chrono::seconds(60), device_of);
    return runs;
}

/// What a rank's passes must have done for the case's names to be true.
inline model::PassCounts expected_counts(const StepSplit& split, const StepSettingsCase& settings) {
    const int64_t micro = int64_t{matrix_steps} * split.micro_batches;
    model::PassCounts counts;
    int64_t on_host = 0;
    for (std::size_t i = 0; i < matrix_layers; ++i) {
        const spec::LayerSteps again = spec::recompute_of(settings.layer(i).keep);
        counts.qkv += again.qkv ? 2 * micro : micro;
        counts.attention += again.attention ? 2 * micro : micro;
        counts.mid += again.mid ? 2 * micro : micro;
        counts.gate_up += again.gate_up ? 2 * micro : micro;
        counts.down += again.down ? 2 * micro : micro;
        on_host += settings.layer(i).activations_at == spec::Place::host;
    }
    if (on_host > 0) counts.moved_out = counts.moved_back = micro * (on_host - 2);
    if (settings.records && split.equal_rows) {  // the first micro-batches of a shape are issued as they come
        counts.recorded = 2;
        counts.replayed = 2 * (micro / settings.in_flight - 1);
    }
    return counts;
}

inline void expect_counts(const model::PassCounts& got, const model::PassCounts& expected) {
    EXPECT_EQ(got.qkv, expected.qkv);
    EXPECT_EQ(got.attention, expected.attention);
    EXPECT_EQ(got.mid, expected.mid);
    EXPECT_EQ(got.gate_up, expected.gate_up);
    EXPECT_EQ(got.down, expected.down);
    EXPECT_EQ(got.moved_out, expected.moved_out);
    EXPECT_EQ(got.moved_back, expected.moved_back);
    EXPECT_EQ(got.recorded, expected.recorded);
    EXPECT_EQ(got.replayed, expected.replayed);
}

/// How far the first step's gradient is from another's, as a share of it.
inline double gradient_distance(const StepRun& got, const StepRun& expected) {
    const at::Tensor reference = expected.gradients_P.to(at::kDouble);
    return ((got.gradients_P.to(at::kDouble) - reference).norm() / reference.norm()).item<double>();
}

/// Every layer's MLP by tiles of a few rows, with each way to keep what a layer makes, against the whole at once. The
/// sizes of tiles alternate, so that each way meets both.
inline void expect_tiles_change_rounding_alone(const std::string& device, at::ScalarType dtype, double bound,
                                               const std::vector<StepSplit>& splits = {
                                                   {}, {.equal_rows = false}, {.dora = true}}) {
    int first = 0;
    for (const StepSplit& split : splits) {
        const StepRun plain = run_ranks(split, {}, device, dtype)[0];
        int turn = first++;
        for (StepSettingsCase settings : layer_settings(device != "cpu")) {
            settings.row_tile = turn++ % 2 == 0 ? 7 : 32;
            SCOPED_TRACE(cat(split.name(), ", ", settings.name(), ", tiles of ", settings.row_tile));
            const StepRun tiled = run_ranks(split, settings, device, dtype)[0];
            EXPECT_NEAR(tiled.losses[0], plain.losses[0], 2e-6 * plain.losses[0]);
            EXPECT_LT(gradient_distance(tiled, plain), bound);
            expect_counts(tiled.counts, expected_counts(split, settings));
        }
    }
}

inline void expect_same_run(const StepRun& got, const StepRun& expected) {
    EXPECT_EQ(got.losses, expected.losses);
    EXPECT_EQ(got.norms, expected.norms);
    EXPECT_TRUE(same_bits(got.values_P, expected.values_P));
}

inline bool weights_move(const StepSettingsCase& settings) {
    return std::any_of(settings.layers.begin(), settings.layers.end(),
                       [](const spec::LayerPlan& layer) { return layer.weights_at != spec::Place::device; });
}

/// All settings under one split: bits, and that each setting did what its name says. Returns the plain run. Codes lie
/// on the device.
inline StepRun expect_settings_change_no_bit(const StepSplit& split, const std::string& device, at::ScalarType dtype,
                                             spec::CodedProducts fp8 = spec::CodedProducts::none) {
    std::optional<StepRun> plain;
    for (StepSettingsCase settings : step_settings(device != "cpu", split)) {
        if (any(fp8) && weights_move(settings)) continue;
        settings.fp8 = fp8;
        SCOPED_TRACE(settings.name());
        const std::vector<StepRun> runs = run_ranks(split, settings, device, dtype);
        if (!plain) plain = runs[0];
        for (std::size_t rank = 0; rank < runs.size(); ++rank) {
            SCOPED_TRACE(cat("rank ", rank));
            expect_counts(runs[rank].counts, expected_counts(split, settings));
            EXPECT_EQ(runs[rank].losses.size(), std::size_t{matrix_steps});
            EXPECT_GT(runs[rank].buckets, 2U);
            expect_same_run(runs[rank], *plain);
        }
    }
    return *plain;
}

/// Codes of products' operands under all settings, against products of `dtype`; the forward ones keep their bits where
/// only dx reads codes.
inline void expect_codes_change_what_reads_them(const std::string& device, at::ScalarType dtype) {
    for (const StepSplit& split : {StepSplit{}, StepSplit{.micro_batches = 2, .equal_rows = false}}) {
        const StepRun without = run_ranks(split, {}, device, dtype)[0];
        for (const auto fp8 : {spec::CodedProducts::dx, spec::CodedProducts::both, spec::CodedProducts::int8}) {
            if (split.micro_batches > 1 && fp8 != spec::CodedProducts::both) continue;
            SCOPED_TRACE(cat(split.name(), ", ", name_of(fp8)));
            const StepRun run = expect_settings_change_no_bit(split, device, dtype, fp8);
            EXPECT_EQ(run.losses[0] == without.losses[0], fp8 == spec::CodedProducts::dx);
            EXPECT_NEAR(run.losses[0], without.losses[0], 0.01 * without.losses[0]);
            const double off = gradient_distance(run, without);
            std::cout << name_of(fp8) << ": gradient off by " << off << "\n";
            EXPECT_GT(off, 0.005);
            EXPECT_LT(off, 0.2);
        }
    }
}

}  // namespace unsloth::test
