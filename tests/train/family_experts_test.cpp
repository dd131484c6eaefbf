// Experts of model families: loads, their loss, and what is refused of them.
#include "train/families_support.h"

namespace unsloth {
namespace {

using namespace test;

/// As counted from the router's logits, over a step's micro-batches: in the step's result and in the file of metrics.
TEST(Families, CountTheTokensOfExperts) {
    UNSLOTH_NEEDS_XZ();
    const ScratchFolder folder;
    std::vector<Row> rows;
    for (int32_t r = 0; r < 4; ++r) {
        std::vector<int32_t> ids;
        for (int32_t t = 0; t < 9 + r; ++t) ids.push_back((11 * r + 5 * t) % 120);
        rows.push_back({ids, ids, {}});
    }
    write_rows(folder / "rows.jsonl", rows);
    train::Trainer trainer(make_config(
        {"--model.path", unpacked(family_set("qwen3_moe_step2") / "model").string(), "--lora.target_modules",
         "q_proj,k_proj,v_proj,o_proj", "--training.per_device_train_batch_size", "1",
         "--training.gradient_accumulation_steps", "4", "--training.gradient_checkpointing", "full",
         "--data.train_file", (folder / "rows.jsonl").string(), "--training.output_dir", (folder / "out").string()}));
    trainer.load();
    model::Model& model = trainer.model();
    const spec::ExpertsSpec& experts = *model.spec().experts;
    std::map<std::string, at::Tensor> tokens;
    model.on_module = [&](const std::string& module, const at::Tensor& logits_TE) {
        if (!module.ends_with(".mlp.gate")) return;
        const at::Tensor ids_Tk = std::get<1>(logits_TE.topk(experts.top_k));
        at::Tensor& sum = tokens[module];
        const at::Tensor counts_E = at::bincount(ids_Tk.flatten(), {}, experts.count).to(at::kDouble);
        sum = sum.defined() ? sum + counts_E : counts_E;
    };
    const auto step = [&](bool asks) {
        trainer.stepper().issue(trainer.loader().step(0), 1, 0, {.router_loads = asks});
        return *trainer.stepper().take(true);
    };
    EXPECT_TRUE(step(false).router_loads.empty());
    tokens.clear();
    const train::StepResult result = step(true);
    model.on_module = nullptr;
    ASSERT_EQ(static_cast<int64_t>(result.router_loads.size()), model.spec().num_layers);
    int64_t layers = 0;
    for (int64_t layer = 0; layer < model.spec().num_layers; ++layer) {
        const auto& load = result.router_loads[static_cast<std::size_t>(layer)];
        ASSERT_EQ(load.has_value(), model.spec().has_experts(layer));
        if (!load) continue;
        ++layers;
        const at::Tensor counts_E = tokens.at(cat("model.layers.", layer, ".mlp.gate"));
        EXPECT_EQ(load->mean, static_cast<double>(result.tokens * experts.top_k) / static_cast<double>(experts.count));
        EXPECT_EQ(load->most, counts_E.max().item<double>() / load->mean);
        EXPECT_EQ(load->dead, (counts_E == 0).sum().item<int64_t>());
    }
    EXPECT_GT(layers, 0);
    EXPECT_LT(layers, model.spec().num_layers);

    const config::LoadedConfig logged = make_config({"--training.output_dir", (folder / "metrics").string()});
    fs::create_directories(folder / "metrics");
    train::StepReport report;
    report.router_loads = result.router_loads;
    train::make_metrics(logged.config, 0, "")->on_step(report);
    const nlohmann::json row = read_json(folder / "metrics/metrics.jsonl");
    EXPECT_EQ(row["router_load_max"], train::greatest_load(result.router_loads));
    EXPECT_EQ(row["dead_experts"], train::dead_experts(result.router_loads));
    ASSERT_EQ(row["router_loads"].size(), result.router_loads.size());
    for (std::size_t layer = 0; layer < result.router_loads.size(); ++layer) {
        const auto& load = result.router_loads[layer];
        EXPECT_EQ(row["router_loads"][layer], load ? nlohmann::json(load->most) : nlohmann::json());
        EXPECT_EQ(row["dead_experts_of_layers"][layer], load ? nlohmann::json(load->dead) : nlohmann::json());
    }
}

/// output_router_logits in config.json adds the loss where no option says otherwise, as in transformers.
TEST(Families, AddTheRouterLossThatTheModelAsksFor) {
    UNSLOTH_NEEDS_XZ();
    const ScratchFolder folder;
    const fs::path plain = unpacked(family_set("qwen3_moe") / "model"), asks = folder / "asks";
    fs::copy(plain, asks);
    nlohmann::json config = read_json(plain / "config.json");
    config["output_router_logits"] = true;
    config["router_aux_loss_coef"] = 0.25;
    std::ofstream(asks / "config.json") << config.dump();
    const std::vector<int32_t> ids = {5, 6, 7, 8, 9, 40, 3, 77};
    write_rows(folder / "rows.jsonl", {{ids, ids, {}}});
    const auto loss = [&](const fs::path& model, const Flags& more) {
        return train_all(make_config(Flags{"--model.path", model.string(), "--training.max_steps", "1",
                                           "--training.per_device_train_batch_size", "1", "--data.train_file",
                                           (folder / "rows.jsonl").string(), "--training.output_dir",
                                           (folder / "out").string()} +
                                     more))
            .steps.front()
            .outcome.loss;
    };
    const Flags quarter = {"--training.router_aux_loss_coef", "0.25"}, none = {"--training.router_aux_loss_coef", "0"};
    EXPECT_EQ(loss(asks, {}), loss(plain, quarter));
    EXPECT_EQ(loss(asks, none), loss(plain, {}));
    EXPECT_GT(loss(asks, {}), loss(plain, {}) + 0.1F);
}

/// Each step counts anew; on a GPU the first runs its passes, and later ones replay them.
TEST(Families, CountTheTokensOfExpertsInEachStep) {
    UNSLOTH_NEEDS_XZ();
    for (const std::string& device : test_devices()) {
        const ScratchFolder folder;
        const std::vector<int32_t> ids = {5, 6, 7, 8, 9, 40, 3, 77, 12, 13, 5, 6};
        write_rows(folder / "rows.jsonl", {{ids, ids, {}}});
        train::Trainer trainer(
            make_config({"--model.path", unpacked(family_set("qwen3_moe") / "model").string(), "--hardware.device",
                         device, "--training.per_device_train_batch_size", "1", "--data.train_file",
                         (folder / "rows.jsonl").string(), "--training.output_dir", (folder / "out").string()}));
        trainer.load();
        train::RouterLoads first;
        for (int64_t step = 1; step <= 4; ++step) {
            trainer.stepper().issue(trainer.loader().step(0), step, 0, {.router_loads = true});
            const train::RouterLoads loads = trainer.stepper().take(true)->router_loads;
            if (step == 1) first = loads;
            EXPECT_EQ(loads, first) << device << " step " << step;
        }
        ASSERT_TRUE(first.at(1).has_value());
        EXPECT_EQ(first.at(1)->mean, 12.0 * 3 / 8);
    }
}

TEST(Families, SayWhichLoadsOfExpertsAreBad) {
    const train::RouterLoad even = train::router_load_of({300, 300, 300, 300, 300, 300, 300, 300}, 2),
                            crowded = train::router_load_of({1100, 500, 0, 200, 200, 200, 200, 0}, 2),
                            few = train::router_load_of({3, 3, 2, 0, 2, 2, 2, 2}, 2);
    EXPECT_EQ(even.most, 1);
    EXPECT_EQ(crowded.mean, 300);
    EXPECT_EQ(crowded.dead, 2);
    EXPECT_EQ(few.dead, 1);
    EXPECT_EQ(train::bad_loads_text({}), "");
    EXPECT_EQ(train::bad_loads_text({std::nullopt, even, few}), "");  // of 16 tokens an expert may get none
    EXPECT_EQ(train::bad_loads_text({std::nullopt, even, crowded, few}),
              "  layer 2's fullest expert 3.7 x the mean  experts without tokens 2");
}

TEST(Families, SayWhatExpertsDoNotTake) {
    UNSLOTH_NEEDS_XZ();
    const ScratchFolder folder;
    write_rows(folder / "rows.jsonl", {{{5, 6, 7, 8}, {5, 6, 7, 8}, {}}});
    const std::vector<std::pair<std::string, Flags>> cases = {
        {"model.not-trainable", {"--lora.finetuning_type", "full"}},
        {"adapter.unsupported", {"--lora.use_dora", "true"}},
        {"device.unsupported", {"--model.compute_dtype", "int8", "--model.dtype", "bfloat16"}},
        {"adapter.no-such-target", {"--lora.target_modules", "q_proj,up_proj"}},
        {"adapter.no-such-target", {"--lora.target_parameters", "mlp.gate.weight"}},
        {"option.conflict", {"--lora.target_parameters", "mlp.experts.down_proj", "--lora.lora_dropout", "0.1"}}};
    const auto expect_refused = [&](const std::string& family, const std::string& id, const Flags& flags) {
        try {
            const train::Trainer trainer(make_config(
                Flags{"--model.path", unpacked(family_set(family) / "model").string(), "--data.train_file",
                      (folder / "rows.jsonl").string(), "--training.output_dir", (folder / "out").string()} +
                flags));
            ADD_FAILURE() << flags.back() << " was taken";
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), id) << error.what();
        }
    };
    for (const auto& [id, flags] : cases)
        for (const char* const family : {"qwen3_moe", "gpt_oss"}) expect_refused(family, id, flags);
}

}  // namespace
}  // namespace unsloth
