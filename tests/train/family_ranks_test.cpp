// Model families on ranks, against one process.
#include "train/families_support.h"

namespace unsloth {
namespace {

using namespace test;

/// What each family adds to Llama, in a model of sizes that ranks divide.
const std::vector<Kind> family_kinds = {
    {"granite", "granite", R"("embedding_multiplier": 1.75, "attention_multiplier": 0.11, "residual_multiplier": 0.45,
         "logits_scaling": 3.0, "tie_word_embeddings": true)"},
    {"ministral3", "ministral3", R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0,
         "mscale_all_dim": 1.0, "original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.3})"},
    {"smollm3", "smollm3", R"("no_rope_layers": [1, 0], "tie_word_embeddings": true)"},
    {"phi3", "phi3", R"("partial_rotary_factor": 0.125, "original_max_position_embeddings": 8, "sliding_window": 6,
         "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3],
         "long_factor": [1.5, 2.0, 3.0, 4.0]})"},
    {"gemma3", "gemma3_text", R"("sliding_window": 4, "sliding_window_pattern": 2, "query_pre_attn_scalar": 50)"},
    {"olmo3", "olmo3", R"("sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
         "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8})"},
    {"qwen3_moe", "qwen3_moe", R"("num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "mlp_only_layers": [0], "norm_topk_prob": false)"},
    {"gpt_oss", "gpt_oss", R"("num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 4,
         "swiglu_limit": 0.02, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": false,
         "original_max_position_embeddings": 8})"},
    {"qwen3_5", "qwen3_5_text", R"("layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
         "linear_num_value_heads": 8, "linear_key_head_dim": 16, "linear_value_head_dim": 24)"}};

/// Experts have neither adapters nor a whole training yet.
bool has_experts(const Kind& kind) {
    return kind.type == "qwen3_moe" || kind.type == "gpt_oss";
}

class FamilyMeshTest : public MeshTest {};

TEST_F(FamilyMeshTest, RanksTrainAsOneProcess) {
    for (Kind kind : family_kinds)
        for (const bool full : {false, true}) {
            if (full && has_experts(kind)) continue;
            kind.name += full ? " full" : "";
            kind.flags = full                          ? Flags{"--lora.finetuning_type", "full"}
                         : has_experts(kind)           ? attention_adapters
                         : kind.type == "qwen3_5_text" ? hybrid_adapters
                                                       : all_adapters;
            const Result one = train_rank(config(kind), nullptr, 2, 2);
            for (const char* const way : {"tp", "cp", "pp", "dp"}) {
                const std::string text = cat(kind.name, " ", way);
                if (way == std::string("tp") && kind.type == "olmo3") {
                    const spec::ModelSpec whole = formats::parse_model_spec(config_json(kind), kind.name);
                    EXPECT_THROW(spec::slice(whole, {.rank = 0, .size = 2}), Error) << text;
                    continue;
                }
                const config::LoadedConfig loaded =
                    config(kind, way == std::string("dp") ? Flags{} : Flags{cat("--distributed.", way, "_size"), "2"});
                for (const Result& rank : train_ranks(loaded, 2, 2, 2)) {
                    expect_same_course(rank, one, text);
                    EXPECT_EQ(rank.router_loads, one.router_loads) << text;
                }
            }
        }
}

TEST_F(FamilyMeshTest, RecomputedLayersTrainTheSame) {
    for (Kind kind : family_kinds) {
        kind.flags = has_experts(kind) ? attention_adapters : all_adapters + Flags{"--lora.use_dora", "true"};
        const Result kept = train_rank(config(kind, {"--training.gradient_checkpointing", "none"}), nullptr, 2);
        for (const char* const keep : {"mlp", "attention", "full", "full+offload"}) {
            const Result got = train_rank(config(kind, {"--training.gradient_checkpointing", keep}), nullptr, 2);
            EXPECT_EQ(got.losses, kept.losses) << kind.name << " " << keep;
            EXPECT_EQ(got.router_loads, kept.router_loads) << kind.name << " " << keep;
            expect_same_bits(got.values, kept.values);
        }
    }
}

}  // namespace
}  // namespace unsloth
