// Runs whose weights lie elsewhere, or partly so, against the run that has all of them on the device: not a bit of the
// losses, evaluations, gradients and adapters may differ, whatever the base's form. Run on the CPU by
// streamed_weights_test.cpp; a GPU's test walks the same lists.
#pragma once

#include "train/step_matrix.h"
#include "unsloth/formats/model_writer.h"
#include "unsloth/ops/device.h"

namespace unsloth::test {

/// How the base is stored, and held.
enum class Base { nf4, nf4_on_the_way_in, bf16, int8, mixed };
inline const char* name_of(Base base) {
    const char* const names[] = {"nf4", "nf4_on_the_way_in", "bf16", "int8", "mixed"};
    return names[static_cast<int>(base)];
}
inline void PrintTo(Base base, std::ostream* out) {
    *out << name_of(base);
}
constexpr Base all_bases[] = {Base::nf4, Base::nf4_on_the_way_in, Base::bf16, Base::int8, Base::mixed};

/// The model of tests/train/step_matrix.h with the base stored that way.
inline fs::path base_folder(Base base) {
    if (base == Base::nf4) return matrix_model();
    static const ScratchFolder folder;
    static const fs::path plain = [] {
        fs::create_directory(folder / "bf16");
        const formats::WeightFile nf4 = formats::WeightFile::open(matrix_model().string());
        formats::write_random_model({.spec = nf4.spec, .seed = 3407}, folder / "bf16");
        return folder / "bf16";
    }();
    if (base != Base::int8) return plain;
    static const fs::path in_8bit = [] {
        const formats::WeightFile file = formats::WeightFile::open(plain.string());
        fs::create_directory(folder / "int8");
        formats::write_model(formats::MergedModel(file, nullptr), folder / "int8", {.type = spec::WeightType::int8});
        return folder / "int8";
    }();
    return in_8bit;
}

/// A type of each sort somewhere, some as the checkpoint has them and some not.
inline spec::PrecisionMap mixed_precision() {
    return spec::PrecisionMap({{"default", "nf4"},
                               {"model.layers.0", "bf16"},
                               {"model.layers.1.mlp", "int8"},
                               {"model.layers.2-3.self_attn", "fp4"},
                               {"model.layers.4.self_attn.o_proj", "fp32"},
                               {"model.layers.5", "int8"},
                               {"model.embed_tokens", "nf4"},
                               {"lm_head", "int8"}});
}

/// A run with accumulation, and an evaluation between its steps.
struct StreamedCase {
    std::string name;
    std::vector<spec::Place> layers_at;  ///< one a layer
    spec::LayerPlan layer;               ///< but for where its weights lie
    bool records = false;
    int in_flight = 1;
};

/// The first of each keep, place of activations, and number in flight is resident.
inline std::vector<StreamedCase> streamed_cases(bool gpu) {
    using spec::Place;
    const auto device = Place::device, host = Place::host, disk = Place::disk;
    const std::vector<std::pair<std::string, std::vector<Place>>> maps{
        {"resident", {device, device, device, device, device, device}},
        {"all on the host", {host, host, host, host, host, host}},
        {"upper half on the host", {device, device, device, host, host, host}},
        {"one on the host", {device, device, host, device, device, device}},
        {"all on the disk", {disk, disk, disk, disk, disk, disk}},
        {"some everywhere", {disk, host, device, disk, host, disk}},
        {"all but the top on the host", {host, host, host, host, host, device}}};
    std::vector<StreamedCase> cases;
    for (const spec::LayerPlan& layer : {spec::LayerPlan{}, spec::LayerPlan{spec::Keep::input, host}})
        for (const auto& [name, places] : maps)
            for (const int in_flight : {1, 2})
                for (const bool records : {false, true})
                    if (gpu || !records)
                        cases.push_back({cat(name, ", ", name_of(layer), ", ", in_flight, " in flight",
                                             records ? ", recorded" : ""),
                                         places, layer, records, in_flight});
    return cases;
}

struct StreamedRun {
    std::vector<float> losses, evaluations;
    at::Tensor gradients_P, values_P;  ///< on the CPU, after the last step
};

/// What a run asks for whose layers lie as the case says, but for the folder of weights on the disk.
inline model::LoadRequest streamed_request(Base base, const StreamedCase& streamed, at::Device device,
                                           at::ScalarType dtype) {
    model::LoadRequest request;
    request.device = device;
    request.dtype = dtype;
    request.load_in_4bit = base == Base::nf4_on_the_way_in;
    if (base == Base::mixed) request.precision = mixed_precision();
    request.lora.emplace();
    request.lora->r = 8;
    request.lora->target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    request.trains = true;
    request.optim = config::Optimizer::adamw_torch;
    request.records = streamed.records;
    request.sizes.tokens = request.sizes.head_rows = 16 * matrix_rows / 2;
    request.sizes.segments = matrix_rows / 2;
    request.sizes.longest = 16;
    request.sizes.deterministic = true;
    request.run.head_tile = 24;
    request.run.in_flight = streamed.in_flight;
    for (const spec::Place place : streamed.layers_at) {
        spec::LayerPlan& layer = request.run.layers.emplace_back(streamed.layer);
        layer.weights_at = place;
        layer.cached = device.is_cuda() && place == spec::Place::device && request.run.layers.size() % 2 == 0;
    }
    return request;
}

/// `after`: is called after each step, from 0.
inline StreamedRun run_streamed(Base base, const StreamedCase& streamed, at::Device device, at::ScalarType dtype,
                                const std::optional<fs::path>& folder = std::nullopt,
                                const std::function<void(int step, const model::Model& model)>& after = nullptr) {
    model::LoadRequest request = streamed_request(base, streamed, device, dtype);
    const ScratchFolder offload;
    request.offload_folder = (offload / "weights").string();
    LoadedModel loaded = load_model(folder ? *folder : base_folder(base), request);
    loaded.ctx->deterministic = true;
    train::Stepper stepper(*loaded.ctx, *loaded.model, {});
    const StepSplit split{.micro_batches = 2};
    StreamedRun run;
    for (int step = 0; step < 4; ++step) {
        stepper.issue(matrix_batch(split, step, 0), step + 1, 0.01);
        while (const auto result = stepper.take(/*must=*/true)) run.losses.push_back(result->outcome.loss);
        if (step == 1 || step == 2)  // of another shape, so that slots are left as a training pass does not leave them
            run.evaluations.push_back(
                loaded->score(matrix_batch({.micro_batches = 4}, 90 + step, 0).micro[0]).sum().item<float>());
        if (after) after(step, *loaded.model);
    }
    run.gradients_P = loaded->parameters()->state().grads_P.cpu().clone();
    run.values_P = loaded->parameters()->state().params_P.cpu().clone();
    return run;
}

/// Ids that a model continues a prompt with, token by token.
inline std::vector<int32_t> generated(Base base, const std::vector<spec::Place>& layers_at, at::Device device,
                                      at::ScalarType dtype) {
    constexpr int new_tokens = 12;
    std::vector<int32_t> next = matrix_row(3, true).ids, made;
    model::LoadRequest request;
    request.device = device;
    request.dtype = dtype;
    request.load_in_4bit = base == Base::nf4_on_the_way_in;
    if (base == Base::mixed) request.precision = mixed_precision();
    const ScratchFolder offload;
    request.offload_folder = (offload / "weights").string();
    request.sizes.training = false;
    request.sizes.tokens = request.sizes.longest = static_cast<int64_t>(next.size());
    request.sizes.segments = request.sizes.head_rows = 1;
    request.sizes.cache_tokens = static_cast<int64_t>(next.size()) + new_tokens;
    for (const spec::Place place : layers_at) request.run.layers.push_back({.weights_at = place});
    LoadedModel loaded = load_model(base_folder(base), request);
    Continued sequence(*loaded.model);
    for (int i = 0; i < new_tokens; ++i) {
        made.push_back(sequence.next(next));
        next = {made.back()};
    }
    return made;
}

inline void expect_generation_from_anywhere(Base base, const std::string& device, at::ScalarType dtype) {
    const at::Device where = ops::choose_device(device);
    std::optional<std::vector<int32_t>> resident;
    for (const StreamedCase& streamed : streamed_cases(/*gpu=*/false)) {
        if (streamed.in_flight > 1 || streamed.layer != spec::LayerPlan{}) continue;
        SCOPED_TRACE(streamed.name);
        const std::vector<int32_t> made = generated(base, streamed.layers_at, where, dtype);
        if (!resident) resident = made;
        EXPECT_EQ(made, *resident);
    }
}

inline void expect_streaming_changes_no_bit(Base base, const std::string& device, at::ScalarType dtype) {
    const at::Device where = ops::choose_device(device);
    std::optional<StreamedRun> resident;
    for (const StreamedCase& streamed : streamed_cases(where.is_cuda())) {
        SCOPED_TRACE(streamed.name);
        const StreamedRun run = run_streamed(base, streamed, where, dtype);
        if (!resident) resident = run;
        EXPECT_EQ(run.losses, resident->losses);
        EXPECT_EQ(run.evaluations, resident->evaluations);
        EXPECT_TRUE(same_bits(run.gradients_P, resident->gradients_P));
        EXPECT_TRUE(same_bits(run.values_P, resident->values_P));
        EXPECT_GT(run.gradients_P.abs().max().item<float>(), 0.0F);
    }
}

}  // namespace unsloth::test
