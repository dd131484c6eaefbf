// A base whose experts lie in MXFP4: the run that the same values in bf16 give, wherever the layers lie, and by
// products that read tiles.
#include "common/mxfp4_models.h"
#include "train/step_matrix.h"

namespace unsloth {
namespace {

using namespace test;

struct Mxfp4Run {
    std::vector<float> losses;
    at::Tensor gradients_P, logits_TV;  ///< on the CPU
};

/// Two steps with adapters of attention and of experts, and what the model then says of a row.
Mxfp4Run trained(const fs::path& folder, model::LoadRequest request) {
    request.lora.emplace();
    request.lora->r = 8;
    request.lora->target_modules = {"q_proj", "o_proj"};
    request.lora->target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
    request.trains = true;
    request.optim = config::Optimizer::adamw_torch;
    request.sizes.deterministic = true;
    request.sizes.tokens = request.sizes.head_rows = 16 * matrix_rows;
    LoadedModel loaded = load_model(folder, request);
    loaded.ctx->deterministic = true;
    train::Stepper stepper(*loaded.ctx, *loaded.model, {});
    Mxfp4Run run;
    for (int step = 0; step < 2; ++step) {
        stepper.issue(matrix_batch({}, step, 0), step + 1, 0.01);
        while (const auto result = stepper.take(/*must=*/true)) run.losses.push_back(result->outcome.loss);
    }
    run.gradients_P = loaded->parameters()->state().grads_P.cpu().clone();
    run.logits_TV = score_every_position(*loaded.model, {matrix_row(3, true).ids}).logits_TV;
    return run;
}

class Mxfp4Base : public ::testing::TestWithParam<std::string> {
  protected:
    /// Hidden size and that of an expert.
    void write(int64_t hidden, int64_t width) const { write_mxfp4_models(mxfp4_spec(hidden, width), packed_, plain_); }
    bool on_gpu() const { return GetParam() != "cpu"; }

    model::LoadRequest request(const std::vector<spec::Place>& layers_at = {}) const {
        model::LoadRequest request;
        request.device = ops::choose_device(GetParam());
        request.dtype = on_gpu() ? at::kBFloat16 : at::kFloat;
        request.load_in_4bit = false;
        request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 64;
        request.sizes.segments = 8;
        request.run.head_tile = 16;
        for (const spec::Place place : layers_at) request.run.layers.push_back({.weights_at = place});
        return request;
    }
    /// For answers: experts' products read tiles.
    model::LoadRequest reading_tiles() const {
        model::LoadRequest tiles = request();
        tiles.sizes.training = false;
        tiles.nf4_chooser = [](int64_t, int64_t, int64_t, bool) {
            return ops::Nf4GemmChoice{ops::Nf4GemmChoice::Kernel::portable, 1, 2, 8};
        };
        return tiles;
    }
    model::ModelPlan plan_of(const model::LoadRequest& asked) const {
        return {std::make_shared<const formats::WeightFile>(formats::WeightFile::open(packed_.string())), asked};
    }
    static int64_t layer_bytes(const model::ModelPlan& plan, int layer) {
        const memory::Plan resident = plan.resident();
        for (const memory::Entry& entry : resident.entries())
            if (entry.name == cat("layer ", layer, " base")) return entry.bytes;
        return 0;
    }
    static spec::PrecisionMap precision(const std::string& module, const std::string& type) {
        return spec::PrecisionMap(std::vector<std::pair<std::string, std::string>>{{module, type}});
    }
    ScratchFolder folder_;
    const fs::path packed_ = folder_ / "packed", plain_ = folder_ / "plain";
};

int64_t in_image(int64_t bytes) {
    return (bytes + 511) / 512 * 512;
}

TEST_P(Mxfp4Base, TrainsAsItsValuesInBf16FromEverywhere) {
    using spec::Place;
    write(96, 32);
    const Mxfp4Run plain = trained(plain_, request()), resident = trained(packed_, request());
    const auto off = [](const at::Tensor& a, const at::Tensor& b) {
        return ((a - b).norm() / b.norm()).item<double>();
    };
    EXPECT_LE(off(resident.logits_TV, plain.logits_TV), on_gpu() ? 2e-2 : 0);
    EXPECT_LE(off(resident.gradients_P, plain.gradients_P), on_gpu() ? 5e-2 : 0);
    for (const std::vector<Place>& places :
         {std::vector<Place>{Place::host, Place::host, Place::host}, {Place::device, Place::disk, Place::host}}) {
        SCOPED_TRACE(places[0] == Place::host ? "host" : "everywhere");
        model::LoadRequest there = request(places);
        there.offload_folder = (folder_ / "offload").string();
        const Mxfp4Run run = trained(packed_, there);
        EXPECT_EQ(run.losses, resident.losses);
        EXPECT_TRUE(same_bits(run.gradients_P, resident.gradients_P));
        EXPECT_TRUE(same_bits(run.logits_TV, resident.logits_TV));
    }
}

TEST_P(Mxfp4Base, AnswersFromTiles) {
    write(128, 64);
    const std::vector<int32_t> ids = matrix_row(3, true).ids;
    const auto logits = [&](const fs::path& folder, const model::LoadRequest& asked) {
        return score_every_position(*load_model(folder, asked).model, {ids}).logits_TV;
    };
    const model::LoadRequest tiles = reading_tiles();
    EXPECT_EQ(layer_bytes(plan_of(tiles), 1) - layer_bytes(plan_of(request()), 1),
              3 * 3 * (in_image(2 * 2176) - in_image(4096) - in_image(256)))
        << "three experts' three matrices of two tiles";
    const at::Tensor read = logits(packed_, tiles), expanded = logits(packed_, request()),
                     plain = logits(plain_, request());
    const double bound = on_gpu() ? 2e-2 : 1e-5;
    EXPECT_LT(((read - plain).norm() / plain.norm()).item<double>(), bound);
    EXPECT_LT(((expanded - plain).norm() / plain.norm()).item<double>(), bound);
}

TEST_P(Mxfp4Base, IsPlannedInItsBytes) {
    write(96, 32);
    const model::ModelPlan plan = plan_of(request());
    const int64_t matrix = in_image(96 * 32 / 2) + in_image(96 * 32 / 32) + in_image(4 * (16 + 256));
    EXPECT_EQ(layer_bytes(plan, 1), layer_bytes(plan, 2));
    const int64_t attention = on_gpu() ? 2 * (in_image(2 * 64 * 96) + in_image(2 * 32 * 96)) : 0;  // else in the map
    EXPECT_EQ(layer_bytes(plan, 1), 3 * 3 * matrix + attention);
    EXPECT_NE(plan.base_description().find("18 linears in 4 bit (mxfp4) as stored"), std::string::npos)
        << plan.base_description();
}

TEST_P(Mxfp4Base, StaysBesideOtherTypes) {
    write(96, 32);
    model::LoadRequest in_4bit = request();
    in_4bit.load_in_4bit = true;
    const std::string description = plan_of(in_4bit).base_description();
    EXPECT_NE(description.find("18 linears in 4 bit (mxfp4)"), std::string::npos) << description;
    EXPECT_NE(description.find("15 linears in 4 bit (nf4)"), std::string::npos) << description;
    model::LoadRequest in_16_bits = request();
    in_16_bits.precision = precision("model.layers.1.mlp", "bf16");
    const Mxfp4Run run = trained(packed_, in_16_bits), plain = trained(plain_, request());
    EXPECT_LE(((run.logits_TV - plain.logits_TV).norm() / plain.logits_TV.norm()).item<double>(), on_gpu() ? 2e-2 : 0);
}

TEST_P(Mxfp4Base, IsNotQuantisedTwiceNorReadFromTheCheckpointInPlace) {
    write(96, 32);
    const auto expect_refused = [&](const char* id, const char* what, const model::LoadRequest& asked) {
        try {
            plan_of(asked);
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

INSTANTIATE_TEST_SUITE_P(Devices, Mxfp4Base, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
