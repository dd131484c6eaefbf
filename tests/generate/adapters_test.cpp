// Rows of one batch with adapters of their own, against answers by each adapter alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "model/support.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/spec/convert.h"

namespace unsloth {
namespace {

using namespace test;
using generate::Completion, generate::Request;
using Row = std::vector<int32_t>;

constexpr int64_t longest_answer = 8, positions = 48;
constexpr double noise = 2e-4;  // fp32's, in a log-probability

/// A PEFT folder with random values that change a small model's answers.
weights::NamedAdapter write_adapter(const fs::path& folder, const spec::LoraSpec& lora, const spec::ModelSpec& model) {
    const std::string name = folder.filename().string();
    std::mt19937 random(static_cast<uint32_t>(name.size() * 131 + static_cast<unsigned char>(name[0])));
    std::normal_distribution<float> normal(0.0F, 0.12F);
    std::vector<formats::TensorBlob> blobs;
    for (const formats::TensorDecl& decl : formats::adapter_tensors(lora, model)) {
        int64_t count = 1;
        for (const int64_t size : decl.shape) count *= size;
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values) value = normal(random);
        formats::TensorBlob blob{decl, std::vector<std::byte>(decl.bytes())};
        spec::convert_from_f32(decl.dtype, values.data(), count, blob.data.data());
        blobs.push_back(std::move(blob));
    }
    fs::create_directories(folder);
    formats::write_safetensors(folder / "adapter_model.safetensors", blobs);
    write_text(folder / "adapter_config.json", formats::write_peft_config({lora, "base", ""}));
    return {name, folder.string()};
}

model::LoadRequest request_for(const std::string& device, int64_t rows) {
    model::LoadRequest request;
    request.device = ops::choose_device(device);
    request.dtype = at::kFloat;
    request.load_in_4bit = false;
    request.sizes.training = false;
    request.sizes.tokens = request.sizes.longest = std::max<int64_t>(32, rows);
    request.sizes.segments = request.sizes.head_rows = rows;
    request.sizes.cache_tokens = std::max<int64_t>(64, rows * 32);
    request.sizes.context = positions;
    request.sizes.snapshots = 3;  // of models with gated delta nets
    request.run.head_tile = 16;
    request.run.row_tile = 16;  // the layers' second halves take some tokens at a time
    request.records = true;     // on a GPU: passes in which all rows decode
    return request;
}

class AdaptersTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
  protected:
    void SetUp() override {
        UNSLOTH_NEEDS_XZ();
        spec = formats::WeightFile::open(folder().string()).spec;
        spec::LoraSpec all;
        all.r = 4;
        all.lora_alpha = 8;
        all.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
        spec::LoraSpec some;
        some.r = 11;
        some.lora_alpha = 5;
        some.use_rslora = true;
        some.target_modules = {"q_proj", "down_proj"};
        spec::LoraSpec odd;  // no rank is the same in all layers
        odd.r = 3;
        odd.lora_alpha = 6;
        odd.target_modules = {"v_proj", "gate_proj"};
        odd.rank_pattern = {{"layers.0.mlp.gate_proj", 6}};
        odd.layers_to_transform = {0};
        if (spec.experts) {
            all.target_modules.resize(4);
            all.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
            some.target_modules = {"q_proj", "mlp.down_proj"};  // of the layer without experts
            some.target_parameters = {"mlp.experts.down_proj"};
            odd.target_modules = {"v_proj"};
            odd.target_parameters = {"layers.1.mlp.experts.gate_up_proj", "layers.3.mlp.experts.gate_up_proj"};
            odd.rank_pattern = {{"layers.3.mlp.experts.gate_up_proj", 6}};
            odd.layers_to_transform.clear();
        }
        if (spec.delta) odd.target_modules = {"in_proj_z", "gate_proj"};
        if (spec.delta) all.target_modules.insert(all.target_modules.end(), {"in_proj_qkv", "in_proj_z", "out_proj"});
        adapters = {write_adapter(scratch / "all", all, spec), write_adapter(scratch / "some", some, spec),
                    write_adapter(scratch / "odd", odd, spec)};
    }

    fs::path folder() const { return of_family ? unpacked(golden(name) / "model") : model_folder(name); }

    /// Prompts of 1 to 40 tokens; four in a row are one prompt, and have other adapters.
    std::vector<Request> requests() const {
        const auto row = of_family
                             ? read_json(unpacked(golden(name)) / "forward.json")["rows"][1]["input_ids"].get<Row>()
                             : read_json(golden("forward/" + name + ".json"))["input_ids"][1].get<Row>();
        std::mt19937 random(11);
        std::vector<Request> made;
        for (int32_t i = 0; i < 48; ++i) {
            if (i % 4 == 0) {
                const std::size_t length = i % 8 == 0 ? 33 + random() % 7 : 1 + random() % 32;
                made.push_back({.prompt = Row(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(length))});
            } else {
                made.push_back(made.back());
            }
            made.back().max_new_tokens = 1 + i / 4 % longest_answer;
            made.back().adapter = (i + i / 4) % 4 - 1;
        }
        return made;
    }

    /// One at a time, by the adapter that each names.
    std::vector<Completion> alone(const std::vector<Request>& asked) const {
        std::vector<Completion> answers(asked.size());
        for (int32_t adapter = -1; adapter < 3; ++adapter) {
            model::LoadRequest request = request_for(device, 1);
            if (adapter >= 0) request.adapter = adapters[static_cast<std::size_t>(adapter)].folder;
            const LoadedModel model = load_model(folder(), request);
            generate::Decoder decoder(*model.ctx, *model.model);
            for (std::size_t i = 0; i < asked.size(); ++i) {
                if (asked[i].adapter != adapter) continue;
                Request one = asked[i];
                one.adapter = -1;  // the only one is everybody's
                answers[i] = decoder.answer({one}).front();
            }
        }
        return answers;
    }

    const std::string name = std::get<0>(GetParam()), device = std::get<1>(GetParam());
    const bool of_family = name.starts_with("families/");
    ScratchFolder scratch;
    spec::ModelSpec spec;
    std::vector<weights::NamedAdapter> adapters;
};

TEST_P(AdaptersTest, EachRowIsAnsweredAsByItsAdapterAlone) {
    const std::vector<Request> asked = requests();
    const std::vector<Completion> expected = alone(asked);
    std::set<float> first;
    for (int i = 0; i < 4; ++i) first.insert(expected[static_cast<std::size_t>(i)].logprobs[0]);
    ASSERT_EQ(first.size(), 4U) << "the adapters must matter";
    for (const int64_t rows : {1, 7, 64}) {
        model::LoadRequest request = request_for(device, rows);
        request.adapters = adapters;
        const LoadedModel model = load_model(folder(), request);
        generate::Decoder decoder(*model.ctx, *model.model);
        std::vector<Completion> answers(asked.size());
        const auto end = [&](int64_t i, const Completion& answer) { answers[static_cast<std::size_t>(i)] = answer; };
        std::mt19937 random(3);
        std::size_t added = 0;
        for (bool more = true; more || added < asked.size();) {
            for (uint32_t some = random() % 9; some > 0 && added < asked.size(); --some, ++added)
                decoder.add(asked[added]);
            more = decoder.step({}, end);
        }
        for (std::size_t i = 0; i < asked.size(); ++i) {
            SCOPED_TRACE(cat("request ", i, ", adapter ", asked[i].adapter, " of ", rows, " rows"));
            ASSERT_EQ(answers[i].ids, expected[i].ids);
            for (std::size_t t = 0; t < answers[i].ids.size(); ++t)
                EXPECT_NEAR(answers[i].logprobs[t], expected[i].logprobs[t], noise);
        }
        EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
    }
}

/// Passes in which all rows have it, in which some do, and in which none does.
TEST_P(AdaptersTest, ASingleOneIsThatOfTheRowsThatNameIt) {
    std::vector<Request> all = requests();
    std::erase_if(all, [](const Request& one) { return one.adapter > 0; });
    const std::vector<Completion> expected = alone(all);
    model::LoadRequest request = request_for(device, 8);
    request.adapters = {adapters[0]};
    const LoadedModel model = load_model(folder(), request);
    for (const bool with : {true, false}) {
        for (const bool without : {true, false}) {
            std::vector<Request> asked;
            std::vector<Completion> wanted;
            for (std::size_t i = 0; i < all.size(); ++i)
                if (all[i].adapter == 0 ? with : without) asked.push_back(all[i]), wanted.push_back(expected[i]);
            generate::Decoder decoder(*model.ctx, *model.model);
            const std::vector<Completion> answers = decoder.answer(asked);
            for (std::size_t i = 0; i < asked.size(); ++i) {
                SCOPED_TRACE(cat("request ", i, ", adapter ", asked[i].adapter));
                ASSERT_EQ(answers[i].ids, wanted[i].ids);
                for (std::size_t t = 0; t < answers[i].ids.size(); ++t)
                    EXPECT_NEAR(answers[i].logprobs[t], wanted[i].logprobs[t], noise);
            }
        }
    }
}

/// As they do in a stack that never changes; what is cached of one does not count for the next in its place.
TEST_P(AdaptersTest, SlotsTakeAdaptersOneAfterTheOther) {
    const std::vector<Request> asked = requests();
    const std::vector<Completion> expected = alone(asked);
    model::LoadRequest request = request_for(device, 7);
    request.adapter_slots = {.count = 2, .rank = 12, .experts = spec.experts.has_value()};
    const LoadedModel model = load_model(folder(), request);
    generate::Decoder decoder(*model.ctx, *model.model);
    for (const auto& [first, second] : {std::pair{0, 1}, {2, 1}, {2, 0}, {1, 0}}) {
        const int32_t held[] = {first, second};
        for (int64_t slot = 0; slot < 2; ++slot) {
            const formats::Adapter adapter =
                weights::read_for_batches(adapters[static_cast<std::size_t>(held[slot])], spec);
            ASSERT_LE(weights::largest_rank(adapter), 12);
            weights::write_slot(*model.model->parameters(), request.adapter_slots, slot, &adapter);
        }
        model.model->parameters_changed();
        std::vector<Request> some;
        std::vector<std::size_t> numbers;
        for (std::size_t i = 0; i < asked.size(); ++i) {
            const auto slot = std::ranges::find(held, asked[i].adapter);
            if (asked[i].adapter >= 0 && slot == std::end(held)) continue;
            some.push_back(asked[i]);
            some.back().prefix = static_cast<uint32_t>(asked[i].adapter + 2);
            if (asked[i].adapter >= 0) some.back().adapter = static_cast<int32_t>(slot - held);
            numbers.push_back(i);
        }
        const std::vector<Completion> answers = decoder.answer(some);
        for (std::size_t i = 0; i < some.size(); ++i) {
            SCOPED_TRACE(cat("request ", numbers[i], ", adapter ", asked[numbers[i]].adapter));
            ASSERT_EQ(answers[i].ids, expected[numbers[i]].ids);
            for (std::size_t t = 0; t < answers[i].ids.size(); ++t)
                EXPECT_NEAR(answers[i].logprobs[t], expected[numbers[i]].logprobs[t], noise);
        }
    }
}

TEST_P(AdaptersTest, ThePlanHoldsAllOfThemAndOtherPassesAreRefused) {
    model::LoadRequest request = request_for(device, 4);
    const auto file = std::make_shared<const formats::WeightFile>(formats::WeightFile::open(folder().string()));
    const int64_t without = model::ModelPlan(file, request).total_bytes();
    request.adapters = adapters;
    const model::ModelPlan plan(file, request);
    int64_t values = 0;
    for (const weights::NamedAdapter& named : adapters) {
        const formats::Adapter adapter = formats::read_adapter(named.folder, spec);
        for (const formats::TensorView& tensor : adapter.file.tensors()) values += tensor.elements();
    }
    EXPECT_GE(plan.total_bytes() - without, values * static_cast<int64_t>(sizeof(float)));
    const LoadedModel model = load_model(folder(), request);
    EXPECT_THROW(model->score(every_position({{1, 2, 3}})), CheckError) << "whose adapter?";
    generate::Decoder decoder(*model.ctx, *model.model);
    EXPECT_THROW(decoder.add({.prompt = {1}, .adapter = 3}), CheckError);
}

TEST_P(AdaptersTest, RefusesByNameWhatCannotStandBesideOthers) {
    spec::LoraSpec dora, saves;
    dora.target_modules = saves.target_modules = {"q_proj"};
    dora.use_dora = true;
    saves.modules_to_save = {"lm_head"};
    if (spec.tie_word_embeddings) saves.modules_to_save = {"embed_tokens"};
    for (const auto& [lora, word] : {std::pair{dora, "use_dora"}, {saves, "modules_to_save"}}) {
        model::LoadRequest request = request_for(device, 1);
        request.adapters = {adapters[0], write_adapter(scratch / "other", lora, spec)};
        try {
            load_model(folder(), request);
            ADD_FAILURE() << word << " was taken";
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("adapter other"), std::string::npos) << error.what();
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, AdaptersTest,
                         ::testing::Combine(::testing::Values("llama_tied", "llama_bias", "mistral_window", "qwen3",
                                                              "families/qwen3_moe", "families/qwen3_5_text"),
                                            ::testing::ValuesIn(test_devices())),
                         [](const auto& info) {
                             const std::string& name = std::get<0>(info.param);
                             return name.substr(name.find('/') + 1) + "_" + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace unsloth
