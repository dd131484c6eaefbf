// How the flat gradients are cut for the sums of several ranks.
#include "unsloth/model/gradient_buckets.h"
#include "model/support.h"

namespace unsloth {
namespace {

using namespace test;
using model::cut_gradients;
using model::GradientStretch;
using weights::ParameterTable;

spec::ModelSpec spec_of(const std::string& name) {
    return formats::WeightFile::open(model_folder(name).string()).spec;
}

ParameterTable lora_table(const spec::ModelSpec& spec, const std::vector<std::string>& modules_to_save) {
    spec::LoraSpec lora{
        .r = 8, .target_modules = {"q_proj", "o_proj", "down_proj"}, .modules_to_save = modules_to_save};
    return ParameterTable::lora(spec, spec::resolve_lora(lora, spec), modules_to_save);
}

/// Every element once, in the order in which the backward pass completes them, and no bucket of several layers above
/// its size.
void expect_whole(const ParameterTable& table, const std::vector<GradientStretch>& cut) {
    std::vector<GradientStretch> by_place = cut;
    std::sort(by_place.begin(), by_place.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    int64_t end = 0;
    for (const GradientStretch& stretch : by_place) {
        EXPECT_EQ(stretch.begin, end);
        EXPECT_LT(stretch.begin, stretch.end);
        end = stretch.end;
    }
    EXPECT_EQ(end, table.flat_elements());
    for (std::size_t i = 1; i < cut.size(); ++i) EXPECT_GE(cut[i - 1].unit, cut[i].unit);
    for (const weights::Parameter& p : table.parameters())
        for (const GradientStretch& stretch : cut)
            if (p.offset >= stretch.begin && p.offset < stretch.end && p.id.layer >= 0) {
                EXPECT_LE(stretch.unit, weights::layer_unit(p.id.layer)) << p.name;
            }
}

TEST(GradientBuckets, ALayerEachWhenSmall) {
    UNSLOTH_NEEDS_XZ();
    const spec::ModelSpec spec = spec_of("small_llama/bf16");
    const ParameterTable table = lora_table(spec, {});
    const std::vector<GradientStretch> cut = cut_gradients(table, 1);
    ASSERT_EQ(static_cast<int64_t>(cut.size()), spec.num_layers);
    EXPECT_EQ(cut.front().unit, spec.num_layers) << "the last layer";
    EXPECT_EQ(cut.back().unit, weights::layer_unit(0));
    expect_whole(table, cut);
}

TEST(GradientBuckets, JoinedUpToTheSize) {
    UNSLOTH_NEEDS_XZ();
    const spec::ModelSpec spec = spec_of("small_llama/bf16");
    const ParameterTable table = lora_table(spec, {});
    const int64_t whole = table.flat_elements() * 4;
    EXPECT_EQ(cut_gradients(table, whole).size(), 1U);
    const std::vector<GradientStretch> halves = cut_gradients(table, whole / 2);
    EXPECT_EQ(halves.size(), 2U);
    for (const GradientStretch& stretch : halves) EXPECT_LE(4 * (stretch.end - stretch.begin), whole / 2);
    expect_whole(table, halves);
}

TEST(GradientBuckets, HeadFirstEmbeddingsLast) {
    UNSLOTH_NEEDS_XZ();
    const spec::ModelSpec spec = spec_of("small_llama/bf16");
    const int head = weights::head_unit(static_cast<int>(spec.num_layers));
    for (const ParameterTable& table : {lora_table(spec, {"embed_tokens", "lm_head"}), ParameterTable::full(spec)}) {
        const std::vector<GradientStretch> cut = cut_gradients(table, int64_t{1} << 40);
        ASSERT_EQ(cut.size(), 3U);
        EXPECT_EQ(cut[0].unit, head);
        EXPECT_EQ(cut[1].unit, weights::layer_unit(0));
        EXPECT_EQ(cut[2].unit, weights::embedding_unit);
        expect_whole(table, cut);
    }
    const spec::ModelSpec tied = spec_of("llama_tied");
    const std::vector<GradientStretch> cut = cut_gradients(ParameterTable::full(tied), 1);
    EXPECT_EQ(cut.back().unit, weights::embedding_unit)
        << "the head's gradient of a tied matrix is only complete with the embeddings'";
    expect_whole(ParameterTable::full(tied), cut);
}

}  // namespace
}  // namespace unsloth
