// Towers of Qwen2.5-VL, Qwen3-VL and Llama 3.2 Vision whose linears the folder has in bitsandbytes' NF4, beside the
// same values in fp32.
#include "train/tower_support.h"
#include "unsloth/formats/bnb8.h"
#include "unsloth/formats/described_model.h"
#include "unsloth/formats/merge.h"
#include "unsloth/formats/model_writer.h"

namespace unsloth {
namespace {

using namespace test;

/// A model whose tower's linears are in NF4, in "nf4", and the same values in fp32, in "plain".
class Tower4BitTest : public TowerTest {
  protected:
    void SetUp() override {
        TowerTest::SetUp();
        const std::vector<spec::VisionTensor> tensors = spec::vision_tensors(file()->spec.vision.value());
        const auto quantises = [&](const std::string& name) {
            return std::ranges::any_of(tensors, [&](const spec::VisionTensor& tensor) {
                return spec::holds_products(tensor) && name.ends_with(tensor.name);
            });
        };
        std::vector<formats::TensorBlob> packed, plain;
        const formats::SafetensorsFile all(model_path() / "model.safetensors");
        for (const formats::TensorView& view : all.tensors()) {
            at::Tensor values = tensor_of(view).to(at::kFloat).contiguous();
            auto* const first = values.mutable_data_ptr<float>();
            if (quantises(view.name)) {
                const formats::Quant4Owned made = formats::quantize_nf4(first, view.shape[0], view.shape[1]);
                for (formats::TensorBlob& blob : formats::quant4_tensors(view.name, made, view.dtype))
                    packed.push_back(std::move(blob));
                formats::dequantize_rows(made.view(), 0, view.shape[0], first);
                linears[view.name] = view.elements();
            } else {
                packed.push_back({{view.name, view.dtype, view.shape}, {view.data.begin(), view.data.end()}});
            }
            const auto bytes = std::as_bytes(std::span(first, static_cast<std::size_t>(view.elements())));
            plain.push_back({{view.name, spec::DType::f32, view.shape}, {bytes.begin(), bytes.end()}});
        }
        for (const auto& [name, blobs] : {std::pair("nf4", packed), {"plain", plain}}) {
            for (const char* const config : {"config.json", "processor_config.json"})
                write_text(folder / name / config, read_file(model_path() / config));
            formats::write_safetensors(folder / name / "model.safetensors", blobs);
        }
        ASSERT_EQ(linears.size(), spec::tower_linears(file()->spec).size());
    }
    std::shared_ptr<const formats::WeightFile> open(const char* name) const {
        return std::make_shared<const formats::WeightFile>(formats::WeightFile::open((folder / name).string()));
    }

    const ScratchFolder folder;
    std::map<std::string, int64_t> linears;  ///< elements by name
};

/// With and without adapters in the tower. mllama's gates are multiplied into a linear's code, not into its values.
TEST_P(Tower4BitTest, TrainsAsItsValues) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
        for (const fs::path& adapter : {lora, rows->set / "lora"}) {
            SeenRun run = reference_run(*rows, request(), adapter);
            run.request.dtype = dtype;
            run.steps.resize(2);
            run.rates = {1e-3, 1e-3};
            const SeenCourse expected = run_steps(folder / "plain", run), got = run_steps(folder / "nf4", run);
            for (std::size_t i = 0; i < 2; ++i) {
                const double off = !tiled() ? 0 : dtype == at::kFloat ? 1e-5 : 5e-3;
                EXPECT_NEAR(got.losses[i], expected.losses[i], off) << dtype << " " << adapter;
                EXPECT_NEAR(got.norms[i], expected.norms[i], off * expected.norms[i]) << dtype << " " << adapter;
            }
            if (!tiled()) expect_same_bits(got.final_values, expected.final_values);
        }
}

TEST_P(Tower4BitTest, IsPlannedIn4Bit) {
    const model::ModelPlan packed(open("nf4"), asked()), plain(open("plain"), asked());
    int64_t most = 0, largest = 0;
    for (const auto& [name, elements] : linears) {
        if (name.ends_with("multi_modal_projector.weight")) continue;  // its columns have another order here
        const int64_t blocks = (elements + 63) / 64, tables = 4 * (16 + 256);
        most += (elements + 1) / 2 + blocks + 4 * ((blocks + 255) / 256) + tables - 4 * elements;
        largest = std::max(largest, elements);
    }
    const spec::VisionSpec tower = *file()->spec.vision;
    const int64_t before = plain.groups().at("tower weights"), after = packed.groups().at("tower weights"),
                  joined = tiled() || tower.gated_mlp ? 3 : 1,  // linears that are one product
        zeros = 3 * tower.depth * (tower.inner_size() - tower.intermediate_size) * tower.hidden_size;
    EXPECT_GE(after, before + most + 4 * largest - 4 * zeros);
    EXPECT_LE(after, before + most + 4 * joined * (largest + zeros));
    EXPECT_EQ(packed.groups().at("tower"), plain.groups().at("tower"));
    EXPECT_EQ(packed.table()->trainable_elements(), plain.table()->trainable_elements());
    model::LoadRequest request = this->request();
    const LoadedModel loaded = load_model(folder / "nf4", request);
    const weights::VisionBlock& block = loaded->parts().network.vision->blocks.front();
    for (const weights::VisionLinear* const linear : {&block.qkv, &block.proj, &block.in, &block.out})
        EXPECT_FALSE(linear->parts.empty());
}

/// 8-bit linears are dequantized while loading and merging.
TEST_P(Tower4BitTest, EightBitsAreRead) {
    std::vector<formats::TensorBlob> blobs;
    std::map<std::string, at::Tensor> values;
    const auto add = [&](const formats::TensorDecl& decl, const void* data) {
        const auto* const first = static_cast<const std::byte*>(data);
        blobs.push_back({decl, {first, first + decl.bytes()}});
    };
    const formats::SafetensorsFile all(folder / "plain/model.safetensors");
    for (const formats::TensorView& view : all.tensors()) {
        if (!linears.contains(view.name)) {
            add({view.name, view.dtype, view.shape}, view.data.data());
            continue;
        }
        const int64_t rows = view.shape[0], cols = view.shape[1];
        at::Tensor& made = values[view.name] = tensor_of(view).to(at::kFloat).contiguous().clone();
        std::vector<int8_t> codes(static_cast<std::size_t>(rows * cols));
        std::vector<float> maxima(static_cast<std::size_t>(rows));
        formats::quantize_int8_rows(made.const_data_ptr<float>(), rows, cols, codes.data(), maxima.data());
        formats::round_to_int8_rows(made.mutable_data_ptr<float>(), rows, cols);
        constexpr uint8_t row_major = 0;
        const std::vector<formats::TensorDecl> parts = formats::int8_declarations(view.name, rows, cols);
        add(parts.at(0), codes.data()), add(parts.at(1), maxima.data()), add(parts.at(2), &row_major);
    }
    for (const char* const config : {"config.json", "processor_config.json"})
        write_text(folder / "int8" / config, read_file(model_path() / config));
    formats::write_safetensors(folder / "int8/model.safetensors", blobs);
    fs::create_directory(folder / "from int8");
    const auto base = open("int8");
    formats::write_model(formats::MergedModel(*base, nullptr), folder / "from int8", {.type = spec::WeightType::f32});
    const auto merged = open("from int8");
    EXPECT_EQ(merged->tensors.others.size(), merged->tensors.vision.size());
    for (const auto& [name, expected] : values)
        EXPECT_TRUE(same_bits(tensor_of(merged->checkpoint.at(name)), expected)) << name;
    const data::Sample row = rows->sample(read_json(rows->files / "forward.json")["rows"][0], 0);
    const LoadedModel one = load_model(folder / "int8", request()), other = load_model(folder / "from int8", request());
    EXPECT_TRUE(same_bits(logits_of_row(*one.model, row), logits_of_row(*other.model, row)));
}

TEST_P(Tower4BitTest, IsMergedAsItsValues) {
    const auto base = open("nf4"), plain = open("plain");
    const formats::Adapter adapter = formats::read_adapter(unpacked(lora / "initial"), base->spec);
    const auto write = [&](const char* name, const formats::Adapter* with, spec::WeightType type) {
        fs::create_directory(folder / name);
        formats::write_model(formats::MergedModel(*base, with), folder / name, {.type = type});
        return open(name);
    };
    const auto in_32bit = write("merged", &adapter, spec::WeightType::f32);
    EXPECT_EQ(in_32bit->tensors.others.size(), in_32bit->tensors.vision.size());
    const data::Sample row = rows->sample(read_json(rows->files / "forward.json")["rows"][0], 0);
    model::LoadRequest request = this->request();
    const LoadedModel one = load_model(folder / "merged", request);
    request.adapter = unpacked(lora / "initial").string();
    const LoadedModel other = load_model(folder / "plain", request);
    EXPECT_LE(max_abs(logits_of_row(*one.model, row), logits_of_row(*other.model, row)), 1e-4);

    // In 4 bit the tower is as it was, or its linears with adapters are in 16 bit.
    const auto skipped = [](const formats::WeightFile& file) {
        return file.quantization.value().llm_int8_skip_modules.value_or(std::vector<std::string>{});
    };
    const auto again = write("again", nullptr, spec::WeightType::nf4);
    EXPECT_TRUE(skipped(*again).empty());
    ASSERT_EQ(again->tensors.others.size(), base->tensors.others.size());
    for (const formats::TensorView* const part : base->tensors.others)
        EXPECT_TRUE(std::ranges::equal(again->checkpoint.at(part->name).data, part->data)) << part->name;
    const auto described = formats::describe_model(again->spec, again->quantization);
    EXPECT_EQ(model::ModelPlan(described, asked()).table_text(), model::ModelPlan(again, asked()).table_text());
    const auto changed = write("changed", &adapter, spec::WeightType::nf4);
    for (const formats::TensorSource& source : changed->tensors.vision) EXPECT_NE(source.plain(), nullptr);
    EXPECT_EQ(std::ranges::count(skipped(*changed), tiled() ? "vision_model" : "visual"), 1);
}

INSTANTIATE_TEST_SUITE_P(All, Tower4BitTest,
                         ::testing::Combine(::testing::Values("qwen3_vl", "qwen2_5_vl", "mllama"),
                                            ::testing::ValuesIn(test_devices())),
                         [](const auto& info) { return cat(std::get<0>(info.param), "_", std::get<1>(info.param)); });

}  // namespace
}  // namespace unsloth
