// Models that see images against transformers and PEFT: towers, logits, losses, gradients and eight steps of LoRA
// (tests/golden/families; the full sets where UNSLOTH_SHARED names the collection). Bounds are the sets' own.
#include "train/vision_support.h"
#include "unsloth/formats/merge.h"
#include "unsloth/formats/model_writer.h"
#include "unsloth/formats/peft.h"
#include "unsloth/images/image.h"
#include "unsloth/memory/plan.h"
#include "unsloth/model/vision_tower.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/train/step.h"

namespace unsloth {
namespace {

using namespace test;

using VisionCase = std::tuple<std::string, std::string>;  ///< family, device

class VisionTest : public ::testing::TestWithParam<VisionCase> {
  protected:
    void SetUp() override {
        UNSLOTH_NEEDS_XZ();
        rows = std::make_unique<SeenRows>(family);
        forward = read_json(rows->files / "forward.json");
    }
    fs::path model_path() const { return unpacked(rows->set / "model"); }
    const std::string family = std::get<0>(GetParam()), device = std::get<1>(GetParam());
    std::unique_ptr<SeenRows> rows;
    nlohmann::json forward;
};

/// Memory for a tower alone: `patches` of an image.
model::VisionBuffers buffers_for(const spec::VisionSpec& spec, int64_t patches, at::Device device) {
    const auto floats = [&](int64_t count) { return at::empty({count}, at::TensorOptions(at::kFloat).device(device)); };
    const auto ints = [&](int64_t count) { return at::empty({count}, at::TensorOptions(at::kInt).device(device)); };
    model::VisionBuffers b;
    b.bytes = at::empty({patches * spec.patch_bytes()}, at::TensorOptions(at::kByte).device(device));
    b.x = floats(patches * spec.hidden_size);
    b.h = floats(patches * 8 * spec.hidden_size);
    b.wide = floats(patches * std::max(2 * spec.patch_bytes(), 8 * spec.hidden_size));
    b.rstd = floats(patches);
    b.index = ints(4 * patches);
    b.share = floats(4 * patches);
    b.positions = ints(2 * patches);
    b.cos = floats(patches * spec.head_dim());
    b.sin = floats(patches * spec.head_dim());
    b.tokens = ints(patches);
    b.features = floats(patches * spec.out_size).view({patches, spec.out_size});
    for (std::size_t i = 0; i < spec.deepstack.size(); ++i)
        b.deepstack.push_back(floats(patches * spec.out_size).view({patches, spec.out_size}));
    return b;
}

TEST_P(VisionTest, TowersSeeWhatTheReferenceSees) {
    const formats::WeightFile file = formats::WeightFile::open(model_path().string());
    const spec::VisionSpec& spec = file.spec.vision.value();
    ops::Context ctx(ops::choose_device(device));
    memory::Plan plan;
    weights::VisionWeights::plan(spec, at::kFloat, file.tensors.vision, plan);
    plan.place();
    const memory::Arena arena(std::move(plan), ctx.device());
    const weights::VisionWeights weights = weights::VisionWeights::load(spec, at::kFloat, file.tensors.vision, arena);
    const model::VisionBuffers buffers = buffers_for(spec, 64, ctx.device());
    double most = 0;
    int compared = 0;
    for (const auto& [name, expected] : read_tensors(rows->files / "tower.safetensors")) {
        const std::string image = name.substr(0, name.rfind('.')), what = name.substr(name.rfind('.') + 1);
        if (what == "last_hidden_state") continue;  // before the merger
        model::see_images(ctx, spec, weights, buffers, {rows->image(image)}, /*together=*/true,
                          /*adapted=*/false);
        const at::Tensor got =
            what == "merged" ? buffers.features : buffers.deepstack.at(static_cast<std::size_t>(what.back() - '0'));
        most = std::max(most, max_abs(got.narrow(0, 0, expected.size(0)), expected));
        ++compared;
    }
    EXPECT_GE(compared, 4);
    EXPECT_LE(most, forward["tolerance"]["tower_max_abs"].get<double>());
    std::cout << family << ": towers off by " << most << "\n";
}

/// However many images the buffers hold at a time, and one after another.
TEST_P(VisionTest, ImagesAreSeenTogetherAsAlone) {
    const formats::WeightFile file = formats::WeightFile::open(model_path().string());
    const spec::VisionSpec& spec = file.spec.vision.value();
    ops::Context ctx(ops::choose_device(device));
    memory::Plan plan;
    weights::VisionWeights::plan(spec, at::kFloat, file.tensors.vision, plan);
    plan.place();
    const memory::Arena arena(std::move(plan), ctx.device());
    const weights::VisionWeights weights = weights::VisionWeights::load(spec, at::kFloat, file.tensors.vision, arena);
    std::map<std::string, data::Image> by_name;
    for (const auto& [name, _] : read_tensors(rows->files / "tower.safetensors")) {
        const std::string image = name.substr(0, name.rfind('.'));
        by_name.emplace(image, rows->image(image));
    }
    std::vector<data::Image> images;
    int64_t patches = 0, largest = 0;
    for (const auto& [name, image] : by_name) {
        images.push_back(image);
        patches += image.patches(), largest = std::max(largest, image.patches());
    }
    ASSERT_GE(images.size(), 3U);
    const model::VisionBuffers buffers = buffers_for(spec, patches, ctx.device());
    const auto seen = [&](int64_t room, bool together) {
        model::VisionBuffers some = buffers;
        some.x = buffers.x.narrow(0, 0, room * spec.hidden_size);
        buffers.features.zero_();
        model::see_images(ctx, spec, weights, some, images, together, /*adapted=*/false);
        return buffers.features.narrow(0, 0, spec.tokens_of(patches)).clone();
    };
    const at::Tensor alone = seen(patches, false);
    for (const int64_t room : {largest, patches - 1, patches})
        EXPECT_LE(max_abs(seen(room, true), alone), 1e-5) << room;
    EXPECT_GT(alone.abs().max().item<double>(), 0.01);
}

TEST_P(VisionTest, LogitsEqualTheReference) {
    const LoadedModel loaded = load_model(model_path(), seeing(device, at::kFloat));
    double most = 0;
    int images = 0;
    for (const auto& [name, expected] : read_tensors(rows->files / "logits.safetensors")) {
        const auto number = static_cast<std::size_t>(std::stoi(name.substr(name.find('.') + 1)));
        const int64_t step = name.back() - '0';
        const nlohmann::json& row = forward["rows"][number];
        const data::Sample sample = rows->sample(row, static_cast<int64_t>(number));
        for (std::size_t t = 0; t < sample.ids.size() && !sample.axes.empty(); ++t)
            for (std::size_t axis = 0; axis < 3; ++axis)
                ASSERT_EQ(sample.axes[3 * t + axis], row["position_ids"][axis][t]) << name << " " << t;
        const at::Tensor got = logits_of_row(*loaded.model, sample).slice(0, 1, std::nullopt, step);
        ASSERT_EQ(got.sizes(), expected.sizes()) << name;
        most = std::max(most, max_abs(got, expected));
        images += static_cast<int>(sample.images.size());
    }
    EXPECT_GE(images, 4);
    EXPECT_LE(most, forward["tolerance"]["logits_max_abs"].get<double>());
    std::cout << family << ": logits off by " << most << "\n";
}

/// Rows in one batch are what they are alone, bit by bit; and a text's positions on axes are those it has without.
TEST_P(VisionTest, RowsDoNotSeeEachOther) {
    const LoadedModel loaded = load_model(model_path(), seeing(device, at::kFloat));
    data::Sample text = rows->sample(forward["rows"][0], 0);
    for (int32_t& id : text.ids) id = id == tiny_image_token ? 8 : id;
    text.images.clear(), text.axes.clear();
    const at::Tensor plain = logits_of_row(*loaded.model, text);
    for (const int32_t position : text.positions) text.axes.insert(text.axes.end(), 3, position);
    EXPECT_TRUE(same_bits(logits_of_row(*loaded.model, text), plain));
    std::vector<data::Sample> all;
    std::vector<at::Tensor> alone;
    for (const std::size_t number : {std::size_t{0}, std::size_t{1}}) {
        all.push_back(rows->sample(forward["rows"][number], static_cast<int64_t>(number)));
        alone.push_back(logits_of_row(*loaded.model, all.back()));
    }
    data::Batch batch = data::make_batch(all);
    data::cover_every_position(batch);
    std::vector<at::Tensor> together;
    loaded->score(batch, [&](int64_t, const at::Tensor& logits_CV) { together.push_back(logits_CV.cpu().clone()); });
    EXPECT_LE(max_abs(at::cat(together), at::cat(alone)), 2e-5);
}

TEST_P(VisionTest, TrainsAsTheReference) {
    expect_trains_as_reference(*rows, model_path(), seeing(device, at::kFloat));
}

/// From rows and image files, as a user starts it.
TEST_P(VisionTest, TrainsFromFilesAsTheReference) {
    if (images::decoder_version().empty()) GTEST_SKIP() << "built without images";
    const ScratchFolder folder;
    expect_trains_as_reference(rows->set, flags_from_files(folder, family, rows->set, model_path(), device));
}

/// What layers keep, and how many micro-batches are in flight, changes no bit.
TEST_P(VisionTest, RecomputedLayersTrainTheSame) {
    SeenRun run = reference_run(*rows, seeing(device, at::kFloat));
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

TEST_P(VisionTest, KeptFeaturesTrainTheSame) {
    expect_kept_features_train_the_same(model_path(), reference_run(*rows, seeing(device, at::kFloat)));
}

/// Other values stand where an image's tokens are: their embedding is not trained by it.
TEST_P(VisionTest, ImageTokensTrainNoEmbedding) {
    SeenRun run = reference_run(*rows, seeing(device, at::kFloat));
    run.steps.resize(1);
    run.rates = {0.0};
    run.request.adapter.reset();
    run.request.lora = spec::LoraSpec{.r = 4, .lora_alpha = 8, .target_modules = {"q_proj"}};
    run.request.lora->modules_to_save = {"embed_tokens"};
    for (data::Batch& micro : run.steps[0].micro) micro.token_order = data::sort_tokens(micro.ids_T);
    const SeenCourse course = run_steps(model_path(), run);
    int found = 0;
    for (const auto& [name, gradient] : course.first_gradients) {
        if (name.find("embed_tokens") == std::string::npos) continue;
        EXPECT_GT(l2(gradient), 0);
        EXPECT_EQ(l2(gradient[tiny_image_token]), 0);
        ++found;
    }
    EXPECT_EQ(found, 1);
}

TEST_P(VisionTest, PlansTheTowerWhereRowsHaveImages) {
    const auto file = std::make_shared<const formats::WeightFile>(formats::WeightFile::open(model_path().string()));
    const model::ModelPlan with(file, seeing(device, at::kFloat));
    model::LoadRequest request = seeing(device, at::kFloat);
    request.sizes.patches = request.sizes.image_tokens = 0;
    const model::ModelPlan without(file, request);
    int64_t parameters = 0;
    for (const formats::TensorSource& source : file->tensors.vision) parameters += source.rows() * source.cols();
    EXPECT_GE(with.groups().at("tower weights"), 4 * parameters);
    EXPECT_GT(with.groups().at("tower"), 0);
    EXPECT_FALSE(without.groups().contains("tower weights"));
    if (device == "cpu") {
        const auto bytes = [](const memory::Plan& plan) { return plan.total_bytes(); };
        EXPECT_EQ(with.total_bytes(), bytes(with.resident()) + bytes(with.step()) + bytes(with.host()) +
                                          bytes(with.common()) + bytes(with.peer()));
    }
    const LoadedModel texts = load_model(model_path(), request);
    const data::Sample row = rows->sample(forward["rows"][0], 0);
    EXPECT_THROW(logits_of_row(*texts.model, row), CheckError);
}

TEST_P(VisionTest, MergedModelsKeepTheTower) {
    const formats::WeightFile base = formats::WeightFile::open(model_path().string());
    const formats::Adapter adapter = formats::read_adapter(unpacked(rows->set / "lora/initial"), base.spec);
    const ScratchFolder folder;
    formats::write_model(formats::MergedModel(base, &adapter), folder.path(), {.type = spec::WeightType::f32});
    const formats::WeightFile merged = formats::WeightFile::open(folder.path().string());
    ASSERT_EQ(merged.tensors.others.size(), base.tensors.vision.size());
    for (const formats::TensorView* const other : base.tensors.others)
        EXPECT_TRUE(std::ranges::equal(merged.checkpoint.at(other->name).data, other->data)) << other->name;
    model::LoadRequest request = seeing(device, at::kFloat);
    const data::Sample row = rows->sample(forward["rows"][0], 0);
    const LoadedModel one = load_model(folder.path(), request);
    request.adapter = unpacked(rows->set / "lora/initial").string();
    const LoadedModel other = load_model(model_path(), request);
    EXPECT_LE(max_abs(logits_of_row(*one.model, row), logits_of_row(*other.model, row)), 1e-4);
}

/// Adapters of transformers before 4.52, whose modules had no language_model above them.
TEST_P(VisionTest, ReadsAdaptersUnderOlderNames) {
    const fs::path initial = unpacked(rows->set / "lora/initial");
    const ScratchFolder folder;
    write_text(folder / "older/adapter_config.json", read_file(initial / "adapter_config.json"));
    std::vector<formats::TensorBlob> blobs;
    const formats::SafetensorsFile file(initial / "adapter_model.safetensors");
    for (const formats::TensorView& view : file.tensors()) {
        std::string name = view.name;
        name.erase(name.find("language_model."), std::string("language_model.").size());
        blobs.push_back({{name, view.dtype, view.shape}, {view.data.begin(), view.data.end()}});
    }
    formats::write_safetensors(folder / "older/adapter_model.safetensors", blobs);
    const data::Sample row = rows->sample(forward["rows"][0], 0);
    const auto with = [&](const fs::path& adapter) {
        model::LoadRequest request = seeing(device, at::kFloat);
        request.adapter = adapter.string();
        const LoadedModel loaded = load_model(model_path(), request);
        return logits_of_row(*loaded.model, row);
    };
    EXPECT_TRUE(same_bits(with(folder / "older"), with(initial)));
}

/// bitsandbytes must not expect its own form of what stays as it was.
TEST_P(VisionTest, QuantisedModelsNameTheTower) {
    const formats::WeightFile base = formats::WeightFile::open(model_path().string());
    const ScratchFolder folder;
    formats::write_model(formats::MergedModel(base, nullptr), folder.path(), {.type = spec::WeightType::nf4});
    const nlohmann::json config = read_json(folder / "config.json");
    const auto skipped = config["quantization_config"]["llm_int8_skip_modules"].get<std::vector<std::string>>();
    for (const char* const module : {"lm_head", "model.visual", "visual"})
        EXPECT_EQ(std::ranges::count(skipped, module), 1) << module;
    const LoadedModel loaded = load_model(folder.path(), seeing(device, at::kFloat));
    const LoadedModel exact = load_model(model_path(), seeing(device, at::kFloat));
    const data::Sample row = rows->sample(forward["rows"][0], 0);
    const double off = rms(logits_of_row(*loaded.model, row), logits_of_row(*exact.model, row));
    EXPECT_GT(off, 0);
    EXPECT_LT(off, 0.5);
}

INSTANTIATE_TEST_SUITE_P(All, VisionTest,
                         ::testing::Combine(::testing::Values("qwen3_vl", "qwen2_5_vl"),
                                            ::testing::ValuesIn(test_devices())),
                         [](const auto& info) { return cat(std::get<0>(info.param), "_", std::get<1>(info.param)); });

/// The names and keys of transformers 4.52 to 4.57.
TEST(Vision, ReadsOlderFolders) {
    UNSLOTH_NEEDS_XZ();
    if (!fs::exists(vision_set("qwen2_5_vl") / "model_hub"))
        GTEST_SKIP() << "UNSLOTH_SHARED does not name the collection";
    const SeenRows rows("qwen2_5_vl");
    const data::Sample row = rows.sample(read_json(rows.files / "forward.json")["rows"][0], 0);
    const LoadedModel hub = load_model(unpacked(rows.set / "model_hub"), seeing("cpu", at::kFloat)),
                      saved = load_model(unpacked(rows.set / "model"), seeing("cpu", at::kFloat));
    EXPECT_TRUE(same_bits(logits_of_row(*hub.model, row), logits_of_row(*saved.model, row)));
}

TEST(Vision, TextModelsSeeNothing) {
    const auto file = std::make_shared<const formats::WeightFile>(
        formats::WeightFile::open(model_folder("small_llama/bf16").string()));
    try {
        const model::ModelPlan plan(file, seeing("cpu", at::kFloat));
        ADD_FAILURE() << "images were planned for";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "model.unsupported") << error.what();
    }
}

}  // namespace
}  // namespace unsloth
