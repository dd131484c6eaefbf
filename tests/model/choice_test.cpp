// The plan that is chosen for a GPU that is not here, of a model whose weights are not here.
#include <algorithm>

#include "comm/ranks.h"
#include "model/support.h"
#include "unsloth/formats/described_model.h"
#include "unsloth/formats/shapes.h"
#include "unsloth/placement/agreed_plan.h"
#include "unsloth/planner/run_plan_text.h"

namespace unsloth {
namespace {

using namespace test;

constexpr int64_t gib = int64_t{1} << 30;

model::LoadRequest request_of(int64_t rows, int64_t length) {
    model::LoadRequest request;
    request.device = at::kCUDA;  // without an index: one that is not here
    request.dtype = at::kBFloat16;
    request.trains = true;
    request.lora = spec::LoraSpec{};
    request.lora->target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    request.lora->r = 16;
    request.sizes.tokens = request.sizes.head_rows = rows * length;
    request.sizes.segments = rows;
    request.sizes.longest = length;
    request.run.head_tile = 1024;
    return request;
}

/// Of a small model, two rows of 64 tokens.
model::ModelPlan plan_on_cpu() {
    model::LoadRequest request = request_of(2, 64);
    request.device = at::kCPU;
    request.dtype = at::kFloat;
    const auto file = std::make_shared<const formats::WeightFile>(
        formats::WeightFile::open(model_folder("small_llama/bf16").string()));
    return {file, request};
}

std::shared_ptr<const formats::WeightFile> shape(const std::string& name) {
    return formats::describe_model(formats::builtin_shape(name));
}

placement::Machine machine(double device_gib, double host_gib) {
    return {planner::find_card("H200"),
            true,
            {static_cast<int64_t>(device_gib * gib), static_cast<int64_t>(host_gib * gib)}};
}

struct Chosen {
    spec::RunPlan run;
    int64_t bytes = 0, host = 0;
    double ms = 0;
};

Chosen choose(model::ModelPlan plan, const placement::Machine& where, const config::Config& config = {},
              int64_t micro_batches = 1) {
    placement::choose_memory_use(config, plan, micro_batches, where);
    return {plan.request().run, plan.total_bytes(), plan.host().total_bytes(),
            placement::predicted_step_ms(plan, where.card, micro_batches)};
}

Chosen with(config::GradientCheckpointing keep, const model::ModelPlan& plan, const placement::Machine& where) {
    config::Config config;
    config.training.gradient_checkpointing = keep;
    return choose(plan, where, config);
}

TEST(Choice, IsFasterThanAnyOneWayForAllLayers) {
    const model::ModelPlan plan(shape("llama-3.1-8b"), request_of(8, 2048));
    for (const double budget : {10.0, 24.0, 40.0}) {
        config::Config config;
        config.training.max_memory_gib = budget;
        const placement::Machine where = machine(130, 200);
        const Chosen best = choose(plan, where, config);
        EXPECT_LE(best.bytes, static_cast<int64_t>(budget * gib));
        EXPECT_GT(best.bytes, static_cast<int64_t>(0.9 * budget * gib)) << planner::describe_keep(best.run);
        for (const auto keep : {config::GradientCheckpointing::none, config::GradientCheckpointing::mlp,
                                config::GradientCheckpointing::attention, config::GradientCheckpointing::full,
                                config::GradientCheckpointing::mlp_offload, config::GradientCheckpointing::none_offload,
                                config::GradientCheckpointing::full_offload}) {
            config.training.gradient_checkpointing = keep;
            const Chosen alike = choose(plan, where, config);
            if (alike.bytes > static_cast<int64_t>(budget * gib)) continue;
            EXPECT_LT(best.ms, 1.001 * alike.ms) << budget << " GiB: " << planner::describe_keep(best.run)
                                                 << " against " << planner::describe_keep(alike.run);
        }
    }
}

TEST(Choice, TakesWhatWasAskedFor) {
    const model::ModelPlan plan(shape("llama-3.1-8b"), request_of(8, 2048));
    const Chosen asked = with(config::GradientCheckpointing::mlp_offload, plan, machine(130, 200));
    EXPECT_EQ(planner::describe_keep(asked.run), "mlp+offload");
    const Chosen roomy = choose(plan, machine(130, 200));
    EXPECT_EQ(planner::describe_keep(roomy.run), "none");
    for (const spec::LayerPlan& layer : roomy.run.layers) EXPECT_TRUE(layer.cached);
    config::Config config;
    config.hardware.weight_cache = config::WeightCache::off;
    for (const spec::LayerPlan& layer : choose(plan, machine(130, 200), config).run.layers) EXPECT_FALSE(layer.cached);
}

TEST(Choice, LongRowsPassThroughTheMlpByTiles) {
    const model::ModelPlan plan(shape("llama-3.1-8b"), request_of(1, 131072));
    config::Config config;
    config.training.max_memory_gib = 24;
    const Chosen tiled = choose(plan, machine(130, 200), config);
    EXPECT_LE(tiled.bytes, 24 * gib);
    EXPECT_GT(tiled.run.row_tile, 0);
    spec::RunPlan whole = tiled.run;
    whole.row_tile = 0;
    // 2F + F values of 2 bytes, and adapters' columns, for each token that no longer is there.
    EXPECT_GT(plan.estimate(whole).device - plan.estimate(tiled.run).device,
              (131072 - tiled.run.row_tile) * 3 * 14336 * 2);
    EXPECT_EQ(choose(plan, machine(500, 200)).run.row_tile, 0) << "where all is kept there is nothing to gain";
}

TEST(Choice, InputsBecomeCodesWhereNothingElseFits) {
    const model::ModelPlan plan(shape("llama-3.1-8b"), request_of(1, 1'000'000));
    config::Config config;
    const placement::Machine where = machine(130, 180);  // inputs in bf16 would take 244 GiB
    const Chosen codes = choose(plan, where, config);
    EXPECT_TRUE(codes.run.inputs_in_fp8);
    EXPECT_LE(codes.bytes, static_cast<int64_t>(0.97 * 130 * gib));
    EXPECT_LE(codes.host, 180 * gib);
    EXPECT_FALSE(choose(plan, machine(130, 400), config).run.inputs_in_fp8);
    config.training.keep_inputs_in = config::KeptInputs::same;
    EXPECT_GT(choose(plan, where, config).host, 180 * gib);
}

TEST(Choice, APassHoldsTheRowsThatAreFastest) {
    const auto file = shape("llama-3.1-8b");
    config::Config config;
    placement::PassChoice choice{2, 16, [&](int64_t rows) { return model::ModelPlan(file, request_of(rows, 256)); }};
    EXPECT_GT(placement::fastest_pass_rows(config, choice, machine(130, 200)), 2);
    choice.plan_of = [&](int64_t rows) { return model::ModelPlan(file, request_of(rows, 32768)); };
    EXPECT_EQ(placement::fastest_pass_rows(config, choice, machine(130, 200)), 1) << "of fewer at a time more is kept";
    choice = {4, 4, [&](int64_t rows) { return model::ModelPlan(file, request_of(rows, 4096)); }};
    EXPECT_EQ(placement::fastest_pass_rows(config, choice, machine(130, 200)), 4) << "what is as fast stays as given";
}

TEST(Choice, KeepsWithinHostMemory) {
    const model::ModelPlan plan(shape("llama-3.1-8b"), request_of(8, 2048));
    config::Config config;
    config.training.max_memory_gib = 12;
    const Chosen plenty = choose(plan, machine(130, 200), config), little = choose(plan, machine(130, 4), config);
    EXPECT_GT(plenty.host, 4 * gib);
    EXPECT_LE(little.host, 4 * gib);
    EXPECT_LE(little.bytes, 12 * gib);
    EXPECT_GT(little.ms, plenty.ms);
}

TEST(Choice, MovesLayersOffTheDeviceWhereTheyMust) {
    const Chosen large = choose(model::ModelPlan(shape("llama-3.1-70b"), request_of(4, 2048)), machine(23, 64));
    EXPECT_LE(large.bytes, static_cast<int64_t>(0.97 * 23 * gib));
    EXPECT_LE(large.host, 64 * gib);
    int64_t moved = 0;
    for (const spec::LayerPlan& layer : large.run.layers) moved += layer.weights_at == spec::Place::host;
    EXPECT_GT(moved, 0);
}

/// Answers, scores and the comparison behind a merge, which computes in fp32.
TEST(Choice, MovesLayersOffTheDeviceWhereNothingIsTrained) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
        model::LoadRequest request = request_of(1, 512);
        request.trains = request.sizes.training = false;
        request.dtype = dtype;
        request.load_in_4bit = false;
        const Chosen chosen = choose(model::ModelPlan(shape("llama-3.1-8b"), request), machine(12, 64));
        EXPECT_LE(chosen.bytes, static_cast<int64_t>(0.97 * 12 * gib));
        const auto moved = std::count_if(chosen.run.layers.begin(), chosen.run.layers.end(),
                                         [](const auto& layer) { return layer.weights_at == spec::Place::host; });
        EXPECT_TRUE(moved > 0 && moved <= 32) << moved;
    }
}

TEST(Choice, MovesAsFewLayersAsItMustAndMoreWhereThatIsFaster) {
    model::ModelPlan plan(shape("llama-3.2-1b"), request_of(2, 512));
    const auto all = static_cast<std::size_t>(plan.spec().num_layers);
    const placement::Machine where = machine(130, 64);
    for (const std::size_t layers : {std::size_t{3}, std::size_t{9}, all}) {
        spec::RunPlan moved = plan.request().run;
        moved.layers.assign(all, {spec::Keep::input, spec::Place::host});
        for (std::size_t i = all - layers; i < all; ++i) moved.layers[i].weights_at = spec::Place::host;
        config::Config config;
        config.model.max_memory = {{"0", cat(plan.estimate(moved).device)}};
        const Chosen any = choose(plan, where, config);
        EXPECT_LE(any.bytes, plan.estimate(moved).device);
        config.training.gradient_checkpointing = config::GradientCheckpointing::full_offload;
        config.hardware.weight_cache = config::WeightCache::off;
        const Chosen thrifty = choose(plan, where, config);
        EXPECT_EQ(std::count_if(thrifty.run.layers.begin(), thrifty.run.layers.end(),
                                [](const spec::LayerPlan& layer) { return layer.weights_at == spec::Place::host; }),
                  static_cast<std::ptrdiff_t>(layers));
        EXPECT_LT(any.ms, 1.001 * thrifty.ms) << planner::describe_keep(any.run);
    }
}

TEST(Choice, AMapOfNothingElsewhereLeavesTheRestOpen) {
    const model::ModelPlan plan(shape("llama-3.1-8b"), request_of(8, 2048));
    config::Config config;
    const Chosen open = choose(plan, machine(11, 200), config);
    config.model.device_map = R"({"": 0})";
    EXPECT_EQ(choose(plan, machine(11, 200), config).run, open.run);
    const Chosen small = choose(plan, machine(5, 200), config);  // which auto would move layers for
    for (const spec::LayerPlan& layer : small.run.layers) EXPECT_EQ(layer.weights_at, spec::Place::device);
    EXPECT_GT(small.bytes, 5 * gib);
}

TEST(Choice, WithoutAnyThatFitsSaysWhatWould) {
    config::Config config;
    config.model.device_map = R"({"model": 0, "lm_head": 0})";
    model::ModelPlan plan(shape("llama-3.1-8b"), request_of(8, 2048));
    const placement::Machine where = machine(6, 64);
    placement::choose_memory_use(config, plan, 1, where);
    const placement::MemoryBudget budget = placement::memory_budget(config, at::kCUDA, where);
    ASSERT_FALSE(placement::fits(plan, budget));
    const std::vector<std::string> remedies = placement::suggestions({plan}, budget, &where.card);
    ASSERT_FALSE(remedies.empty());
    EXPECT_LE(remedies.size(), 3U);
    std::string all;
    for (const std::string& remedy : remedies) all += remedy + "\n";
    EXPECT_NE(all.find("layers in host memory"), std::string::npos) << all;
}

TEST(Choice, WithoutHostMemorySaysWhatWouldToo) {
    config::Config config;
    config.training.gradient_checkpointing = config::GradientCheckpointing::none_offload;
    config.training.max_memory_gib = 24;
    const auto file = shape("llama-3.1-8b");
    model::LoadRequest request = request_of(8, 2048);
    request.saves = true;
    model::ModelPlan plan(file, request);
    const placement::Machine where = machine(130, 4);
    placement::choose_memory_use(config, plan, 1, where);
    const placement::MemoryBudget budget = placement::memory_budget(config, at::kCUDA, where);
    ASSERT_LE(plan.total_bytes(), budget.device);
    ASSERT_GT(plan.host_bytes(), budget.host);
    try {
        placement::require_memory(plan, budget, where.card);
        FAIL() << "it fits";
    } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(error.id().name(), "memory.host-plan-too-large");
        for (const char* part : {"not enough host memory: ", "4.00 GiB may be",
                                 "Would fit:\n    gradient_checkpointing ", "model.max_memory", "save_steps 0"})
            EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
    }
}

/// model.max_memory may name the GPUs of several ranks: the one plan is for the least of them.
TEST(Choice, RanksPlanForTheOneThatMayTakeLeast) {
    UNSLOTH_NEEDS_XZ();
    const model::ModelPlan roomy = plan_on_cpu();
    spec::RunPlan thrifty = roomy.request().run;
    for (spec::LayerPlan& layer : thrifty.layers) layer.keep = spec::Keep::input;
    const int64_t most = roomy.estimate(thrifty).device;
    ASSERT_LT(most, roomy.total_bytes());
    for (const int bound_rank : {0, 1, 2}) {  // 2: none of them
        std::array<std::string, 2> kept;
        comm::on_ranks(2, [&](comm::Group& group) {
            config::Config config;
            if (group.rank() == bound_rank) config.model.max_memory = {{"cpu", cat(most)}};
            model::ModelPlan plan = roomy;
            placement::choose_together(config, plan, 1, &group, "");
            kept[static_cast<std::size_t>(group.rank())] = planner::describe_keep(plan.request().run);
        });
        EXPECT_EQ(kept[0], bound_rank == 2 ? "none" : "full") << bound_rank;
        EXPECT_EQ(kept[1], kept[0]);
    }
}

/// A run that goes on keeps the plan that it began with, which need not be what would be chosen now.
TEST(Choice, ARunThatGoesOnKeepsItsPlan) {
    UNSLOTH_NEEDS_XZ();
    model::ModelPlan plan = plan_on_cpu();
    spec::RunPlan before = plan.request().run;
    for (spec::LayerPlan& layer : before.layers) layer.keep = spec::Keep::input;
    const std::string text = planner::run_plan_json(before);
    config::Config config;
    const auto kept = [&](const std::string& earlier) {
        placement::choose_together(config, plan, 1, nullptr, earlier);
        return planner::describe_keep(plan.request().run);
    };
    EXPECT_EQ(kept(""), "none");
    EXPECT_EQ(kept(text), "full");
    EXPECT_EQ(kept("no plan"), "none");
    config.model.device_map = R"({"": "cpu"})";
    EXPECT_EQ(kept(text), "full") << "where the map has the layers";
    before.layers.back().weights_at = spec::Place::disk;
    EXPECT_EQ(kept(planner::run_plan_json(before)), "none") << "elsewhere";
    config.model.device_map = config::Config().model.device_map;
    config.training.gradient_checkpointing = config::GradientCheckpointing::mlp;
    EXPECT_EQ(kept(text), "mlp") << "what the configuration says holds";
}

/// What is planned of a description is what is planned of the file.
TEST(Choice, ADescriptionPlansAsTheFileDoes) {
    UNSLOTH_NEEDS_XZ();
    for (const fs::path& folder : {model_folder("small_llama/bf16"), model_folder("small_llama/nf4_dq"),
                                   model_folder("qwen3"), unpacked(golden("families/gpt_oss/model"))})
        for (const at::DeviceType device : {at::kCUDA, at::kCPU}) {
            const auto file = std::make_shared<const formats::WeightFile>(formats::WeightFile::open(folder.string()));
            const auto described = formats::describe_model(file->spec, file->quantization);
            model::LoadRequest request = request_of(2, 64);
            request.device = device;
            if (file->spec.experts) request.lora->target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
            const model::ModelPlan real(file, request), from_config(described, request);
            EXPECT_EQ(from_config.total_bytes(), real.total_bytes()) << folder << " " << device;
            EXPECT_EQ(from_config.table_text(), real.table_text()) << folder << " " << device;
        }
}

/// Answers of a 70B, whose shapes no table has, read its 4-bit weights as they lie.
TEST(ChoiceOfForms, DecodingExpandsNoMatrixOfWholeTiles) {
    spec::KernelTable unmeasured;
    unmeasured.card = {"NVIDIA H200", 90, 132};
    for (const char* const name : {"llama-3.1-70b", "llama-3.1-405b", "qwen2.5-7b"}) {
        model::LoadRequest request = request_of(1, 512);
        request.trains = false;
        request.sizes.training = false;
        request.sizes.cache_tokens = 1024;
        request.nf4_chooser = ops::nf4_gemm_chooser(std::make_shared<const spec::KernelTable>(unmeasured));
        request.fewest_tokens = 1;
        EXPECT_EQ(model::ModelPlan(shape(name), request).dequantized_linears(), 0) << name;
        request.nf4_chooser = {};
        const model::ModelPlan without(shape(name), request);
        EXPECT_EQ(without.dequantized_linears(), 7 * without.spec().num_layers) << name;
    }
}

/// Without their place beside tiles adapters are copied in each pass: a tenth of its time. A cache is often larger than
/// what is asked of it.
TEST(ChoiceOfForms, AdaptersLeaveTheirPlaceBesideTilesAfterTheCacheShrank) {
    spec::KernelTable unmeasured;
    unmeasured.card = {"NVIDIA H200", 90, 132};
    model::LoadRequest request = request_of(1, 4096);
    request.lora->r = 64;
    request.trains = request.sizes.training = false;
    request.sizes.cache_tokens = 16384;
    request.sizes.context = 4096;
    request.nf4_chooser = ops::nf4_gemm_chooser(std::make_shared<const spec::KernelTable>(unmeasured));
    request.fewest_tokens = 1;
    const model::ModelPlan roomy(shape("llama-3.1-8b"), request);
    const placement::CacheSize cache{16384, 4096, /*shrinks=*/true, /*in_pieces=*/true};
    const auto shrunk = [&](int64_t bytes) {
        model::ModelPlan plan = roomy;
        placement::shrink(plan, cache, bytes);
        EXPECT_LE(plan.total_bytes(), bytes);
        return plan;
    };
    EXPECT_TRUE(shrunk(roomy.total_bytes()).request().tails_may_stay);
    EXPECT_EQ(shrunk(roomy.total_bytes()).request().sizes.tokens, 4096);
    request.sizes.tokens = request.sizes.longest = 2048;
    const model::ModelPlan pieces(shape("llama-3.1-8b"), request);
    const model::LoadRequest in_pieces = shrunk(roomy.total_bytes() - 1).request();
    EXPECT_TRUE(in_pieces.tails_may_stay) << "prompts go in by pieces first";
    EXPECT_EQ(in_pieces.sizes.tokens, 2048);
    request.tails_may_stay = false;
    const model::ModelPlan bare(shape("llama-3.1-8b"), request);
    const int64_t margins = pieces.total_bytes() - bare.total_bytes();
    EXPECT_NEAR(static_cast<double>(margins) / gib, 0.47, 0.02);
    const model::ModelPlan between = shrunk(bare.total_bytes() + margins / 2);
    EXPECT_TRUE(between.request().tails_may_stay);
    EXPECT_EQ(between.request().sizes.cache_tokens, 12288);
    request.sizes.cache_tokens = 4096;
    const model::ModelPlan least(shape("llama-3.1-8b"), request);
    const model::ModelPlan tight = shrunk(least.total_bytes() + margins / 2);
    EXPECT_FALSE(tight.request().tails_may_stay);
    EXPECT_EQ(tight.request().sizes.cache_tokens, 4096);
}

}  // namespace
}  // namespace unsloth
