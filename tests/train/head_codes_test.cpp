// lm_head's products in 8 bit: where they are, and that they are products of the codes that they should be of.
#include "train/support.h"
#include "unsloth/model/embedding_and_head.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/gemm.h"

namespace unsloth {
namespace {

using namespace test;
using spec::CodedProducts;

struct Head {
    int64_t vocabulary = 1024;
    bool tied = false;
    std::string type = "bf16";  ///< that it is held in
};

/// A plan of a small model with random weights.
model::ModelPlan plan_of(
    const Head& head, CodedProducts fp8,
    const std::function<void(model::LoadRequest&)>& change = [](model::LoadRequest&) {}) {
    static const ScratchFolder folder;
    const fs::path at = folder / cat(head.vocabulary, head.tied ? " tied" : "");
    if (!fs::exists(at))
        random_nf4_model(at, cat(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": )",
                                 head.tied ? "true" : "false", R"(, "vocab_size": )", head.vocabulary, "}"));
    model::LoadRequest request;
    request.dtype = at::kBFloat16;
    request.coded = fp8;
    request.trains = true;
    request.precision = spec::PrecisionMap({{"lm_head", head.type}});
    if (head.tied) request.precision = {};
    request.lora.emplace();
    request.lora->target_modules = {"q_proj"};
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 64;
    request.sizes.segments = 1;
    request.run.head_tile = 40;  // two chunks, of which the second is shorter
    change(request);
    return {std::make_shared<const formats::WeightFile>(formats::WeightFile::open(at.string())), request};
}

// In training, of a frozen head whose rows fill a product's operands; the reason is told where it is not so.
TEST(HeadInCodes, IsWhereItCanBe) {
    const auto expect = [](const model::ModelPlan& plan, CodedProducts products, const std::string& told) {
        EXPECT_EQ(plan.request().sizes.head_coded, products);
        int64_t codes = 0;
        const memory::Plan resident = plan.resident();
        for (const memory::Entry& entry : resident.entries()) codes += entry.name.starts_with("lm_head") ? 1 : 0;
        const bool dx = head_dx_codes(products) != spec::Codes::none;
        const int64_t logits = products == CodedProducts::int8 ? 3 : forward_coded(products) ? 2 : 0;  // int8: factors
        EXPECT_EQ(codes, 1 + logits + (dx ? 2 : 0));  // with lm_head.weight
        EXPECT_NE(plan.base_description().find(told), std::string::npos) << plan.base_description();
    };
    for (const CodedProducts fp8 : {CodedProducts::dx, CodedProducts::both, CodedProducts::int8}) {
        SCOPED_TRACE(name_of(fp8));
        const std::string stays = "lm_head in BFloat16 as ";
        const char* const too = fp8 == CodedProducts::int8 ? ", lm_head's logits too" : ", lm_head too";
        expect(plan_of({}, fp8), fp8, too);
        expect(plan_of({.vocabulary = 1032}, fp8), CodedProducts::none, stays + "its 1032 rows are no multiple of 16");
        const auto of_two = [](auto& request) {
            request.tp = model::TensorParallel(spec::TensorRank{0, 2});
            request.precision = spec::PrecisionMap(
                {{"default", "bf16"}, {"lm_head", "bf16"}});  // blocks of 4 bit are wider than a rank's columns
        };
        expect(plan_of({}, fp8, of_two), fp8, too);
        expect(plan_of({.vocabulary = 1040}, fp8, of_two), CodedProducts::none,
               stays + "its 520 rows of a rank are no multiple of 16");
        expect(plan_of({}, fp8, [](auto& request) { request.lora->modules_to_save = {"lm_head"}; }),
               CodedProducts::none, stays + "it is trained");
        expect(plan_of({}, fp8, [](auto& request) { request.sizes.objective.fp32_logits = true; }), CodedProducts::none,
               stays + "its logits are float32");
        expect(plan_of({}, fp8, [](auto& request) { request.trains = false; }), CodedProducts::none,
               stays + "nothing is trained");
    }
    expect(plan_of({}, CodedProducts::none), CodedProducts::none, "");
}

/// Of a product's w, and of its x.
ops::CodedMatrix codes_of(ops::Context& ctx, const at::Tensor& w, spec::Codes kind) {
    ops::CodedMatrix codes{at::empty(w.sizes(), w.options().dtype(ops::type_of(kind))),
                           at::empty({w.size(0)}, w.options().dtype(at::kFloat))};
    if (kind == spec::Codes::int8) codes.factors = at::empty({w.size(1)}, w.options().dtype(at::kBFloat16));
    ops::quantize_rows(ctx, w, codes);
    return codes;
}
ops::CodedMatrix codes_of(ops::Context& ctx, const at::Tensor& x, const ops::CodedMatrix& w, spec::Codes kind) {
    const ops::CodedMatrix scratch{
        at::empty({x.numel()}, x.options().dtype(at::kByte)),
        at::empty({ops::scales_of(kind, x.size(0), x.size(1))}, x.options().dtype(at::kFloat))};
    const ops::CodedMatrix codes = ops::codes_for(w, scratch, x.size(0), x.size(1));
    ops::quantize_rows(ctx, x, codes);
    return codes;
}

/// Makes each chunk's products again, from the values that a head in bfloat16 would read.
class Watching final : public model::HeadObjective {
  public:
    Watching(at::Tensor lm_head_VD, CodedProducts fp8) : w_VD_(std::move(lm_head_VD)), fp8_(fp8) {}

    void chunk_loss(ops::Context& ctx, const model::Network& network, const model::MicroBatch& micro, int64_t first,
                    const at::Tensor& logits_CV, model::LogitsGradient gradient) override {
        const at::Tensor h_CD = micro.activations().head().h_nD.narrow(0, first, logits_CV.size(0));
        expect_product(ctx, h_CD, w_VD_, logits_CV, forward_codes(fp8_), "logits");
        HeadObjective::chunk_loss(ctx, network, micro, first, logits_CV, gradient);
        dlogits_.push_back(logits_CV.clone());
    }
    void weigh(ops::Context& ctx, const model::MicroBatch& micro, ops::Site) override {
        int64_t first = 0;
        for (const at::Tensor& dlogits_CV : dlogits_) {
            const int64_t rows = dlogits_CV.size(0);
            const at::Tensor dh_CD = micro.activations().head().h_nD.narrow(0, first, rows);
            expect_product(ctx, dlogits_CV, w_VD_.t().contiguous(), dh_CD, head_dx_codes(fp8_), "dx");
            first += rows;
        }
        EXPECT_EQ(dlogits_.size(), 2U);
    }
    bool weighs() const override { return false; }
    void upload(const data::Batch&, model::MicroBatch&) override {}
    void pass_over(ops::Context&) override {}

  private:
    /// Up to the rounding of sums in another order, which a product's form may have.
    static void expect_product(ops::Context& ctx, const at::Tensor& x, const at::Tensor& w, const at::Tensor& got,
                               spec::Codes kind, const char* what) {
        const auto distance = [&](const at::Tensor& from) {
            return ((got.to(at::kDouble) - from.to(at::kDouble)).norm() / got.to(at::kDouble).norm()).item<double>();
        };
        const at::Tensor plain = at::empty_like(got), coded = at::empty_like(got);
        ops::gemm(ctx, {.a = x, .b = w, .out = plain, .transpose_b = true});
        if (kind == spec::Codes::none) {
            EXPECT_LT(distance(plain), 2e-3) << what;
            return;
        }
        const ops::CodedMatrix w8 = codes_of(ctx, w, kind);
        ops::gemm_coded(ctx, {.x = codes_of(ctx, x, w8, kind), .w = w8, .out = coded});
        EXPECT_LT(distance(coded), 2e-3) << what;
        const bool int8 = kind == spec::Codes::int8;
        EXPECT_GT(distance(plain), int8 ? 0.004 : 0.01) << what;
        EXPECT_LT(distance(plain), int8 ? 0.02 : 0.06) << what;
    }

    at::Tensor w_VD_;
    CodedProducts fp8_;
    std::vector<at::Tensor> dlogits_;
};

template <class T>
at::Tensor on_device(const T& value, at::Device device) {
    return at::from_blob(const_cast<T*>(&value), {sizeof value}, at::kByte).clone().to(device);
}

class HeadProducts : public ::testing::TestWithParam<std::string> {};

// Of a head of its own, one that is the embedding, and one that is held in another type.
TEST_P(HeadProducts, AreOfItsCodes) {
    for (const Head& head : {Head{}, Head{.tied = true}, Head{.type = "int8"}, Head{.vocabulary = 1032}})
        for (const CodedProducts fp8 :
             {CodedProducts::none, CodedProducts::dx, CodedProducts::both, CodedProducts::int8}) {
            SCOPED_TRACE(cat(name_of(fp8), ", ", head.vocabulary, " ", head.type, head.tied ? ", tied" : ""));
            const model::ModelPlan plan =
                plan_of(head, fp8, [](auto& request) { request.device = ops::choose_device(GetParam()); });
            const at::Device device = plan.request().device;
            if (any(fp8) && !ops::coded_available(device, dx_codes(fp8)))
                GTEST_SKIP() << "this card has no such products";
            ops::Context ctx(device);
            model::Model model(ctx, plan.load(ctx));
            const at::Tensor scalars = on_device(spec::StepScalars{.inv_loss_divisor = 1.0F / 64, .loss_scale = 1.0F},
                                                 device),
                             outcome = on_device(spec::StepOutcome{0, 0, 0, 0, spec::all_finite}, device);
            ctx.scalars = static_cast<const spec::StepScalars*>(scalars.const_data_ptr());
            ctx.outcome = static_cast<spec::StepOutcome*>(outcome.mutable_data_ptr());
            const weights::StoredWeight& stored = model.parts().network.embedding_and_head.lm_head_VD;
            const at::Tensor w_VD = at::empty({head.vocabulary, 64}, at::TensorOptions(at::kBFloat16).device(device));
            weights::expand(ctx, stored, w_VD);
            std::vector<int32_t> ids;
            for (int32_t t = 0; t < 64; ++t) ids.push_back((37 * t + t * t) % 1000);
            const data::Batch batch = every_position({ids});
            Watching objective(w_VD, plan.request().sizes.head_coded);
            model.train(std::span(&batch, 1), objective);
        }
}

INSTANTIATE_TEST_SUITE_P(All, HeadProducts, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
