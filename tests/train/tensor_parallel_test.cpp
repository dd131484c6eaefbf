// Tensor-parallel ranks train as one process does.
#include "unsloth/model/tensor_parallel.h"

#include "train/mesh_ranks.h"

namespace unsloth {
namespace {

using namespace test;

constexpr int tensor_steps = 12;

using TensorParallelTest = MeshTest;

void expect_as_one_process(const Result& got, const Result& one, const std::string& text) {
    EXPECT_NEAR(got.score, one.score, 1e-5 * one.score) << text;
    expect_same_course(got, one, text);
    EXPECT_EQ(got.router_loads, one.router_loads) << text;
    ASSERT_EQ(got.gradients.size(), one.gradients.size());
    for (const auto& [name, gradient] : one.gradients) {
        EXPECT_GT(l2(gradient), 0) << name;
        EXPECT_LE(relative_frobenius(got.gradients.at(name), gradient), 2e-5) << text << " " << name;
    }
}

const Flags expert_adapters =
    attention_adapters + Flags{"--lora.target_parameters", "mlp.experts.gate_up_proj,mlp.experts.down_proj"};

/// Of five experts that each rank has a slice of, with tokens that only make up for what four ranks do not divide.
const std::vector<Kind> kinds_with_experts = {
    {"experts_nf4", "qwen3_moe",
     R"("num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "mlp_only_layers": [0])", true,
     expert_adapters + Flags{"--training.router_aux_loss_coef", "0.5"}},
    {"experts_biased", "gpt_oss",
     R"("num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 4, "swiglu_limit": 0.02)", false,
     expert_adapters + Flags{"--training.gradient_checkpointing", "full"}},
};

TEST_F(TensorParallelTest, LossesAndGradientsAreThoseOfOneProcess) {
    std::vector<Kind> kinds = {
        {"lora_nf4", "llama", llama_biased, true, all_adapters + Flags{"--lora.lora_dropout", "0.1"}},
        {"lora_fp32", "qwen3", qwen3_tied, false,
         all_adapters + Flags{"--lora.modules_to_save", "embed_tokens,lm_head", "--training.neftune_noise_alpha", "5"}},
        {"dora_nf4", "llama", llama_biased, true, all_adapters + Flags{"--lora.use_dora", "true"}},
        {"full_tied", "qwen3", qwen3_tied, false, {"--lora.finetuning_type", "full"}},
        {"full_biases",
         "llama",
         llama_biased,
         false,
         {"--lora.finetuning_type", "full", "--training.gradient_checkpointing", "full"}},
    };
    const std::string phi = R"("partial_rotary_factor": 0.5, "tie_word_embeddings": false)";
    const Flags fused = {"--lora.target_modules", "qkv_proj,o_proj,gate_up_proj,down_proj"};
    kinds.push_back({"fused_nf4", "phi3", phi, true, fused + Flags{"--lora.lora_dropout", "0.1"}});
    kinds.push_back({"fused_dora", "phi3", phi, false, fused + Flags{"--lora.use_dora", "true"}});
    kinds.push_back({"fused_full", "phi3", phi, false, {"--lora.finetuning_type", "full"}});
    kinds.insert(kinds.end(), kinds_with_experts.begin(), kinds_with_experts.end());
    const std::string type = "qwen3_5_text";
    kinds.push_back({"hybrid_nf4", type, qwen3_5_mixed, true, hybrid_adapters + Flags{"--lora.lora_dropout", "0.1"}});
    kinds.push_back(
        {"hybrid_int8", type, qwen3_5_mixed, false, hybrid_adapters + Flags{"--model.load_in_8bit", "true"}});
    kinds.push_back({"hybrid_dora", type, qwen3_5_mixed, false, hybrid_adapters + Flags{"--lora.use_dora", "true"}});
    kinds.push_back({"hybrid_full", type, qwen3_5_mixed, false, {"--lora.finetuning_type", "full"}});
    for (const Kind& kind : kinds) {
        const Result one = train_rank(config(kind), nullptr, tensor_steps);
        int64_t resident = std::numeric_limits<int64_t>::max();
        for (const int size : {2, 4}) {
            const std::string text = cat(kind.name, " on ", size, " ranks");
            const std::vector<Result> results =
                train_ranks(config(kind, {"--distributed.tp_size", std::to_string(size)}), size, tensor_steps);
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

/// With data-parallel copies, and whatever layers keep, and where.
TEST_F(TensorParallelTest, HybridLayersTrainTheSameOnEveryMesh) {
    const Kind kind{
        "hybrid", "qwen3_5_text", qwen3_5_mixed, true, hybrid_adapters + Flags{"--lora.lora_dropout", "0.1"}, 4};
    const Flags two{"--distributed.tp_size", "2"};
    constexpr int few_steps = 4;
    const Result one = train_rank(config(kind), nullptr, few_steps, 2);
    for (const Result& rank : train_ranks(config(kind, two), 4, few_steps, 2)) expect_as_one_process(rank, one, "dp 2");
    const std::vector<Result> kept = train_ranks(config(kind, two), 2, few_steps, 2);
    for (const char* const keep : {"mlp", "attention", "full", "full+offload"}) {
        const Flags again{"--training.gradient_checkpointing", keep};
        for (const Result& rank : train_ranks(config(kind, two + again), 2, few_steps, 2)) {
            EXPECT_EQ(rank.losses, kept[0].losses) << keep;
            expect_same_bits(rank.values, kept[0].values);
        }
    }
}

/// Rows of dy are quantised as far as a rank has them: other codes, no worse ones. So are those of logits' gradients,
/// where slices of the vocabulary fill a product's operands, as those of 352 do.
TEST_F(TensorParallelTest, CodesOfSlicesAreAsNearAsThoseOfOneProcess) {
    std::vector<Kind> kinds(3, {"coded", "llama", llama_biased, true, all_adapters});
    kinds[1].name = "coded head", kinds[1].vocabulary = 352;
    kinds[2] = {"coded hybrid", "qwen3_5_text", qwen3_5_mixed, true, hybrid_adapters};
    for (const Kind& kind : kinds) {
        const Result exact = train_rank(config(kind), nullptr, 1);
        const auto distance = [&](const Result& got) {
            double squares = 0, of_exact = 0;
            for (const auto& [name, gradient] : exact.gradients) {
                squares += std::pow(l2(got.gradients.at(name) - gradient), 2);
                of_exact += std::pow(l2(gradient), 2);
            }
            return std::sqrt(squares / of_exact);
        };
        for (const char* const compute_dtype : {"fp8_backward", "fp8_both", "int8"}) {
            const Flags coded{"--model.compute_dtype", compute_dtype};
            const double one = distance(train_rank(config(kind, coded), nullptr, 1));
            EXPECT_GT(one, 0.005);
            for (const Result& rank : train_ranks(config(kind, coded + Flags{"--distributed.tp_size", "2"}), 2, 1)) {
                EXPECT_LT(distance(rank), 1.2 * one) << compute_dtype << ", " << kind.name;
                EXPECT_GT(distance(rank), 0.8 * one) << compute_dtype << ", " << kind.name;
                EXPECT_NEAR(rank.losses[0], exact.losses[0], 0.01 * exact.losses[0]);
            }
        }
    }
}

/// The 38 tokens have slices of 19 on two ranks and, with two more, of 10 on four; in tiles of 16 the last has 6 or 8.
TEST_F(TensorParallelTest, ARankHasItsSlicesOfTheResidualStream) {
    const std::vector<Kind> kinds = {
        {"lora", "llama", llama_biased, true, all_adapters + Flags{"--lora.lora_dropout", "0.1"}},
        {"full", "qwen3", qwen3_tied, false, {"--lora.finetuning_type", "full"}},
        {"hybrid_full", "qwen3_5_text", qwen3_5_mixed, false, {"--lora.finetuning_type", "full"}},
    };
    constexpr int few_steps = 4;
    for (const Kind& kind : kinds) {
        const Result one = train_rank(config(kind), nullptr, few_steps);
        for (const int size : {2, 4})
            for (const int64_t row_tile : {0, 16}) {
                const std::string text = cat(kind.name, " on ", size, " ranks, tiles of ", row_tile);
                const config::LoadedConfig loaded = config(kind, {"--distributed.tp_size", std::to_string(size)});
                const std::vector<Result> results = train_ranks(loaded, size, few_steps, 1, row_tile);
                expect_as_one_process(results[0], one, text);
                for (const Result& result : results) EXPECT_EQ(result.kept_stream, one.kept_stream / size) << text;
            }
    }
}

}  // namespace
}  // namespace unsloth
