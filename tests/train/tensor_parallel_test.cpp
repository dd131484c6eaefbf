// Tensor-parallel ranks train as one process does: threads that meet at a real store.
#include "unsloth/model/tensor_parallel.h"

#include <thread>

#include "comm/ranks.h"
#include "train/support.h"
#include "unsloth/core/philox.h"

namespace unsloth {
namespace {

using namespace test;

constexpr int steps = 12;

/// Sizes that four ranks divide, but not two key/value heads; slices of o and down that end where 4-bit blocks do; a
/// vocabulary whose slices differ.
struct Kind {
    std::string name, type, extra;
    bool nf4 = false;
    Flags flags;
};

std::string config_json(const Kind& kind) {
    const std::string architecture = kind.type == "llama" ? "LlamaForCausalLM" : "Qwen3ForCausalLM";
    return R"({"architectures": [")" + architecture + R"("], "model_type": ")" + kind.type + R"(", "hidden_size": 64,
        "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "vocab_size": 331, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "torch_dtype": "float32", )" +
           kind.extra + "}";
}

/// A row of three documents, and one whose first part has no labels.
data::StepBatch step_batch(int64_t step) {
    std::vector<data::Sample> samples;
    const std::vector<std::vector<int32_t>> documents[2] = {{{7, 5, 9}}, {{17}}};
    for (int32_t row = 0; row < 2; ++row) {
        data::Sample sample;
        sample.row = 2 * step + row;
        for (const int32_t length : documents[row].front())
            for (int32_t t = 0; t < length; ++t) {
                const uint32_t word =
                    philox4x32(1, 2, static_cast<uint32_t>(sample.ids.size()), static_cast<uint32_t>(sample.row), 0, 0)
                        .w[0];
                sample.ids.push_back(static_cast<int32_t>(word % 331));
                sample.positions.push_back(t);
            }
        sample.labels = sample.ids;
        if (row == 1) std::fill_n(sample.labels.begin(), 6, data::ignore_label);
        samples.push_back(std::move(sample));
    }
    data::StepBatch batch;
    batch.micro.push_back(data::make_batch({&samples[0], &samples[1]}));
    data::Batch& micro = batch.micro.front();
    micro.token_order = data::sort_tokens(micro.ids_T);
    batch.labels = micro.labels;
    batch.tokens = micro.tokens();
    batch.rows = 2;
    return batch;
}

/// A rank's model and steps; `group` nullptr: one process.
class Rank {
  public:
    Rank(const config::LoadedConfig& loaded, comm::Group* group) {
        const train::OpenedModel opened = train::open_model(loaded.config);
        model::LoadRequest request = train::load_request(loaded, at::kCPU, /*trains=*/true);
        if (group != nullptr) request.tp = model::TensorParallel(&group->all());
        request.sizes.tokens = request.sizes.head_rows = 40;
        request.sizes.longest = 17;
        request.sizes.segments = 4;
        request.run.head_tile = 8;  // several chunks
        const model::ModelPlan plan(opened.file, request);
        ctx_ = train::make_context(loaded.config, at::kCPU);
        model_ = std::make_unique<model::Model>(*ctx_, plan.load(*ctx_));
        resident = plan.resident().total_bytes();
        stepper_ = std::make_unique<train::Stepper>(*ctx_, *model_,
                                                    train::StepSettings{.max_grad_norm = 1, .seed = 5, .group = group});
    }

    weights::Parameters& parameters() { return *model_->parameters(); }
    model::Model& model() { return *model_; }
    /// B that is not zero, so that no gradient is.
    void fill_b() {
        for (const weights::Parameter& p : parameters().table().parameters())
            if (p.kind == weights::Parameter::Kind::lora_b) {
                auto* const value = parameters().value(p).mutable_data_ptr<float>();
                for (int64_t i = 0; i < p.elements(); ++i) {
                    const auto place = static_cast<uint32_t>(p.offset + i);
                    value[i] = 0.04F * unit_float(philox4x32(3, 4, place, 0, 0, 0).w[0]) - 0.02F;
                }
            }
        model_->parameters_changed();
    }
    train::StepResult step(int64_t number, double rate) {
        stepper_->issue(step_batch(number), number, rate);
        return *stepper_->take(/*must=*/true);
    }

    int64_t resident = 0;

  private:
    std::unique_ptr<ops::Context> ctx_;
    std::unique_ptr<model::Model> model_;
    std::unique_ptr<train::Stepper> stepper_;
};

struct Result {
    std::vector<double> losses, norms;
    Tensors gradients, values;  ///< of the first step; after the last
    double score = 0;           ///< of all targets, before the first step
    int64_t resident = 0;
};

Result train_rank(const config::LoadedConfig& loaded, comm::Group* group) {
    Rank rank(loaded, group);
    rank.fill_b();
    Result result;
    result.resident = rank.resident;
    result.score = rank.model().score(step_batch(0).micro.front()).to(at::kDouble).sum().item<double>();
    for (int64_t step = 1; step <= steps; ++step) {
        const train::StepResult taken = rank.step(step, 0.003);
        result.losses.push_back(taken.outcome.loss);
        result.norms.push_back(taken.outcome.grad_norm);
        if (step == 1) result.gradients = copy_gradients(rank.parameters());
    }
    result.values = copy_values(rank.parameters());
    return result;
}

class TensorParallelTest : public ::testing::Test {
  protected:
    config::LoadedConfig config(const Kind& kind) {
        const fs::path path = folder / kind.name;
        if (!fs::exists(path)) {
            fs::create_directories(path);
            formats::RandomModel random{formats::parse_model_spec(config_json(kind), path.string()), kind.nf4, 3407,
                                        config_json(kind)};
            random.spec.dtype = spec::DType::f32;
            formats::write_random_model(random, path);
        }
        return make_config(Flags{"--model.path", path.string(), "--lora.r", "8", "--model.load_in_4bit", "false"} +
                           kind.flags);
    }
    ScratchFolder folder;
};

/// fp32 sums in another order: a few units of the last place a product, which 12 updates by Adam carry on.
void expect_as_one_process(const Result& got, const Result& one, const std::string& text) {
    EXPECT_NEAR(got.score, one.score, 1e-5 * one.score) << text;
    for (int step = 0; step < steps; ++step) {
        EXPECT_NEAR(got.losses[step], one.losses[step], 2e-5 * one.losses[step]) << text << " step " << step + 1;
        EXPECT_NEAR(got.norms[step], one.norms[step], 1e-3 * one.norms[step]) << text << " step " << step + 1;
    }
    EXPECT_NEAR(got.norms[0], one.norms[0], 1e-5 * one.norms[0]) << text;
    ASSERT_EQ(got.gradients.size(), one.gradients.size());
    for (const auto& [name, gradient] : one.gradients) {
        EXPECT_GT(l2(gradient), 0) << name;
        EXPECT_LE(relative_frobenius(got.gradients.at(name), gradient), 2e-5) << text << " " << name;
    }
}

TEST_F(TensorParallelTest, LossesAndGradientsAreThoseOfOneProcess) {
    const std::string qwen3 = R"("tie_word_embeddings": true, "attention_bias": false)";
    const std::string llama = R"("tie_word_embeddings": false, "attention_bias": true, "mlp_bias": true)";
    const Flags adapters = {"--lora.target_modules", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"};
    const std::vector<Kind> kinds = {
        {"lora_nf4", "llama", llama, true, adapters + Flags{"--lora.lora_dropout", "0.1"}},
        {"lora_fp32", "qwen3", qwen3, false, adapters + Flags{"--lora.modules_to_save", "embed_tokens,lm_head"}},
        {"full_tied", "qwen3", qwen3, false, {"--lora.finetuning_type", "full"}},
        {"full_biases",
         "llama",
         llama,
         false,
         {"--lora.finetuning_type", "full", "--training.gradient_checkpointing", "full"}},
    };
    for (const Kind& kind : kinds) {
        const config::LoadedConfig loaded = config(kind);
        const Result one = train_rank(loaded, nullptr);
        int64_t resident = std::numeric_limits<int64_t>::max();
        for (const int size : {2, 4}) {
            const std::string text = cat(kind.name, " on ", size, " ranks");
            std::vector<Result> results(static_cast<std::size_t>(size));
            comm::on_ranks(size, [&](comm::Group& group) {
                results[static_cast<std::size_t>(group.rank())] = train_rank(loaded, &group);
            });
            expect_as_one_process(results[0], one, text);
            for (const Result& other : results) {
                EXPECT_EQ(other.losses, results[0].losses) << text;
                expect_same_bits(other.values, results[0].values);
            }
            EXPECT_LT(results[0].resident, resident) << text;
            resident = results[0].resident;
        }
    }
}

}  // namespace
}  // namespace unsloth
