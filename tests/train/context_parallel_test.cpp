// Ranks that share the rows' tokens train as one process does, alone and with every other way to share the work.
#include "unsloth/model/context_parallel.h"

#include "train/mesh_ranks.h"

namespace unsloth {
namespace {

using namespace test;

constexpr int context_steps = 12;

struct ContextLayout {
    int cp = 2, tp = 1, dp = 1, pp = 1;
    int size() const { return cp * tp * dp * pp; }
    Flags flags() const {
        return {"--distributed.cp_size", std::to_string(cp),      "--distributed.tp_size",
                std::to_string(tp),      "--distributed.pp_size", std::to_string(pp)};
    }
};

class ContextParallelTest : public MeshTest {
  protected:
    void expect_as_one_process(const Kind& kind, const std::vector<ContextLayout>& layouts, int micro_batches = 1) {
        const Result one = train_rank(config(kind), nullptr, context_steps, micro_batches);
        for (const ContextLayout& layout : layouts) {
            const std::string text =
                cat(kind.name, " cp ", layout.cp, " tp ", layout.tp, " dp ", layout.dp, " pp ", layout.pp);
            const std::vector<Result> ranks =
                train_ranks(config(kind, layout.flags()), layout.size(), context_steps, micro_batches);
            double score = 0;
            for (const Result& got : ranks) {
                score += got.score / (layout.tp * layout.dp);
                expect_same_course(got, one, text);
                EXPECT_EQ(got.losses, ranks[0].losses) << text;
                for (const auto& [name, gradient] : got.gradients) {
                    EXPECT_GT(l2(gradient), 0) << name;
                    EXPECT_LE(relative_frobenius(gradient, one.gradients.at(name)), 2e-5) << text << " " << name;
                }
                if (layout.pp > 1) continue;
                EXPECT_EQ(got.gradients.size(), one.gradients.size()) << text;
                expect_same_bits(got.values, ranks[0].values);
            }
            EXPECT_NEAR(score, one.score, 1e-5 * one.score) << text;
        }
    }
};

// Grouped queries in all of them; the rows' segments have 17, 9, 7 and 5 tokens, of which some chunks of eight are
// empty; the first part of a row has no labels, so that ranks have different numbers of targets.

TEST_F(ContextParallelTest, AdaptersOverNf4WithDropoutAndNoiseTrainAsInOneProcess) {
    const Kind kind{"lora_nf4", "llama", llama_biased, true,
                    all_adapters + Flags{"--lora.lora_dropout", "0.1", "--training.neftune_noise_alpha", "5"}};
    expect_as_one_process(kind, {{.cp = 2}, {.cp = 4}, {.cp = 2, .tp = 2}});
    expect_as_one_process(kind, {{.cp = 2, .dp = 2}, {.cp = 2, .pp = 2}, {.cp = 1, .tp = 2, .dp = 2}}, 4);
}

TEST_F(ContextParallelTest, TiedEmbeddingsTrainAsInOneProcess) {
    const Kind kind{"full_tied",
                    "qwen3",
                    qwen3_tied,
                    false,
                    {"--lora.finetuning_type", "full", "--training.gradient_checkpointing", "full"}};
    expect_as_one_process(kind, {{.cp = 2}, {.cp = 4}, {.cp = 2, .tp = 2}});
    expect_as_one_process(kind, {{.cp = 2, .dp = 2}}, 2);
}

TEST_F(ContextParallelTest, WindowsReachIntoOtherRanksChunks) {
    for (const char* const keep : {"none", "attention"}) {
        const Kind kind{cat("window_", keep), "mistral", R"("sliding_window": 4, "tie_word_embeddings": false)", false,
                        all_adapters + Flags{"--training.gradient_checkpointing", keep}};
        expect_as_one_process(kind, {{.cp = 2}, {.cp = 4}});
    }
}

/// Two layers of three have gated delta nets.
Kind hybrid_kind(const std::string& name, const Flags& flags) {
    const char* const sizes = R"("layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 24, "linear_conv_kernel_dim": 4)";
    Kind kind{name, "qwen3_5_text", sizes, false, flags};
    kind.layers = 3;
    return kind;
}

// Chunks of one to five tokens, many without any: rows before a chunk are in up to three others.
TEST_F(ContextParallelTest, StatesOfGatedDeltaNetsGoFromChunkToChunk) {
    const std::string adapters = all_adapters.back() + ",in_proj_qkv,in_proj_z,out_proj";
    for (const char* const keep : {"none", "attention", "full"}) {
        const Kind kind = hybrid_kind(cat("hybrid_", keep),
                                      {"--lora.target_modules", adapters, "--training.gradient_checkpointing", keep});
        expect_as_one_process(kind, {{.cp = keep == std::string("full") ? 4 : 2}, {.cp = 3}});
    }
    const Kind full = hybrid_kind("hybrid_full_training", {"--lora.finetuning_type", "full"});
    expect_as_one_process(full, {{.cp = 2}, {.cp = 4}});
    expect_as_one_process(full, {{.cp = 2, .dp = 2}, {.cp = 2, .pp = 2}}, 4);
}

TEST_F(ContextParallelTest, ARankWithoutTokensPassesStatesOn) {
    const auto score = [](Rank& rank, data::ContextRank place) {
        data::Sample sample;
        sample.ids = sample.labels = {5, 90, 17};
        sample.positions = {0, 1, 2};
        const data::Batch batch = data::slice(data::make_batch({&sample, 1}), place);
        return rank.model().score(batch).to(at::kDouble).sum().item<double>();
    };
    const Kind kind = hybrid_kind("few_tokens", all_adapters);
    Rank alone(config(kind), nullptr);
    const double one = score(alone, {});
    std::array<double, 4> parts{};
    const config::LoadedConfig shared = config(kind, {"--distributed.cp_size", "4"});
    comm::on_ranks(4, [&](comm::Group& group) {
        Rank rank(shared, &group);
        parts[static_cast<std::size_t>(group.rank())] = score(rank, {group.rank(), 4});
    });
    EXPECT_NEAR(std::accumulate(parts.begin(), parts.end(), 0.0), one, 1e-5 * one);
}

// Frequencies that follow the longest position of a batch, which another rank may have.
TEST_F(ContextParallelTest, PositionsAreThoseOfTheWholeRow) {
    Kind kind{"dynamic", "llama", R"("rope_scaling": {"rope_type": "dynamic", "factor": 4.0})", false, all_adapters};
    kind.positions = 8;
    expect_as_one_process(kind, {{.cp = 2}, {.cp = 4}});
}

TEST_F(ContextParallelTest, AModelTakesSlicesAlone) {
    const Kind kind{"whole", "llama", llama_biased, false, all_adapters};
    const config::LoadedConfig loaded = config(kind, {"--distributed.cp_size", "2"});
    comm::on_ranks(2, [&](comm::Group& group) {
        Rank rank(loaded, &group);
        EXPECT_THROW(rank.model().score(step_batch(0).micro.front()), CheckError);
    });
}

}  // namespace
}  // namespace unsloth
