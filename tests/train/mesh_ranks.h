// Ranks that share a model's training in some mesh, as threads that meet at a real store, beside one process.
#pragma once

#include <numeric>
#include <thread>

#include "comm/ranks.h"
#include "train/support.h"
#include "unsloth/core/philox.h"
#include "unsloth/data/context_slice.h"
#include "unsloth/placement/loading.h"
#include "unsloth/placement/parallel.h"
#include "unsloth/placement/stages.h"
#include "unsloth/session/session.h"

namespace unsloth::test {

/// A model of sizes that four ranks divide, but not two key/value heads; slices of o and down that end where 4-bit
/// blocks do; a vocabulary whose slices differ.
struct Kind {
    std::string name, type, extra;
    bool nf4 = false;
    Flags flags;
    int layers = 2, positions = 64, vocabulary = 331;
};

inline std::string config_json(const Kind& kind) {
    const std::map<std::string, std::string> architectures = {
        {"llama", "LlamaForCausalLM"},        {"qwen3", "Qwen3ForCausalLM"},
        {"mistral", "MistralForCausalLM"},    {"granite", "GraniteForCausalLM"},
        {"phi3", "Phi3ForCausalLM"},          {"ministral3", "Ministral3ForCausalLM"},
        {"gemma3_text", "Gemma3ForCausalLM"}, {"smollm3", "SmolLM3ForCausalLM"},
        {"olmo3", "Olmo3ForCausalLM"},        {"qwen3_moe", "Qwen3MoeForCausalLM"},
        {"gpt_oss", "GptOssForCausalLM"},     {"qwen3_5_text", "Qwen3_5ForCausalLM"}};
    const std::string& architecture = architectures.at(kind.type);
    return R"({"architectures": [")" + architecture + R"("], "model_type": ")" + kind.type + R"(", "hidden_size": 64,
        "intermediate_size": 256, "num_hidden_layers": )" +
           std::to_string(kind.layers) +
           R"(, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "vocab_size": )" +
           std::to_string(kind.vocabulary) + R"(, "max_position_embeddings": )" + std::to_string(kind.positions) +
           R"(, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "torch_dtype": "float32", )" +
           kind.extra + "}";
}

inline const std::string qwen3_tied = R"("tie_word_embeddings": true, "attention_bias": false)";
/// A gated delta net in every second layer, of heads that four ranks divide.
inline const std::string qwen3_5_mixed =
    R"("full_attention_interval": 2, "linear_num_key_heads": 4, "linear_num_value_heads": 16,
       "linear_key_head_dim": 16, "linear_value_head_dim": 16)";
inline const std::string llama_biased = R"("tie_word_embeddings": false, "attention_bias": true, "mlp_bias": true)";
inline const Flags all_adapters = {"--lora.target_modules", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"};

inline const Flags hybrid_adapters = {
    "--lora.target_modules", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,in_proj_qkv,in_proj_z,out_proj"};

inline const Flags attention_adapters = {"--lora.target_modules", "q_proj,k_proj,v_proj,o_proj"};

/// A step of micro-batches of a row of three documents, and one whose first part has no labels; of `ranks` each has its
/// part of the micro-batches, and of these `context` its slices.
inline data::StepBatch step_batch(int64_t step, int micro_batches = 1, int rank = 0, int ranks = 1,
                                  data::ContextRank context = {}) {
    const std::vector<std::vector<int32_t>> documents = {{7, 5, 9}, {17}};
    data::StepBatch batch;
    for (int number = 0; number < micro_batches; ++number) {
        std::vector<data::Sample> samples;
        for (int32_t row = 0; row < 2; ++row) {
            data::Sample sample;
            sample.row = 2 * (step * micro_batches + number) + row;
            for (const int32_t length : documents[static_cast<std::size_t>(row)])
                for (int32_t t = 0; t < length; ++t) {
                    const uint32_t word = philox4x32(1, 2, static_cast<uint32_t>(sample.ids.size()),
                                                     static_cast<uint32_t>(sample.row), 0, 0)
                                              .w[0];
                    sample.ids.push_back(static_cast<int32_t>(word % 331));
                    sample.positions.push_back(t);
                }
            sample.labels = sample.ids;
            sample.segments = data::segments_at_zero(sample.positions);
            if (row == 1) std::fill_n(sample.labels.begin(), 6, data::ignore_label);
            samples.push_back(std::move(sample));
        }
        data::Batch micro = data::make_batch({samples.data(), 2});
        batch.labels += micro.labels;
        batch.tokens += micro.tokens();
        batch.rows += 2;
        micro = data::slice(micro, context);
        micro.token_order = data::sort_tokens(micro.ids_T);
        if (number % ranks == rank) batch.micro.push_back(std::move(micro));
    }
    return batch;
}

/// A rank's model and steps of so many micro-batches, all data-parallel ranks' together; `group` nullptr: one process.
class Rank {
  public:
    Rank(const config::LoadedConfig& loaded, comm::Group* group, int micro_batches = 1, int64_t row_tile = 0)
        : micro_batches_(micro_batches) {
        const config::DistributedOptions& distributed = loaded.config.distributed;
        if (group != nullptr)
            mesh_.emplace(*group, placement::choose_mesh(distributed, group->size()),
                          placement::several_chunks(distributed));
        const session::OpenedModel opened = session::open_model(loaded.config);
        model::LoadRequest request = placement::load_request(loaded, at::kCPU, /*trains=*/true);
        if (mesh_) request.tp = model::TensorParallel(mesh_->tp());
        if (mesh_) request.cp = model::ContextParallel(mesh_->cp());
        request.router_aux = loaded.config.training.router_aux_loss_coef.value_or(0) / micro_batches;
        context_ = request.cp.place();
        placement::size_for(request.sizes,
                            data::slice_limits({.tokens = 40, .segments = 4, .longest = 17, .labels = 40}, context_));
        request.run.head_tile = 8;  // several chunks
        request.run.row_tile = row_tile;
        if (const auto way = placement::layer_plan_of(loaded.config.training.gradient_checkpointing))
            request.run.layers = {*way};
        if (mesh_ && mesh_->pp() != nullptr)
            request.pp = placement::plan_pipeline(loaded.config, model::ModelPlan(opened.file, request), *mesh_, *group,
                                                  micro_batches / mesh_->shape().dp);
        const model::ModelPlan plan(opened.file, request);
        ctx_ = placement::make_context(loaded.config, plan);
        model_ = std::make_unique<model::Model>(*ctx_, plan.load(*ctx_));
        resident = plan.resident().total_bytes();
        const memory::Plan step = plan.step();
        for (const memory::Entry& entry : step.entries())
            if (entry.name == "x 1" || entry.name == "mid 1") kept_stream += entry.bytes;
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
                const auto name = static_cast<uint32_t>(std::hash<std::string>()(p.name));
                for (int64_t i = 0; i < p.elements(); ++i)
                    value[i] = 0.04F * unit_float(philox4x32(3, name, static_cast<uint32_t>(i), 0, 0, 0).w[0]) - 0.02F;
            }
        model_->parameters_changed();
    }
    train::StepResult step(int64_t number, double rate) {
        const int rank = mesh_ ? mesh_->at().dp : 0, ranks = mesh_ ? mesh_->shape().dp : 1;
        stepper_->issue(step_batch(number, micro_batches_, rank, ranks, context_), number, rate,
                        {.layer_norms = true, .router_loads = true});
        return *stepper_->take(/*must=*/true);
    }
    /// Of this rank's targets of a batch.
    double score() {
        const data::StepBatch step = step_batch(0, 1, 0, 1, context_);
        return model_->score(step.micro.front()).to(at::kDouble).sum().item<double>();
    }

    int64_t resident = 0, kept_stream = 0;

  private:
    int micro_batches_;
    data::ContextRank context_;
    std::optional<comm::Mesh> mesh_;
    std::unique_ptr<ops::Context> ctx_;
    std::unique_ptr<model::Model> model_;
    std::unique_ptr<train::Stepper> stepper_;
};

struct Result {
    std::vector<double> losses, norms;
    std::vector<std::pair<std::string, double>> layer_norms;  ///< of the first step
    train::RouterLoads router_loads;                          ///< the same
    Tensors gradients, values;                                ///< of the first step; after the last
    double score = 0;                                         ///< of all targets, before the first step
    int64_t resident = 0;
    int64_t kept_stream = 0;  ///< bytes of the residual stream that the second layer keeps
};

inline Result train_rank(const config::LoadedConfig& loaded, comm::Group* group, int steps, int micro_batches = 1,
                         int64_t row_tile = 0) {
    Rank rank(loaded, group, micro_batches, row_tile);
    rank.fill_b();
    Result result;
    result.resident = rank.resident;
    result.kept_stream = rank.kept_stream;
    result.score = rank.score();
    for (int64_t step = 1; step <= steps; ++step) {
        const train::StepResult taken = rank.step(step, 0.001);
        result.losses.push_back(taken.outcome.loss);
        result.norms.push_back(taken.outcome.grad_norm);
        if (step > 1) continue;
        result.gradients = copy_gradients(rank.parameters());
        result.layer_norms = taken.layer_norms;
        result.router_loads = taken.router_loads;
    }
    result.values = copy_values(rank.parameters());
    return result;
}

/// Of each rank.
inline std::vector<Result> train_ranks(const config::LoadedConfig& loaded, int size, int steps, int micro_batches = 1,
                                       int64_t row_tile = 0) {
    std::vector<Result> results(static_cast<std::size_t>(size));
    comm::on_ranks(size, [&](comm::Group& group) {
        results[static_cast<std::size_t>(group.rank())] = train_rank(loaded, &group, steps, micro_batches, row_tile);
    });
    return results;
}

class MeshTest : public ::testing::Test {
  protected:
    config::LoadedConfig config(const Kind& kind, const Flags& mesh = {}) {
        const fs::path path = folder / kind.name;
        if (!fs::exists(path)) {
            fs::create_directories(path);
            formats::RandomModel random{formats::parse_model_spec(config_json(kind), path.string()), kind.nf4, 3407,
                                        config_json(kind)};
            random.spec.dtype = spec::DType::f32;
            formats::write_random_model(random, path);
        }
        return make_config(Flags{"--model.path", path.string(), "--lora.r", "8", "--model.load_in_4bit", "false"} +
                           kind.flags + mesh);
    }
    ScratchFolder folder;
};

/// fp32 sums in another order: a few units of the last place a product, which 12 updates by Adam carry on.
inline void expect_same_course(const Result& got, const Result& one, const std::string& text) {
    ASSERT_EQ(got.losses.size(), one.losses.size());
    for (std::size_t step = 0; step < one.losses.size(); ++step) {
        EXPECT_NEAR(got.losses[step], one.losses[step], 2e-5 * one.losses[step]) << text << " step " << step + 1;
        EXPECT_NEAR(got.norms[step], one.norms[step], 1e-3 * one.norms[step]) << text << " step " << step + 1;
    }
    EXPECT_NEAR(got.norms[0], one.norms[0], 1e-5 * one.norms[0]) << text;
}

}  // namespace unsloth::test
