// A base whose experts lie in MXFP4: the run that the same values in bf16 give, wherever the layers lie.
#include "train/mxfp4_cases.h"

namespace unsloth {
namespace {

using namespace test;

class Mxfp4Base : public ::testing::Test {
  protected:
    Mxfp4Base() { write_mxfp4_models(mxfp4_spec(), packed_, plain_); }
    static model::ModelPlan plan_of(const fs::path& folder, const model::LoadRequest& request) {
        return {std::make_shared<const formats::WeightFile>(formats::WeightFile::open(folder.string())), request};
    }
    static model::LoadRequest request(const std::vector<spec::Place>& layers_at = {}) {
        return mxfp4_request(at::kCPU, at::kFloat, layers_at);
    }
    static spec::PrecisionMap precision(const std::string& module, const std::string& type) {
        return spec::PrecisionMap(std::vector<std::pair<std::string, std::string>>{{module, type}});
    }
    ScratchFolder folder_;
    const fs::path packed_ = folder_ / "packed", plain_ = folder_ / "plain";
};

TEST_F(Mxfp4Base, TrainsAsItsValuesInBf16FromEverywhere) {
    using spec::Place;
    const Mxfp4Run expected = run_mxfp4(plain_, request());
    EXPECT_GT(expected.gradients_P.abs().max().item<float>(), 0.0F);
    for (const std::vector<Place>& places :
         {std::vector<Place>{}, {Place::host, Place::host, Place::host}, {Place::device, Place::disk, Place::host}}) {
        SCOPED_TRACE(places.empty() ? "resident" : "elsewhere");
        model::LoadRequest there = request(places);
        there.offload_folder = (folder_ / "offload").string();
        const Mxfp4Run run = run_mxfp4(packed_, there);
        EXPECT_EQ(run.losses, expected.losses);
        EXPECT_TRUE(same_bits(run.gradients_P, expected.gradients_P));
        EXPECT_TRUE(same_bits(run.logits_TV, expected.logits_TV));
    }
    EXPECT_EQ(generated_in_mxfp4(packed_, request()), generated_in_mxfp4(plain_, request()));
}

TEST_F(Mxfp4Base, IsPlannedInItsBytes) {
    const model::ModelPlan plan = plan_of(packed_, request());
    std::map<std::string, int64_t> bytes;
    const memory::Plan resident = plan.resident();
    for (const memory::Entry& entry : resident.entries()) bytes[entry.name] = entry.bytes;
    const auto rounded = [](int64_t count) { return (count + 511) / 512 * 512; };
    const int64_t matrix = rounded(96 * 32 / 2) + rounded(96 * 32 / 32) + rounded(4 * (16 + 256));
    EXPECT_EQ(bytes.count("layer 0 base"), 0U) << "bf16 stays in the file's map";
    EXPECT_EQ(bytes["layer 1 base"], 3 * 3 * matrix);
    EXPECT_NE(plan.base_description().find("18 linears in 4 bit (mxfp4) as they lie"), std::string::npos)
        << plan.base_description();
}

TEST_F(Mxfp4Base, StaysBesideOtherTypes) {
    model::LoadRequest in_4bit = request();
    in_4bit.load_in_4bit = true;
    const std::string description = plan_of(packed_, in_4bit).base_description();
    EXPECT_NE(description.find("18 linears in 4 bit (mxfp4)"), std::string::npos) << description;
    EXPECT_NE(description.find("15 linears in 4 bit (nf4)"), std::string::npos) << description;
    model::LoadRequest in_16_bits = request();
    in_16_bits.precision = precision("model.layers.1.mlp", "bf16");
    EXPECT_EQ(run_mxfp4(packed_, in_16_bits).losses, run_mxfp4(plain_, request()).losses);
}

TEST_F(Mxfp4Base, IsNotQuantisedTwiceNorReadFromTheCheckpointInPlace) {
    const auto expect_refused = [&](const char* id, const char* what, const model::LoadRequest& asked) {
        try {
            plan_of(packed_, asked);
            ADD_FAILURE() << what << " was taken";
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), id) << error.what();
            EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
        }
    };
    model::LoadRequest twice = request();
    twice.precision = precision("default", "nf4");
    expect_refused("model.precision", "which is in mxfp4", twice);
    expect_refused("model.device-map", "is put into another order",
                   request({spec::Place::device, spec::Place::disk, spec::Place::device}));
}

}  // namespace
}  // namespace unsloth
