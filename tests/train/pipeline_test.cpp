// The ranks of a pipeline train as one process does, alone and with tensor and data parallel.
#include "unsloth/model/pipeline.h"
#include "unsloth/session/session.h"

#include "train/mesh_ranks.h"

namespace unsloth {
namespace {

using namespace test;

constexpr int pipeline_steps = 12, micro_batches = 8;

struct PipelineLayout {
    int pp = 2, tp = 1, dp = 1;
    bool interleaved = false;
    int in_flight = 0;
    int size() const { return pp * tp * dp; }
    Flags flags() const {
        Flags flags = {"--distributed.pp_size", std::to_string(pp), "--distributed.tp_size", std::to_string(tp)};
        if (interleaved) flags = flags + Flags{"--distributed.pipeline_schedule", "interleaved"};
        if (in_flight > 0) flags = flags + Flags{"--distributed.pipeline_micro_batches", std::to_string(in_flight)};
        return flags;
    }
    std::string text(const Kind& kind) const {
        return cat(kind.name, " pp ", pp, " tp ", tp, " dp ", dp, interleaved ? " interleaved" : "", " in flight ",
                   in_flight);
    }
};

class PipelineTest : public MeshTest {
  protected:
    /// What each stage trains is what one process trains of it; together the stages have all.
    void expect_as_one_process(const Kind& kind, const std::vector<PipelineLayout>& layouts) {
        const Result one = train_rank(config(kind), nullptr, pipeline_steps, micro_batches);
        for (const PipelineLayout& layout : layouts) {
            const std::string text = layout.text(kind);
            const std::vector<Result> ranks =
                train_ranks(config(kind, layout.flags()), layout.size(), pipeline_steps, micro_batches);
            std::set<std::string> names;
            for (int rank = 0; rank < layout.size(); ++rank) {
                const Result& got = ranks[static_cast<std::size_t>(rank)];
                const std::string of_rank = cat(text, " rank ", rank);
                expect_same_course(got, one, of_rank);
                EXPECT_EQ(got.losses, ranks[0].losses) << of_rank;
                EXPECT_EQ(got.norms, ranks[0].norms) << of_rank;
                EXPECT_LT(got.resident, one.resident) << of_rank;
                const bool last = rank >= layout.size() - layout.tp * layout.dp;
                EXPECT_NEAR(got.score, last ? one.score : 0, 1e-5 * one.score) << of_rank;
                ASSERT_EQ(got.layer_norms.size(), one.layer_norms.size()) << of_rank;
                for (std::size_t i = 0; i < one.layer_norms.size(); ++i) {
                    EXPECT_EQ(got.layer_norms[i].first, one.layer_norms[i].first);
                    EXPECT_NEAR(got.layer_norms[i].second, one.layer_norms[i].second, 1e-5 * one.layer_norms[i].second)
                        << of_rank << " " << one.layer_norms[i].first;
                }
                for (const auto& [name, gradient] : got.gradients) {
                    names.insert(name);
                    EXPECT_GT(l2(gradient), 0) << name;
                    EXPECT_LE(relative_frobenius(gradient, one.gradients.at(name)), 2e-5) << of_rank << " " << name;
                }
                for (const auto& [name, value] : ranks[0].values)  // tied embeddings, at both ends
                    if (const auto same = got.values.find(name); same != got.values.end())
                        expect_same_bits({*same}, {{name, value}});
            }
            EXPECT_EQ(names.size(), one.gradients.size()) << text;
        }
    }
};

TEST_F(PipelineTest, AdaptersOverNf4WithDropoutTrainAsInOneProcess) {
    const Kind kind{"lora_nf4", "llama", llama_biased, true, all_adapters + Flags{"--lora.lora_dropout", "0.1"}, 8};
    expect_as_one_process(kind, {{.pp = 4},
                                 {.pp = 2, .interleaved = true},
                                 {.pp = 4, .interleaved = true},
                                 {.pp = 4, .in_flight = 2},
                                 {.pp = 2, .tp = 2},
                                 {.pp = 2, .dp = 2}});
}

TEST_F(PipelineTest, TiedEmbeddingsAreTrainedAtBothEnds) {
    const Kind kind{"full_tied", "qwen3", qwen3_tied, false, {"--lora.finetuning_type", "full"}, 4};
    expect_as_one_process(
        kind, {{.pp = 2}, {.pp = 4}, {.pp = 2, .interleaved = true}, {.pp = 2, .tp = 2}, {.pp = 2, .dp = 2}});
}

TEST_F(PipelineTest, HybridLayersAreSharedByStagesAndTheirRanks) {
    const std::string type = "qwen3_5_text";
    expect_as_one_process({"hybrid", type, qwen3_5_mixed, true, hybrid_adapters, 4},
                          {{.pp = 2, .tp = 2}, {.pp = 2, .tp = 2, .interleaved = true}});
    expect_as_one_process({"hybrid_full", type, qwen3_5_mixed, false, {"--lora.finetuning_type", "full"}, 4},
                          {{.pp = 2, .tp = 2, .dp = 2}});
}

TEST_F(PipelineTest, SavedModulesLieAtTheEnds) {
    const Kind kind{"lora_saved",
                    "qwen3",
                    qwen3_tied,
                    false,
                    all_adapters + Flags{"--lora.modules_to_save", "embed_tokens,lm_head",
                                         "--training.gradient_checkpointing", "full"},
                    4};
    expect_as_one_process(kind, {{.pp = 4}, {.pp = 2, .interleaved = true}});
}

/// As GPUs that are not alike, or that something else takes a part of.
TEST_F(PipelineTest, StagesFitWhatEachRankHas) {
    const Kind kind{"sizes", "llama", llama_biased, true, all_adapters, 8};
    constexpr int64_t plenty = std::numeric_limits<int64_t>::max();
    for (const bool interleaved : {false, true}) {
        const config::LoadedConfig loaded = config(kind, PipelineLayout{.pp = 2, .interleaved = interleaved}.flags());
        const session::OpenedModel opened = session::open_model(loaded.config);
        model::LoadRequest request = placement::load_request(loaded, at::kCPU, /*trains=*/true);
        placement::size_for(request.sizes, {.tokens = 40, .segments = 4, .longest = 17, .labels = 40});
        request.run = {.layers = {{spec::Keep::input}}, .head_tile = 8};
        const model::ModelPlan whole(opened.file, request);
        const model::PipelineShape shape = placement::pipeline_shape(loaded.config, kind.layers, micro_batches);
        const auto cut = [&](std::vector<int64_t> budgets) {
            return placement::cut_stages(loaded.config, whole, shape, planner::find_card("H200"), budgets);
        };
        const auto bytes = [&](const std::vector<spec::LayerRange>& ranges, int rank) {
            model::LoadRequest of_rank = request;
            of_rank.pp = model::Pipeline(nullptr, {rank, shape.ranks, ranges}, shape);
            return model::ModelPlan(opened.file, of_rank).total_bytes();
        };
        const auto layers = [&](const std::vector<spec::LayerRange>& ranges, int rank) {
            return spec::Stage{rank, shape.ranks, ranges}.layers(kind.layers).size();
        };
        const auto even = cut({plenty, plenty});
        for (const int small : {0, 1}) {
            std::vector<int64_t> budgets(2, plenty);
            budgets[static_cast<std::size_t>(small)] = bytes(even, small) - 1;
            const auto fitted = cut(budgets);
            EXPECT_EQ(layers(fitted, small), layers(even, small) - 1) << interleaved << " rank " << small;
            EXPECT_LE(bytes(fitted, small), budgets[static_cast<std::size_t>(small)]) << interleaved;
        }
        EXPECT_EQ(cut({0, plenty}), even) << "the plan says what does not fit";
    }
}

}  // namespace
}  // namespace unsloth
