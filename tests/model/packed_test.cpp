// Products that read 4-bit tiles against products by expanded weights, in the same model: scores, generation,
// gradients.
#include <set>

#include "model/support.h"
#include "unsloth/formats/random_model.h"
#include "unsloth/ops/device.h"
#include "unsloth/train/step.h"

namespace unsloth {
namespace {

using namespace test;
using Row = std::vector<int32_t>;
using Kernel = ops::Nf4GemmChoice::Kernel;

const Row packed_tokens{17, 400, 23, 999, 5, 5, 731, 64, 128, 300, 11, 2};

/// tiny_llama: q, k, v and o (multiples of 64) lie in tiles, gate, up and down (688 wide) do not.
class PackedTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_XZ(); }
    bool on_gpu() const { return GetParam() != "cpu"; }

    model::LoadRequest request(bool packed, bool trains) {
        model::LoadRequest r;
        r.device = ops::choose_device(GetParam());
        r.dtype = on_gpu() ? at::kBFloat16 : at::kFloat;
        r.sizes.tokens = r.sizes.longest = r.sizes.head_rows = trains ? few : 40;
        r.sizes.cache_tokens = trains ? 0 : 40;
        r.fewest_tokens = few;
        r.sizes.segments = 2;
        r.run.head_tile = 16;
        r.sizes.training = r.trains = trains;
        if (trains)
            r.lora = spec::LoraSpec{
                .r = 8,
                .target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}};
        if (packed)
            r.nf4_chooser = [this](int64_t m, int64_t n, int64_t k, bool transposed) {
                if (m > few) return ops::Nf4GemmChoice{};
                if (m == static_cast<int64_t>(packed_tokens.size())) chosen.insert({n, k, transposed});
                return ops::Nf4GemmChoice{Kernel::portable, m <= 8 ? 1 : 2, 2, 8};
            };
        return r;
    }
    double tolerance() const { return on_gpu() ? 2e-2 : 1e-5; }

    static constexpr int64_t few = 16;
    std::set<std::tuple<int64_t, int64_t, bool>> chosen;
};

TEST_P(PackedTest, ScoresEqualThoseOfExpandedWeights) {
    const fs::path folder = model_folder("tiny_llama/nf4_dq");
    const LoadedModel packed = load_model(folder, request(true, false)),
                      plain = load_model(folder, request(false, false));
    // Many tokens expand, few read tiles, and back: what the scratch holds must not be mistaken.
    Row many = packed_tokens;
    many.insert(many.end(), packed_tokens.rbegin(), packed_tokens.rend());
    for (const Row& row : {packed_tokens, many, packed_tokens, many}) {
        const at::Tensor a = score_every_position(*packed.model, {row}).logits_TV,
                         b = score_every_position(*plain.model, {row}).logits_TV;
        EXPECT_LT(((a - b).norm() / b.norm()).item<double>(), tolerance()) << row.size() << " tokens";
    }
    EXPECT_EQ(chosen, (std::set<std::tuple<int64_t, int64_t, bool>>{{512, 256, false}, {256, 256, false}}));
}

TEST_P(PackedTest, ContinuesAPromptAsExpandedWeightsDo) {
    const fs::path folder = model_folder("tiny_llama/nf4_dq");
    Row prompt = packed_tokens;
    prompt.insert(prompt.end(), packed_tokens.begin(), packed_tokens.end());  // longer than `few`
    const auto last_logits = [&](bool packs) {
        const LoadedModel model = load_model(folder, request(packs, false));
        Continued sequence(*model.model);
        std::vector<int32_t> made{sequence.next(prompt)};
        for (int i = 0; i < 8; ++i) made.push_back(sequence.next({packed_tokens[static_cast<std::size_t>(i)]}));
        return made;
    };
    const std::vector<int32_t> packed = last_logits(true), plain = last_logits(false);
    if (on_gpu()) {
        int same = 0;
        for (std::size_t i = 0; i < plain.size(); ++i) same += packed[i] == plain[i];
        EXPECT_GE(same, 7);  // bf16: near ties may fall either way
    } else {
        EXPECT_EQ(packed, plain);
    }
}

TEST_P(PackedTest, GradientsEqualThoseOfExpandedWeights) {
    const fs::path folder = model_folder("tiny_llama/nf4_dq");
    const auto gradients = [&](bool packs) {
        const LoadedModel model = load_model(folder, request(packs, true));
        weights::Parameters& parameters = *model->parameters();
        at::manual_seed(5);
        std::map<std::string, at::Tensor> result;
        for (const weights::Parameter& p : parameters.table().parameters()) {
            if (p.kind == weights::Parameter::Kind::lora_b) parameters.value(p).copy_(at::randn(p.shape) * 0.05);
        }
        model->parameters_changed();
        data::StepBatch batch;
        batch.micro = {every_position({packed_tokens})};
        batch.tokens = batch.labels = batch.micro[0].labels;
        train::Stepper stepper(*model.ctx, *model.model, {});
        stepper.issue(batch, 1, /*learning_rate=*/0.0);
        while (stepper.take(/*must=*/true)) {
        }
        for (const weights::Parameter& p : parameters.table().parameters())
            result[p.name] = parameters.gradient(p).cpu().clone();
        return result;
    };
    const auto packed = gradients(true), plain = gradients(false);
    for (const auto& [name, gradient] : plain) {
        EXPECT_GT(gradient.norm().item<double>(), 0) << name;
        EXPECT_LT(((packed.at(name) - gradient).norm() / gradient.norm()).item<double>(), tolerance()) << name;
    }
    EXPECT_EQ(chosen, (std::set<std::tuple<int64_t, int64_t, bool>>{
                          {512, 256, false}, {512, 256, true}, {256, 256, false}, {256, 256, true}}));
}

/// All of whose matrices lie in tiles.
fs::path model_of_whole_tiles(const fs::path& folder) {
    const std::string config = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
        "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "vocab_size": 1024, "max_position_embeddings": 64, "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "bfloat16"})";
    formats::write_random_model({.spec = formats::parse_model_spec(config, "tiles"), .seed = 3407}, folder);
    return folder;
}

TEST_P(PackedTest, AdaptersBesideTilesCountAsThoseOfTheSlot) {
    const ScratchFolder folder;
    const fs::path model_folder = model_of_whole_tiles(folder.path());
    Row many = packed_tokens;
    many.insert(many.end(), packed_tokens.rbegin(), packed_tokens.rend());
    int64_t resident = 0;
    const auto logits = [&](bool stay, double b) {
        model::LoadRequest asked = request(/*packed=*/true, /*trains=*/false);
        asked.lora = request(true, true).lora;
        asked.tails_may_stay = stay;
        const LoadedModel model = load_model(model_folder, asked);
        resident = model->parts().resident_memory->plan().total_bytes();
        weights::Parameters& parameters = *model->parameters();
        at::manual_seed(5);
        for (const weights::Parameter& p : parameters.table().parameters())
            if (p.kind == weights::Parameter::Kind::lora_b) parameters.value(p).copy_(at::randn(p.shape) * b);
        model->parameters_changed();
        std::vector<at::Tensor> of_passes;
        for (const Row& row : {packed_tokens, many, packed_tokens})
            of_passes.push_back(score_every_position(*model.model, {row}).logits_TV);
        return at::cat(of_passes);
    };
    const at::Tensor beside = logits(true, 0.05);
    const int64_t most = resident;
    const at::Tensor in_slot = logits(false, 0.05);
    EXPECT_LT(resident, most) << "nothing lay beside the tiles";
    EXPECT_LT(((beside - in_slot).norm() / in_slot.norm()).item<double>(), tolerance());
    EXPECT_GT(((beside - logits(true, 0)).norm() / in_slot.norm()).item<double>(), 0.05) << "the adapters must matter";
}

INSTANTIATE_TEST_SUITE_P(All, PackedTest, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
