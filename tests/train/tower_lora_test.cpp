// Adapters in the towers of Qwen2.5-VL, Qwen3-VL and Llama 3.2 Vision against transformers and PEFT, and what follows
// from them: plans, merged models, names, refusals.
#include "train/tower_support.h"
#include "unsloth/formats/merge.h"
#include "unsloth/formats/model_writer.h"

namespace unsloth {
namespace {

using namespace test;

bool is_of_tower(const std::string& name) {
    return name.find(".language_model.") == std::string::npos;
}

class TowerLoraTest : public TowerTest {};

TEST_P(TowerLoraTest, TrainsAsTheReference) {
    expect_trains_as_reference(*rows, model_path(), request(), lora);
}

/// PEFT's list names ends of paths in the whole model, the tower's too: the same adapter as its expression.
TEST_P(TowerLoraTest, ListsNameLinearsOfTheTower) {
    const spec::VisionSpec vision = file()->spec.vision.value();
    nlohmann::json names = {"q_proj", "v_proj"};
    const auto add_blocks = [&](const std::string& stack, int64_t blocks, std::initializer_list<const char*> parts) {
        for (int64_t block = 0; block < blocks; ++block)
            for (const char* const part : parts) names.push_back(cat(stack, ".", block, ".", part));
    };
    if (tiled()) {
        names.insert(names.end(), {"fc1", "fc2", "multi_modal_projector"});
        add_blocks("transformer.layers", vision.depth, {"self_attn.k_proj", "self_attn.o_proj"});
        add_blocks("global_transformer.layers", vision.tiles->global_depth, {"self_attn.k_proj", "self_attn.o_proj"});
    } else if (family == "qwen3_vl") {
        names.insert(names.end(), {"attn.qkv", "attn.proj", "linear_fc1", "linear_fc2"});
    } else {
        names.insert(names.end(), {"attn.qkv", "attn.proj", "merger.mlp.0", "mlp.2"});
        add_blocks("visual.blocks", vision.depth, {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"});
    }
    const ScratchFolder folder;
    fs::copy(unpacked(lora), folder.path());
    fs::copy(unpacked(lora / "initial"), folder / "initial");
    nlohmann::json config = read_json(folder / "initial/adapter_config.json");
    config["target_modules"] = names;
    write_text(folder / "initial/adapter_config.json", config.dump());
    expect_trains_as_reference(*rows, model_path(), request(), folder.path());
    // What a run saves has the list that it read.
    const model::LoadRequest request = reference_run(*rows, this->request(), folder.path()).request;
    const spec::LoraSpec saved = model::ModelPlan(file(), request).request().lora.value();
    EXPECT_FALSE(saved.target_is_regex);
    EXPECT_EQ(nlohmann::json(saved.target_modules), names);
}

/// What layers keep, and how many micro-batches are in flight, changes no bit.
TEST_P(TowerLoraTest, RecomputedLayersTrainTheSame) {
    SeenRun run = reference_run(*rows, request(), lora);
    run.steps.resize(2);
    run.rates = {1e-3, 1e-3};
    const SeenCourse kept = run_steps(model_path(), run);
    const auto expect_same = [&](const char* what) {
        const SeenCourse got = run_steps(model_path(), run);
        EXPECT_EQ(got.losses, kept.losses) << what;
        EXPECT_EQ(got.norms, kept.norms) << what;
        expect_same_bits(got.final_values, kept.final_values);
    };
    for (const spec::Keep keep : {spec::Keep::but_mlp, spec::Keep::attention, spec::Keep::input}) {
        run.request.run.layers = {{.keep = keep}};
        expect_same(name_of(run.request.run.layers.front()).c_str());
    }
    run.request.run.in_flight = 2;
    expect_same("two in flight");
}

/// Rows of several images, of one image twice and of text alone give together what they give one by one.
TEST_P(TowerLoraTest, GradientsAddUpOverRows) {
    SeenRun run = reference_run(*rows, request(), lora);
    const nlohmann::json forward = read_json(rows->files / "forward.json");
    std::vector<data::Sample> samples;
    for (const auto& row : forward["rows"]) {
        samples.push_back(rows->sample(row, static_cast<int64_t>(samples.size())));
        if (samples.size() == 4) break;
    }
    data::Sample text = samples.back();
    for (int32_t& id : text.ids)
        if (id == (tiled() ? tile_token : tiny_image_token)) id = 9;
    text.images.clear(), text.axes.clear();
    samples.push_back(text);
    samples.push_back(samples.front());
    const auto step_of = [](const std::vector<std::vector<data::Sample>>& micros) {
        data::StepBatch step;
        for (const auto& micro : micros) {
            step.micro.push_back(data::make_batch(micro));
            step.labels += step.micro.back().labels;
            step.tokens += step.micro.back().tokens();
            step.rows += static_cast<int64_t>(micro.size());
        }
        return step;
    };
    run.rates = {0.0};
    run.request.sizes.tokens = run.request.sizes.head_rows = 1024;
    run.request.sizes.longest = 512;
    run.request.sizes.patches = tiled() ? 4 : 1024;
    run.request.sizes.image_tokens = tiled() ? 8 : 512;
    run.steps = {step_of({samples})};
    const SeenCourse together = run_steps(model_path(), run);
    std::vector<std::vector<data::Sample>> alone;
    for (const data::Sample& sample : samples) alone.push_back({sample});
    run.steps = {step_of(alone)};
    const SeenCourse apart = run_steps(model_path(), run);
    EXPECT_NEAR(together.losses[0], apart.losses[0], 1e-5);
    for (const auto& [name, gradient] : apart.first_gradients)
        EXPECT_LE(relative_frobenius(together.first_gradients.at(name), gradient), 1e-4) << name;
}

TEST_P(TowerLoraTest, PlansWhatTheTowerTakes) {
    const model::ModelPlan with(file(), asked());
    model::LoadRequest frozen = asked();
    frozen.lora->tower = spec::TowerTargets::none;
    const model::ModelPlan without(file(), frozen);
    EXPECT_GT(with.groups().at("tower"), without.groups().at("tower"));
    EXPECT_GT(with.groups().at("tower weights"), without.groups().at("tower weights"));
    EXPECT_GT(with.table()->trainable_elements(), without.table()->trainable_elements());
    const spec::VisionSpec tower = *file()->spec.vision;
    const int64_t slots = tower.depth + 1 + (tiled() ? tower.tiles->global_depth + 1 : 0),
                  rows_each = tiled() ? tower.tiles->tower_rows() : tower.merge * tower.merge,
                  inputs = slots * request().sizes.image_tokens * rows_each * tower.hidden_size * 4;
    EXPECT_GE(with.total_bytes(), without.total_bytes() + inputs);
    if (device != "cpu") return;
    const auto bytes = [](const memory::Plan& plan) { return plan.total_bytes(); };
    EXPECT_EQ(with.total_bytes(), bytes(with.resident()) + bytes(with.step()) + bytes(with.host()) +
                                      bytes(with.common()) + bytes(with.peer()));
}

/// B begins at zero: the model is the base's, and B alone has a gradient.
TEST_P(TowerLoraTest, BeginsAtTheBase) {
    SeenRun run = reference_run(*rows, request(), lora);
    run.request.adapter.reset();
    run.request.lora = asked().lora;
    run.steps.resize(1);
    run.rates = {0.0};
    const SeenCourse with = run_steps(model_path(), run);
    run.request.lora->tower = spec::TowerTargets::none;
    const SeenCourse without = run_steps(model_path(), run);
    EXPECT_EQ(with.losses, without.losses);
    int of_tower = 0;
    for (const auto& [name, gradient] : with.first_gradients) {
        if (!is_of_tower(name)) continue;
        ++of_tower;
        const bool b = name.find(".lora_B.") != std::string::npos;
        EXPECT_EQ(l2(gradient) > 0, b) << name;
    }
    EXPECT_EQ(of_tower, 2 * static_cast<int>(spec::tower_linears(file()->spec).size()));
}

/// Gradients go down to where the tower's features enter, or to the lowest adapter: the tower has the same ones.
TEST_P(TowerLoraTest, GradientsEndWhereNothingBelowIsTrained) {
    SeenRun run = reference_run(*rows, request(), lora);
    const spec::ModelSpec spec = file()->spec;
    run.request.adapter.reset();
    run.steps.resize(1);
    run.rates = {0.0};
    const auto course = [&](int64_t layer) {
        run.request.lora = asked().lora;
        run.request.lora->layers_to_transform = {layer};
        return run_steps(model_path(), run);
    };
    const SeenCourse in_first = course(0), in_last = course(spec.num_layers - 1);
    const LoadedModel loaded = load_model(model_path(), run.request);
    int lowest = 0;
    while (tiled() && !spec.crosses(lowest)) ++lowest;
    EXPECT_EQ(loaded->parts().network.lowest_trained_layer, lowest);
    EXPECT_EQ(in_first.losses, in_last.losses);
    int moved = 0;
    for (const auto& [name, gradient] : in_last.first_gradients) {
        if (!is_of_tower(name)) continue;
        const at::Tensor& expected = in_first.first_gradients.at(name);
        EXPECT_LE(l2(gradient - expected), 1e-5 * l2(expected)) << name;
        moved += l2(expected) > 0 ? 1 : 0;
    }
    EXPECT_EQ(moved, static_cast<int>(spec::tower_linears(spec).size()));
}

/// What is saved names the same modules to whoever reads it: the convolution that makes patches is none of them.
TEST_P(TowerLoraTest, ExpressionsNameTheSameLinears) {
    const spec::ModelSpec spec = file()->spec;
    const auto names = [&](const spec::LoraSpec& lora) {
        std::vector<std::string> all;
        for (const spec::TowerLora& linear : spec::resolve_tower_lora(lora, spec)) all.push_back(linear.module);
        return all;
    };
    const spec::LoraSpec saved = spec::for_model(*asked().lora, spec);
    const spec::LoraSpec read = formats::parse_peft_config(formats::write_peft_config({saved, "base", ""}), "x").lora;
    EXPECT_TRUE(read.target_is_regex);
    EXPECT_EQ(names(read), names(*asked().lora));
    EXPECT_EQ(names(read).size(), spec::tower_linears(spec).size());
    const std::string block = tiled() ? "vision_model.transformer.layers.1.self_attn." : "blocks.1.attn.";
    EXPECT_EQ(std::ranges::count(names(read), block + (tiled() ? "o_proj" : "proj")), 1);
    EXPECT_EQ(std::ranges::count(names(read), "multi_modal_projector"), tiled() ? 1 : 0);
    for (const char* const frozen : {"patch_embed.proj", "vision_model.patch_embedding"})
        EXPECT_EQ(std::ranges::count(names(read), frozen), 0);
    spec::LoraSpec named = read;  // PEFT's list matches ends of paths in the whole model
    named.target_is_regex = false;
    named.target_modules = {"q_proj", tiled() ? "o_proj" : "qkv"};
    const int64_t blocks = tiled() ? 2 * (spec.vision->depth + spec.vision->tiles->global_depth) : spec.vision->depth;
    EXPECT_EQ(names(named).size(), static_cast<std::size_t>(blocks));
    EXPECT_EQ(spec::resolve_lora(named, spec).size(), static_cast<std::size_t>(spec.num_layers));
    named.rank_pattern = {{block + (tiled() ? "q_proj" : "qkv"), 2}};
    for (const spec::TowerLora& linear : spec::resolve_tower_lora(named, spec))
        EXPECT_EQ(linear.lora.r, linear.path().ends_with(named.rank_pattern.front().first) ? 2 : 4) << linear.module;
    EXPECT_NO_THROW(spec::refuse_idle_patterns(named, spec));
}

TEST_P(TowerLoraTest, MergedModelsHaveTheTowersAdapters) {
    const formats::WeightFile base = formats::WeightFile::open(model_path().string());
    const formats::Adapter adapter = formats::read_adapter(unpacked(lora / "initial"), base.spec);
    EXPECT_EQ(adapter.tower.size(), spec::tower_linears(base.spec).size());
    model::LoadRequest request = this->request();
    const ScratchFolder folder;
    formats::write_model(formats::MergedModel(base, &adapter), folder.path(), {.type = spec::WeightType::f32});
    const formats::WeightFile merged = formats::WeightFile::open(folder.path().string());
    int changed = 0;
    for (const formats::TensorView* const other : base.tensors.others)
        changed += !std::ranges::equal(merged.checkpoint.at(other->name).data, other->data);
    EXPECT_EQ(changed, static_cast<int>(adapter.tower.size()));
    const data::Sample row = rows->sample(read_json(rows->files / "forward.json")["rows"][0], 0);
    const LoadedModel one = load_model(folder.path(), request);
    request.adapter = unpacked(lora / "initial").string();
    const LoadedModel other = load_model(model_path(), request);
    EXPECT_LE(max_abs(logits_of_row(*one.model, row), logits_of_row(*other.model, row)), 1e-4);
}

/// Adapters of transformers before 4.52.
TEST_P(TowerLoraTest, ReadsAdaptersUnderOlderNames) {
    const fs::path initial = unpacked(lora / "initial");
    const ScratchFolder folder;
    write_text(folder / "older/adapter_config.json", read_file(initial / "adapter_config.json"));
    std::vector<formats::TensorBlob> blobs;
    const formats::SafetensorsFile file(initial / "adapter_model.safetensors");
    for (const formats::TensorView& view : file.tensors()) {
        std::string name = view.name;
        const auto rename = [&](const std::string& part, const char* older) {
            if (const std::size_t at = name.find(part); at != std::string::npos) name.replace(at, part.size(), older);
        };
        rename("model.visual.", "visual.");
        rename("model.vision_model.", "vision_model.");
        rename("model.multi_modal_projector.", "multi_modal_projector.");
        tiled() ? rename("model.language_model.", "language_model.model.") : rename("language_model.", "");
        blobs.push_back({{name, view.dtype, view.shape}, {view.data.begin(), view.data.end()}});
    }
    formats::write_safetensors(folder / "older/adapter_model.safetensors", blobs);
    const formats::Adapter older = formats::read_adapter(folder / "older", this->file()->spec);
    EXPECT_EQ(older.tower.size(), spec::tower_linears(this->file()->spec).size());
}

TEST_P(TowerLoraTest, RefusesWhatDoesNotGoWithIt) {
    const auto expect_refused = [&](const char* id, const char* word, model::LoadRequest request) {
        try {
            const model::ModelPlan plan(file(), std::move(request));
            ADD_FAILURE() << word << " was taken";
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), id) << error.what();
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
        }
    };
    model::LoadRequest request = asked();
    request.lora->lora_dropout = 0.1;
    expect_refused("option.unsupported", "lora.lora_dropout", request);
    request = asked();
    request.lora->use_dora = true;
    expect_refused("adapter.unsupported", "lora.use_dora", request);
    request = asked();
    request.sharding = {.level = weights::Sharding::parameters, .share = {0, 2}};
    expect_refused("option.unsupported", "distributed.zero_stage 3", request);
    request = asked();
    request.lora->target_modules = {tiled() ? "fc1" : "attn.qkv"};
    request.lora->tower = spec::TowerTargets::named;
    expect_refused("adapter.unsupported", "language model", request);
    request = asked();
    request.adapter = unpacked(rows->set / "lora/initial").string();
    expect_refused("adapter.contradicts", "lora.vision", request);
}

INSTANTIATE_TEST_SUITE_P(All, TowerLoraTest,
                         ::testing::Combine(::testing::Values("qwen3_vl", "qwen2_5_vl", "mllama"),
                                            ::testing::ValuesIn(test_devices())),
                         [](const auto& info) { return cat(std::get<0>(info.param), "_", std::get<1>(info.param)); });

TEST(TowerLora, ModelsWithoutATowerAreRefused) {
    const spec::ModelSpec spec = formats::WeightFile::open(model_folder("small_llama/bf16").string()).spec;
    const spec::LoraSpec lora{.r = 4, .target_modules = {"q_proj"}, .tower = spec::TowerTargets::all};
    try {
        spec::resolve_tower_lora(lora, spec);
        ADD_FAILURE() << "was taken";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "adapter.no-such-target") << error.what();
    }
}

}  // namespace
}  // namespace unsloth
