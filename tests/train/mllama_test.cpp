// Llama 3.2 Vision against transformers and PEFT: the tower over tiles, layers that attend to its features, logits,
// losses, gradients and eight steps of LoRA (tests/golden/families/mllama; the full set where UNSLOTH_SHARED names the
// collection). Bounds are the set's own.
#include "train/tiled_support.h"
#include "unsloth/formats/merge.h"
#include "unsloth/formats/model_writer.h"
#include "unsloth/formats/peft.h"
#include "unsloth/images/image.h"
#include "unsloth/memory/plan.h"
#include "unsloth/model/tile_tower.h"
#include "unsloth/train/step.h"

namespace unsloth {
namespace {

using namespace test;

class MllamaTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        UNSLOTH_NEEDS_XZ();
        rows = std::make_unique<TiledRows>();
    }
    fs::path model_path() const { return unpacked(rows->set / "model"); }
    const std::string device = GetParam();
    std::unique_ptr<TiledRows> rows;
};

TEST_P(MllamaTest, TowersSeeWhatTheReferenceSees) {
    const formats::WeightFile file = formats::WeightFile::open(model_path().string());
    const spec::VisionSpec& spec = file.spec.vision.value();
    ops::Context ctx(ops::choose_device(device));
    memory::Plan plan;
    weights::VisionWeights::plan(spec, at::kFloat, file.tensors.vision, plan);
    plan.place();
    const memory::Arena arena(std::move(plan), ctx.device());
    const weights::VisionWeights weights = weights::VisionWeights::load(spec, at::kFloat, file.tensors.vision, arena);
    const auto flat = [&](int64_t count, at::ScalarType type) {
        return at::empty({count}, at::TensorOptions(type).device(ctx.device()));
    };
    const int64_t tower = spec.tiles->tower_rows(), features = spec.tiles->features();
    model::VisionBuffers b;
    b.bytes = flat(spec.tiles->most * spec.tiles->patches() * spec.patch_bytes(), at::kByte);
    b.x = flat(tower * spec.hidden_size, at::kFloat);
    b.h = flat(tower * spec.hidden_size, at::kFloat);
    b.wide = flat(std::max(tower * 3 * spec.hidden_size, spec.tiles->patches() * spec.patch_bytes()), at::kFloat);
    b.index = flat(4 * tower, at::kInt);
    b.share = flat(4 * tower, at::kFloat);
    b.stacked = flat(features * spec.hidden_size * 3, at::kFloat);
    b.features = flat(features * (spec.out_size + 8), at::kFloat).view({features, spec.out_size + 8});
    double most = 0;
    int compared = 0;
    for (const auto& [name, expected] : read_tensors(rows->files / "tower.safetensors")) {
        if (!name.ends_with(".projected")) continue;
        const data::Image image = rows->image(name.substr(0, name.rfind('.')));
        model::see_tiles(ctx, spec, weights, b, {image}, {{0, image.patches() * spec.tiles->rows()}},
                         /*adapted=*/false);
        const at::Tensor got = b.features.narrow(1, 0, spec.out_size);
        most = std::max(most, max_abs(got, expected.reshape(got.sizes())));
        ++compared;
    }
    EXPECT_GE(compared, 2);
    EXPECT_LE(most, rows->forward["tolerance"]["tower_max_abs"].get<double>());
    std::cout << "mllama: towers off by " << most << "\n";
}

TEST_P(MllamaTest, LogitsEqualTheReference) {
    const LoadedModel loaded = load_model(model_path(), seeing_tiles(device));
    double most = 0;
    int images = 0, texts = 0;
    for (const auto& [name, expected] : read_tensors(rows->files / "logits.safetensors")) {
        const auto number = static_cast<std::size_t>(std::stoi(name.substr(name.find('.') + 1)));
        const data::Sample sample = rows->sample(number);
        const at::Tensor got = logits_of_row(*loaded.model, sample).slice(0, 1, std::nullopt, name.back() - '0');
        ASSERT_EQ(got.sizes(), expected.sizes()) << name;
        const double off = max_abs(got, expected);
        EXPECT_LE(off, rows->forward["tolerance"]["logits_max_abs"].get<double>()) << name;
        most = std::max(most, off);
        images += static_cast<int>(sample.images.size());
        texts += sample.images.empty() ? 1 : 0;
    }
    EXPECT_GE(images, 4);
    EXPECT_GE(texts, 1);
    std::cout << "mllama: logits off by " << most << "\n";
}

TEST_P(MllamaTest, TrainsAsTheReference) {
    expect_trains_as_reference(*rows, model_path(), seeing_tiles(device));
}

/// From rows and image files, as a user starts it.
TEST_P(MllamaTest, TrainsFromFilesAsTheReference) {
    if (images::decoder_version().empty()) GTEST_SKIP() << "built without images";
    const ScratchFolder folder;
    expect_trains_as_reference(rows->set, flags_from_files(folder, "mllama", rows->set, model_path(), device));
}

/// What layers keep, and how many micro-batches are in flight, changes no bit.
TEST_P(MllamaTest, RecomputedLayersTrainTheSame) {
    SeenRun run = reference_run(*rows, seeing_tiles(device));
    const double without = run_steps(model_path(), run).losses.front();
    run.request.lora = spec::LoraSpec{};
    run.request.lora->lora_dropout = 0.25;  // of features too
    run.steps.resize(2);
    run.rates = {1e-3, 1e-3};
    const SeenCourse kept = run_steps(model_path(), run);
    EXPECT_GT(std::abs(kept.losses.front() - without), 1e-5);
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
    run.request.run.in_flight = 1;
    run.request.run.row_tile = 16;
    const SeenCourse tiled = run_steps(model_path(), run);
    for (std::size_t i = 0; i < kept.losses.size(); ++i) EXPECT_NEAR(tiled.losses[i], kept.losses[i], 1e-5);
}

/// Rows of one batch, with images and without, are what they are alone: those without pass by the layers that cross.
TEST_P(MllamaTest, KeptFeaturesTrainTheSame) {
    expect_kept_features_train_the_same(model_path(), reference_run(*rows, seeing_tiles(device)));
}

TEST_P(MllamaTest, RowsDoNotSeeEachOther) {
    const LoadedModel loaded = load_model(model_path(), seeing_tiles(device));
    std::vector<data::Sample> all;
    std::vector<at::Tensor> alone;
    for (const std::size_t number : {std::size_t{13}, std::size_t{17}, std::size_t{14}}) {
        all.push_back(rows->sample(number));
        alone.push_back(logits_of_row(*loaded.model, all.back()));
    }
    data::Batch batch = data::make_batch(all);
    data::cover_every_position(batch);
    std::vector<at::Tensor> together;
    loaded->score(batch, [&](int64_t, const at::Tensor& logits_CV) { together.push_back(logits_CV.cpu().clone()); });
    EXPECT_LE(max_abs(at::cat(together), at::cat(alone)), 2e-5);
}

TEST_P(MllamaTest, PlansTheTowerWhereRowsHaveImages) {
    const auto file = std::make_shared<const formats::WeightFile>(formats::WeightFile::open(model_path().string()));
    const model::ModelPlan with(file, seeing_tiles(device));
    model::LoadRequest request = seeing_tiles(device);
    request.sizes.patches = request.sizes.image_tokens = 0;
    const model::ModelPlan without(file, request);
    int64_t parameters = 0;
    for (const formats::TensorSource& source : file->tensors.vision) parameters += source.rows() * source.cols();
    EXPECT_GE(with.groups().at("tower weights"), 4 * (parameters - 16));  // without gates
    EXPECT_GT(with.groups().at("tower"), 0);
    EXPECT_FALSE(without.groups().contains("tower weights"));
    const LoadedModel texts = load_model(model_path(), request), sees = load_model(model_path(), seeing_tiles(device));
    EXPECT_THROW(logits_of_row(*texts.model, rows->sample(0)), CheckError);
    EXPECT_TRUE(same_bits(logits_of_row(*texts.model, rows->sample(17)), logits_of_row(*sees.model, rows->sample(17))));
}

/// What is not there is refused by name.
TEST_P(MllamaTest, RefusesWhatDoesNotGoWithImages) {
    const auto file = std::make_shared<const formats::WeightFile>(formats::WeightFile::open(model_path().string()));
    const auto refused = [&](const char* what, const std::function<void(model::LoadRequest&)>& change) {
        model::LoadRequest request = seeing_tiles(device);
        request.trains = request.sizes.training = true;
        request.lora = spec::LoraSpec{.r = 4, .lora_alpha = 8, .target_modules = {"q_proj"}};
        change(request);
        try {
            const model::ModelPlan plan(file, request);
            ADD_FAILURE() << what << " was taken";
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), "option.unsupported") << error.what();
            EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
        }
    };
    refused("lora.use_dora", [](model::LoadRequest& request) { request.lora->use_dora = true; });
}

/// The text part's linears in 4 bit, as a user of one GPU trains it.
TEST_P(MllamaTest, TrainsAQuantisedBase) {
    SeenRun run = reference_run(*rows, seeing_tiles(device));
    const SeenCourse exact = run_steps(model_path(), run);
    run.request.load_in_4bit = true;
    const SeenCourse course = run_steps(model_path(), run);
    double off = 0;
    for (std::size_t i = 0; i < exact.losses.size(); ++i)
        off = std::max(off, std::abs(course.losses[i] - exact.losses[i]));
    EXPECT_GT(off, 0);
    EXPECT_LT(off, 0.3);
}

TEST_P(MllamaTest, MergedModelsKeepTheTower) {
    const formats::WeightFile base = formats::WeightFile::open(model_path().string());
    const formats::Adapter adapter = formats::read_adapter(unpacked(rows->set / "lora/initial"), base.spec);
    const ScratchFolder folder;
    formats::write_model(formats::MergedModel(base, &adapter), folder.path(), {.type = spec::WeightType::f32});
    const formats::WeightFile merged = formats::WeightFile::open(folder.path().string());
    ASSERT_EQ(merged.tensors.others.size(), base.tensors.vision.size());
    for (const formats::TensorView* const other : base.tensors.others)
        EXPECT_TRUE(std::ranges::equal(merged.checkpoint.at(other->name).data, other->data)) << other->name;
    const nlohmann::json config = read_json(folder / "config.json"), before = read_json(model_path() / "config.json");
    EXPECT_EQ(config["text_config"]["cross_attention_layers"], before["text_config"]["cross_attention_layers"]);
    EXPECT_EQ(config["image_token_index"], tile_token);
    model::LoadRequest request = seeing_tiles(device);
    const LoadedModel one = load_model(folder.path(), request);
    request.adapter = unpacked(rows->set / "lora/initial").string();
    const LoadedModel other = load_model(model_path(), request);
    for (const std::size_t number : {std::size_t{16}, std::size_t{17}})
        EXPECT_LE(
            max_abs(logits_of_row(*one.model, rows->sample(number)), logits_of_row(*other.model, rows->sample(number))),
            1e-4);
}

/// Tensors under other names, of the same values.
void write_renamed(const fs::path& from, const fs::path& to, const std::function<std::string(std::string)>& name_of) {
    std::vector<formats::TensorBlob> blobs;
    const formats::SafetensorsFile file(from);
    for (const formats::TensorView& view : file.tensors())
        blobs.push_back({{name_of(view.name), view.dtype, view.shape}, {view.data.begin(), view.data.end()}});
    formats::write_safetensors(to, blobs);
}

/// The names of transformers' own modules: model.language_model beside lm_head, model.vision_model.
TEST_P(MllamaTest, ReadsFoldersUnderModulesNames) {
    const ScratchFolder folder;
    for (const char* const name : {"config.json", "processor_config.json"})
        write_text(folder / "model" / name, read_file(model_path() / name));
    write_renamed(model_path() / "model.safetensors", folder / "model/model.safetensors", [](std::string name) {
        const std::string text = "language_model.model.", head = "language_model.lm_head.";
        if (name.starts_with(text)) return "model.language_model." + name.substr(text.size());
        if (name.starts_with(head)) return "lm_head." + name.substr(head.size());
        return "model." + name;
    });
    const LoadedModel one = load_model(folder / "model", seeing_tiles(device)),
                      other = load_model(model_path(), seeing_tiles(device));
    EXPECT_TRUE(same_bits(logits_of_row(*one.model, rows->sample(0)), logits_of_row(*other.model, rows->sample(0))));
}

/// Adapters of transformers before 4.52.
TEST_P(MllamaTest, ReadsAdaptersUnderOlderNames) {
    const fs::path initial = unpacked(rows->set / "lora/initial");
    const ScratchFolder folder;
    write_text(folder / "older/adapter_config.json", read_file(initial / "adapter_config.json"));
    write_renamed(initial / "adapter_model.safetensors", folder / "older/adapter_model.safetensors",
                  [](std::string name) {
                      const std::string now = "base_model.model.model.language_model.";
                      return "base_model.model.language_model.model." + name.substr(now.size());
                  });
    const auto with = [&](const fs::path& adapter) {
        model::LoadRequest request = seeing_tiles(device);
        request.adapter = adapter.string();
        const LoadedModel loaded = load_model(model_path(), request);
        return logits_of_row(*loaded.model, rows->sample(14));
    };
    EXPECT_TRUE(same_bits(with(folder / "older"), with(initial)));
}

/// The words of transformers 4.57.
TEST(Mllama, ReadsOlderConfigurations) {
    const fs::path folder = golden("families/mllama");
    const auto read = [&](const char* name) {
        return formats::parse_model_spec(read_file(folder / name), name, spec::DType::bf16);
    };
    const spec::ModelSpec older = read("config_hub.json"), newer = read("model/config.json");
    EXPECT_EQ(older.layers, newer.layers);
    EXPECT_EQ(older.ropes.front().theta, 500000.0);
    EXPECT_EQ(older.ropes.front().factor, newer.ropes.front().factor);
    EXPECT_EQ(older.vision->tiles->chosen, newer.vision->tiles->chosen);
    EXPECT_EQ(older.vision->tiles->arrangements, newer.vision->tiles->arrangements);
    EXPECT_EQ(older.vision->image_token, tile_token);
    EXPECT_EQ(older.embedding_rows(), 304);
}

INSTANTIATE_TEST_SUITE_P(All, MllamaTest, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
