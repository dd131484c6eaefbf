// The memory plan of real models, and what a plan refuses.
#include "model/support.h"
#include "unsloth/core/text.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/train/checkpoint.h"

namespace unsloth {
namespace {

using namespace test;

std::shared_ptr<const formats::WeightFile> open_golden(const std::string& name) {
    return std::make_shared<const formats::WeightFile>(formats::WeightFile::open(model_folder(name).string()));
}

model::LoadRequest training_request() {
    model::LoadRequest request;
    request.trains = true;
    request.lora = spec::LoraSpec{};
    request.lora->target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    request.lora->r = 8;
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 256;
    request.sizes.segments = 2;
    request.run.head_tile = 64;
    return request;
}

void expect_no_overlap(const memory::Plan& plan) {
    for (const memory::Entry& a : plan.entries())
        for (const memory::Entry& b : plan.entries()) {
            if (&a == &b || (a.phases & b.phases) == 0) continue;
            EXPECT_FALSE(a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) << a.name << " and " << b.name;
        }
}

/// What a plan weighs by sizes alone is what its lists of buffers take.
void expect_sum(const model::ModelPlan& plan) {
    const bool cpu = plan.request().device.is_cpu();
    EXPECT_EQ(plan.total_bytes(),
              plan.resident().total_bytes() + plan.peer().total_bytes() + plan.step().total_bytes() +
                  plan.recorded_bytes() +
                  (cpu ? plan.host().total_bytes() + plan.common().total_bytes() : memory::outside_arenas_bytes));
    EXPECT_EQ(plan.host_bytes(), plan.host().total_bytes() + plan.common().total_bytes());
}

int64_t bytes_of_group(const memory::Plan& plan, const std::string& group) {
    int64_t sum = 0;
    for (const memory::Entry& entry : plan.entries())
        if (entry.group == group) sum += entry.bytes;
    return sum;
}

TEST(ModelPlan, EveryArchitecturesBuffersFitWithoutOverlap) {
    UNSLOTH_NEEDS_XZ();
    for (const char* name : {"llama_tied", "llama_bias", "mistral_window", "qwen2", "qwen3", "small_llama/bf16"})
        for (const spec::LayerPlan keep : {spec::LayerPlan{spec::Keep::everything},
                                           {spec::Keep::but_mlp},
                                           {spec::Keep::attention},
                                           {spec::Keep::input},
                                           {spec::Keep::but_mlp, spec::Place::host}})
            for (const double dropout : {0.0, 0.1}) {
                SCOPED_TRACE(cat(name, " ", name_of(keep)));
                model::LoadRequest request = training_request();
                request.run.layers = {keep};
                request.lora->lora_dropout = dropout;
                const model::ModelPlan plan(open_golden(name), request);
                expect_no_overlap(plan.resident());
                expect_no_overlap(plan.step());
                expect_sum(plan);
                EXPECT_EQ(bytes_of_group(plan.step(), "live layer") > 0, keep.keep != spec::Keep::everything);
                EXPECT_EQ(bytes_of_group(plan.step(), "offloaded layers' slots") > 0,
                          (keep.activations_at == spec::Place::host));
                EXPECT_EQ(bytes_of_group(plan.host(), "offloaded") > 0, (keep.activations_at == spec::Place::host));
            }
}

TEST(ModelPlan, WhatIsKeptFallsFromNoneToFull) {
    UNSLOTH_NEEDS_XZ();
    const auto file = open_golden("small_llama/bf16");
    const auto plan_with = [&](spec::LayerPlan layer) {
        model::LoadRequest request = training_request();
        request.run.layers = {layer};
        return model::ModelPlan(file, request);
    };
    const int64_t layers = file->spec.num_layers, tokens = training_request().sizes.tokens;
    int64_t before = std::numeric_limits<int64_t>::max();
    for (const spec::Keep keep :
         {spec::Keep::everything, spec::Keep::but_mlp, spec::Keep::attention, spec::Keep::input}) {
        const model::ModelPlan plan = plan_with({keep});
        const int64_t kept = bytes_of_group(plan.step(), "kept of layers");
        EXPECT_LT(kept, before);
        EXPECT_GE(kept, layers * tokens * file->spec.hidden_size * 4) << "less than the layers' inputs";
        before = kept;
        // What is moved to the host is what was kept, but for statistics and adapters' columns.
        const model::ModelPlan offloaded = plan_with({keep, spec::Place::host});
        EXPECT_EQ(bytes_of_group(offloaded.host(), "offloaded") + bytes_of_group(offloaded.step(), "kept of layers"),
                  kept);
    }
}

TEST(ModelPlan, MicroBatchesInFlightShareWhatDoesNotOutliveALayer) {
    UNSLOTH_NEEDS_XZ();
    const auto file = open_golden("small_llama/bf16");
    const auto plan_with = [&](int64_t in_flight) {
        model::LoadRequest request = training_request();
        request.run.layers = {{spec::Keep::attention, spec::Place::host}};
        request.run.in_flight = in_flight;
        return model::ModelPlan(file, request);
    };
    const model::ModelPlan one = plan_with(1), three = plan_with(3);
    expect_no_overlap(three.step());
    expect_sum(three);
    for (const char* shared : {"live layer", "lm_head", "workspace"})
        EXPECT_EQ(bytes_of_group(three.step(), shared), bytes_of_group(one.step(), shared)) << shared;
    for (const char* own : {"kept of layers", "offloaded layers' slots", "tokens", "layer inputs"}) {
        EXPECT_GT(bytes_of_group(one.step(), own), 0) << own;
        EXPECT_EQ(bytes_of_group(three.step(), own), 3 * bytes_of_group(one.step(), own)) << own;
    }
    EXPECT_EQ(bytes_of_group(three.host(), "offloaded"), 3 * bytes_of_group(one.host(), "offloaded"));
    const int64_t g = one.step().entry(one.step().find("g")).bytes;
    EXPECT_EQ(bytes_of_group(three.step(), "scratch"), bytes_of_group(one.step(), "scratch") + 2 * g);
}

TEST(ModelPlan, AnEstimateIsWhatThePlanThenSays) {
    UNSLOTH_NEEDS_XZ();
    const model::ModelPlan plan(open_golden("small_llama/bf16"), training_request());
    const int64_t layers = plan.spec().num_layers;
    const auto need = [&](spec::LayerPlan low, spec::LayerPlan high, int64_t lower) {
        spec::RunPlan run = plan.request().run;
        for (int64_t i = 0; i < layers; ++i) run.layers[static_cast<std::size_t>(i)] = i < lower ? low : high;
        model::ModelPlan other = plan;
        other.set_run(run);
        const spec::MemoryNeed estimate = plan.estimate(run);
        EXPECT_EQ(estimate.device, other.total_bytes());
        EXPECT_EQ(estimate.host, other.host().total_bytes());
        expect_sum(other);
        return estimate;
    };
    // Each layer that keeps less, or elsewhere, is seen.
    const spec::LayerPlan everything{spec::Keep::everything}, input{spec::Keep::input},
        on_host{spec::Keep::everything, spec::Place::host};
    int64_t kept = std::numeric_limits<int64_t>::max(), host = -1;
    for (int64_t lower = 1; lower <= layers; ++lower) {
        const int64_t less = need(input, everything, lower).device, more = need(on_host, everything, lower).host;
        EXPECT_LT(less, kept) << lower;
        EXPECT_GT(more, host) << lower;
        kept = less;
        host = more;
    }
    EXPECT_EQ(plan.request().run.layers, std::vector<spec::LayerPlan>(static_cast<std::size_t>(layers)));
    spec::RunPlan above = plan.request().run;
    above.layers.back().activations_at = spec::Place::host;
    EXPECT_THROW(plan.estimate(above), CheckError);
    above.layers.resize(above.layers.size() + 1);
    EXPECT_THROW(plan.estimate(above), CheckError);
}

TEST(ModelPlan, HoldsWhatGenerationKeeps) {
    UNSLOTH_NEEDS_XZ();
    model::LoadRequest request;
    request.sizes = training_request().sizes;
    request.sizes.training = false;
    const auto file = open_golden("small_llama/bf16");
    EXPECT_EQ(bytes_of_group(model::ModelPlan(file, request).step(), "kv cache"), 0);
    request.sizes.cache_tokens = 300;
    const int64_t item = 4;
    EXPECT_EQ(bytes_of_group(model::ModelPlan(file, request).step(), "kv cache"),
              file->spec.num_layers * 2 * 320 * file->spec.kv_size() * item);  // whole pages
}

TEST(ModelPlan, HoldsTheCopiesThatCheckpointsAreWrittenFrom) {
    UNSLOTH_NEEDS_XZ();
    const auto file = open_golden("small_llama/bf16");
    for (const config::Optimizer optim : {config::Optimizer::adamw_torch, config::Optimizer::adamw_8bit}) {
        model::LoadRequest request = training_request();
        request.lora->r = 32;  // moments of 8 bits
        request.optim = optim;
        EXPECT_EQ(bytes_of_group(model::ModelPlan(file, request).host(), "checkpoints"), 0);
        request.saves = true;
        const model::ModelPlan plan(file, request);
        const LoadedModel model = load_model(model_folder("small_llama/bf16"), request);
        ASSERT_TRUE(model->parts().copies.has_value());
        const auto copies = train::trained_tensors(*model->parts().copies),
                   state = train::trained_tensors(model->parameters()->state());
        ASSERT_EQ(copies.size(), state.size());
        int64_t bytes = 0;
        for (std::size_t i = 0; i < state.size(); ++i) {
            EXPECT_EQ(copies[i].first, state[i].first);
            EXPECT_EQ(copies[i].second.sizes(), state[i].second.sizes()) << state[i].first;
            EXPECT_EQ(copies[i].second.scalar_type(), state[i].second.scalar_type()) << state[i].first;
            bytes += static_cast<int64_t>(copies[i].second.nbytes());
        }
        EXPECT_EQ(bytes_of_group(plan.host(), "checkpoints"), bytes);
    }
}

TEST(ModelPlan, CountsCopiesOfTheProcessesThatWriteCheckpoints) {
    UNSLOTH_NEEDS_XZ();
    const auto file = open_golden("small_llama/bf16");
    const int layers = static_cast<int>(file->spec.num_layers);
    model::LoadRequest request = training_request();
    request.saves = true;
    request.processes = 4;
    request.pp = model::Pipeline(nullptr, {0, 2, {{0, 1}, {1, layers}}}, {.ranks = 2, .micro_batches = 2});
    for (const int writers : {1, 2, 4}) {  // ranks of one stage are on the machine, of both, or share the states
        request.writers = writers;
        const model::ModelPlan plan(file, request);
        const int64_t copies = bytes_of_group(plan.host(), "checkpoints"), rest = plan.host().total_bytes() - copies;
        EXPECT_GT(copies, 0);
        EXPECT_EQ(plan.host_bytes(), 4 * rest + writers * copies + plan.common().total_bytes()) << writers;
    }
}

TEST(ModelPlan, HoldsRopesFrequencies) {
    UNSLOTH_NEEDS_XZ();
    const auto file = open_golden("small_llama/bf16");
    const memory::Plan step = model::ModelPlan(file, training_request()).step();
    EXPECT_EQ(step.entry(step.find("inverse frequencies")).bytes, file->spec.head_dim / 2 * 4);
}

TEST(ModelPlan, EightBitStatesTakeAQuarter) {
    UNSLOTH_NEEDS_XZ();
    model::LoadRequest request = training_request();
    request.lora->r = 32;  // every tensor has the 4096 elements from which on 8 bits are used
    const auto file = open_golden("small_llama/bf16");
    request.optim = config::Optimizer::adamw_torch;
    const int64_t wide = bytes_of_group(model::ModelPlan(file, request).resident(), "optimizer state");
    request.optim = config::Optimizer::adamw_8bit;
    const int64_t narrow = bytes_of_group(model::ModelPlan(file, request).resident(), "optimizer state");
    EXPECT_LT(narrow, wide / 2);
    EXPECT_GT(narrow, wide / 8);
}

TEST(ModelPlan, AnUnusableRequestIsAUsersError) {
    UNSLOTH_NEEDS_XZ();
    model::LoadRequest request = training_request();
    request.finetuning_type = config::FinetuningType::full;
    try {
        const model::ModelPlan plan(open_golden("small_llama/nf4_dq"), request);
        FAIL() << "4-bit weights cannot be trained in full";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "model.not-trainable");
        EXPECT_NE(std::string(error.what()).find("full"), std::string::npos) << error.what();
    }
    request = training_request();
    request.adapter = unpacked(golden("trajectory/lora/initial")).string();  // of the main model: other shapes
    EXPECT_THROW(model::ModelPlan(open_golden("small_llama/bf16"), request), Error);
}

TEST(ModelPlan, APlanThatDoesNotFitSaysWhatWould) {
    UNSLOTH_NEEDS_XZ();
    model::LoadRequest request = training_request();
    const auto file = open_golden("small_llama/bf16");
    const int64_t per_token = model::ModelPlan(file, request).step().total_bytes() / request.sizes.tokens;
    const int64_t free = memory::device_memory(at::kCPU).free;
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 3 * (free / per_token);
    const model::ModelPlan plan(file, request);
    try {
        placement::require_memory(plan, placement::memory_budget({}, at::kCPU));
        FAIL() << human_bytes(plan.total_bytes()) << " fit into " << human_bytes(free);
    } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(error.id().name(), "memory.plan-too-large");
        for (const char* part :
             {"not enough memory on cpu", "kept of layers", "per step", "Would fit:", "tokens a micro-batch"})
            EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
    }
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 256;
    EXPECT_NO_THROW(placement::require_memory(model::ModelPlan(file, request), placement::memory_budget({}, at::kCPU)));
}

}  // namespace
}  // namespace unsloth
