// Processes that load a model together: what each reads and what it is sent must make the model that one alone loads.
#include <barrier>
#include <set>
#include <thread>

#include "model/support.h"

#include "unsloth/ops/device.h"

namespace unsloth {
namespace {

using namespace test;

constexpr int places = 3;
const std::vector<std::vector<int32_t>> rows{{1, 5, 9, 100, 7, 11}, {1, 30, 4, 8}};

/// What a case loads, as a name for messages.
struct Load {
    std::string name, model, device;
    at::ScalarType dtype;
    std::function<void(model::LoadRequest&)> change = [](model::LoadRequest&) {};
};
void PrintTo(const Load& load, std::ostream* out) {
    *out << load.name << " on " << load.device;
}

model::LoadRequest request_of(const Load& load) {
    model::LoadRequest request;
    request.device = ops::choose_device(load.device);
    request.dtype = load.dtype;
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 16;
    request.sizes.segments = 2;
    request.run.head_tile = 16;
    load.change(request);
    return request;
}

class SharedLoadingTest : public ::testing::TestWithParam<Load> {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_XZ(); }

    LoadedModel load(const weights::LoadShare& share) {
        const model::ModelPlan plan(std::make_shared<const formats::WeightFile>(
                                        formats::WeightFile::open(model_folder(GetParam().model).string())),
                                    request_of(GetParam()));
        LoadedModel loaded;
        loaded.ctx = std::make_unique<ops::Context>(plan.request().device);
        loaded.model = std::make_unique<model::Model>(*loaded.ctx, plan.load(*loaded.ctx, share));
        return loaded;
    }
};

/// Codes for dx, which scores do not show.
void expect_same_transposes(const LoadedModel& got, const LoadedModel& expected) {
    const auto weights_of = [](const LoadedModel& loaded, int layer) {
        return loaded.model->parts().network.weight_provider->ready(*loaded.ctx, layer, 16);
    };
    for (int layer = 0; layer < static_cast<int>(got.model->spec().num_layers); ++layer) {
        const weights::LayerWeights own = weights_of(got, layer), other = weights_of(expected, layer);
        for (const auto& [g, operand] : own.groups) {
            ASSERT_EQ(own[g].transpose.has_value(), other[g].transpose.has_value());
            if (!own[g].transpose) continue;
            EXPECT_TRUE(
                own[g].transpose->w_KN.codes.view(at::kByte).equal(other[g].transpose->w_KN.codes.view(at::kByte)));
            EXPECT_TRUE(same_bits(own[g].transpose->w_KN.scales, other[g].transpose->w_KN.scales));
        }
    }
}

TEST_P(SharedLoadingTest, EveryPlaceGetsTheWholeModel) {
    // What each place reads is kept the first time round, and sent the second time.
    std::vector<at::Tensor> sent;
    std::set<int> readers;
    for (int place = 0; place < places; ++place) {
        std::size_t number = 0;
        load({place, places, [&](const at::Tensor& values, int reader) {
                  if (sent.size() == number) sent.emplace_back();
                  if (reader == place) sent[number] = values.clone(), readers.insert(reader);
                  ++number;
              }});
    }
    EXPECT_EQ(readers, (std::set<int>{0, 1, 2})) << "someone reads nothing";
    const LoadedModel alone = load({});
    const at::Tensor expected = score_every_position(*alone.model, rows).logits_TV;
    for (int place = 0; place < places; ++place) {
        std::size_t number = 0, received = 0;
        const LoadedModel together = load({place, places, [&](const at::Tensor& values, int reader) {
                                               const at::Tensor& from = sent.at(number++);
                                               ASSERT_EQ(from.sizes(), values.sizes());
                                               received += reader == place ? 0 : 1;
                                               if (reader != place) values.copy_(from);
                                           }});
        EXPECT_EQ(number, sent.size());
        EXPECT_GT(received, 0U);
        EXPECT_TRUE(same_bits(score_every_position(*together.model, rows).logits_TV, expected)) << "place " << place;
        expect_same_transposes(together, alone);
        if (alone.model->parameters() != nullptr) {
            EXPECT_TRUE(
                same_bits(together.model->parameters()->state().params_P, alone.model->parameters()->state().params_P))
                << "place " << place;
        }
    }
}

/// What processes of one machine say and send to each other, here threads.
class Together {
  public:
    weights::LoadShare share(int place) {
        return {place, places, [this, place](const at::Tensor& values, int owner) {
                    if (place == owner) sent_ = values;
                    all_.arrive_and_wait();
                    if (place != owner) values.copy_(sent_);
                    all_.arrive_and_wait();
                }};
    }

  private:
    std::barrier<> all_{places};
    at::Tensor sent_;
};

TEST_P(SharedLoadingTest, LayersInHostMemoryLieThereOnce) {
    Load streamed = GetParam();
    model::LoadRequest request = request_of(streamed);
    if (request.finetuning_type == config::FinetuningType::full || any(request.coded) || request.run.layers.size() == 1)
        GTEST_SKIP() << "layers that stay on the device";
    const auto file =
        std::make_shared<const formats::WeightFile>(formats::WeightFile::open(model_folder(streamed.model).string()));
    request.run.layers.assign(static_cast<std::size_t>(file->spec.num_layers),
                              spec::LayerPlan{.weights_at = spec::Place::host});
    request.processes = places;
    const auto loaded_by = [&](const weights::LoadShare& share) {
        LoadedModel loaded;
        loaded.ctx = std::make_unique<ops::Context>(request.device);
        const model::ModelPlan plan(file, request);
        loaded.model = std::make_unique<model::Model>(*loaded.ctx, plan.load(*loaded.ctx, share));
        return loaded;
    };
    const at::Tensor expected = score_every_position(*loaded_by({}).model, rows).logits_TV.clone();
    Together together;
    std::vector<LoadedModel> loaded(places);
    {
        std::vector<std::jthread> threads;
        for (int place = 0; place < places; ++place)
            threads.emplace_back(
                [&, place] { loaded[static_cast<std::size_t>(place)] = loaded_by(together.share(place)); });
    }
    memory::CommonMemory::Share all;
    for (const LoadedModel& model : loaded) {
        EXPECT_TRUE(same_bits(score_every_position(*model.model, rows).logits_TV, expected));
        const memory::CommonMemory::Share share = model.model->parts().common_memory->share();
        EXPECT_EQ(share.own, 0);
        all.filled += share.filled;
        all.found += share.found;
    }
    EXPECT_GT(all.filled, 0);
    EXPECT_EQ(all.found, (places - 1) * all.filled) << "each piece is read by one of them";

    const model::ModelPlan plan(file, request);
    EXPECT_EQ(plan.host_bytes(), places * plan.host().total_bytes() + plan.common().total_bytes());
}

std::vector<Load> loads() {
    const auto full = [](model::LoadRequest& r) {
        r.finetuning_type = config::FinetuningType::full;
        r.trains = r.sizes.training = true;
        r.load_in_4bit = false;
    };
    const auto saved = [](model::LoadRequest& r) {
        r.trains = r.sizes.training = true;
        r.lora = spec::LoraSpec{.r = 8, .target_modules = {"q_proj", "down_proj"}, .modules_to_save = {"lm_head"}};
    };
    const auto tiles = [](model::LoadRequest& r) {
        r.nf4_chooser = [](int64_t, int64_t, int64_t, bool) {
            return ops::Nf4GemmChoice{ops::Nf4GemmChoice::Kernel::portable, 2, 2, 8};
        };
    };
    std::vector<Load> all;
    for (const std::string& device : test_devices()) {
        const at::ScalarType type = device == "cpu" ? at::kFloat : at::kBFloat16;
        all.push_back({"quantised while loading", "small_llama/bf16", device, type});
        all.push_back({"full training", "small_llama/bf16", device, type, full});
        all.push_back({"full training, tied embeddings", "llama_tied", device, type, full});
        all.push_back({"modules_to_save", "small_llama/bf16", device, type, saved});
        all.push_back({"tiles", "small_llama/bf16", device, type, tiles});
        const auto coded = [](spec::CodedProducts fp8, bool cached = false) {
            return [=](model::LoadRequest& r) { r.coded = fp8, r.run.layers = {{.cached = cached}}; };
        };
        all.push_back({"fp8", "tiny_llama/nf4_dq", device, type, coded(spec::CodedProducts::both)});
        all.push_back({"int8 codes", "tiny_llama/nf4_dq", device, type, coded(spec::CodedProducts::int8)});
        all.push_back({"fp8 for dx", "tiny_llama/nf4_dq", device, type, coded(spec::CodedProducts::dx)});
        if (device == "cpu") continue;
        all.push_back({"fp8 for dx beside 16 bit", "tiny_llama/nf4_dq", device, type,
                       coded(spec::CodedProducts::dx, /*cached=*/true)});
        all.push_back({"4 bit as it lies", "small_llama/nf4_dq", device, type});
        all.push_back({"expanded once", "small_llama/nf4_dq", device, type,
                       [](model::LoadRequest& r) { r.run.layers = {{.cached = true}}; }});
        all.push_back(
            {"16 bit", "small_llama/bf16", device, type, [](model::LoadRequest& r) { r.load_in_4bit = false; }});
        all.push_back({"embedding on the host", "small_llama/bf16", device, type,
                       [](model::LoadRequest& r) { r.offload_embedding = true; }});
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(All, SharedLoadingTest, ::testing::ValuesIn(loads()), [](const auto& info) {
    std::string name = info.param.name + "_" + info.param.device;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
    return name;
});

}  // namespace
}  // namespace unsloth
