// prune --experts: saliencies of the reference models of families with experts, against plain fp64 arithmetic.
#include <map>

#include "train/support.h"
#include "unsloth/commands/commands.h"
#include "unsloth/formats/load_plan.h"

namespace unsloth {
namespace {

using namespace test;
using Experts = engine_api::Calibration::Experts;

at::Tensor values_in_fp64(const formats::TensorSource& source) {
    at::Tensor values = at::empty(source.rule.shape, at::kFloat);
    source.read_f32(values.data_ptr<float>());
    return values.to(at::kDouble);
}

at::Tensor expert_output(const formats::WeightFile& file, spec::LinearId id, const at::Tensor& h_TD) {
    const auto linear = [&](spec::Projection projection, const at::Tensor& x) {
        id.projection = projection;
        const formats::TensorSource* const bias = file.tensors.bias(id);
        const at::Tensor y = at::matmul(x, values_in_fp64(file.tensors.linear(id)).t());
        return bias == nullptr ? y : y + values_in_fp64(*bias);
    };
    const at::Tensor gate = linear(spec::Projection::gate, h_TD), up = linear(spec::Projection::up, h_TD);
    if (file.spec.gate_activation == spec::GateActivation::silu)
        return linear(spec::Projection::down, at::silu(gate) * up);
    const double limit = file.spec.gate_limit;
    const at::Tensor clamped = gate.clamp_max(limit);
    return linear(spec::Projection::down, (up.clamp(-limit, limit) + 1) * clamped * at::sigmoid(1.702 * clamped));
}

/// Of a layer whose MLP reads h.
Experts plain_saliency(const formats::WeightFile& file, int layer, const at::Tensor& h_TD) {
    const spec::ExpertsSpec& experts = *file.spec.experts;
    at::Tensor logits_TE = at::matmul(h_TD, values_in_fp64(file.tensors.of(spec::TensorRole::router, layer)).t());
    if (experts.router_bias) logits_TE += values_in_fp64(file.tensors.of(spec::TensorRole::router_bias, layer));
    const auto [chosen_Tk, ids_Tk] = logits_TE.topk(experts.top_k);
    const at::Tensor weights_Tk = experts.weights == spec::RouterWeights::of_all
                                      ? at::softmax(logits_TE, 1).gather(1, ids_Tk)
                                      : at::softmax(chosen_Tk, 1);
    Experts found;
    for (int expert = 0; expert < static_cast<int>(experts.count); ++expert) {
        const at::Tensor norms_T = expert_output(file, {layer, spec::Projection::down, expert}, h_TD).norm(2, 1);
        const at::Tensor weights_T = (weights_Tk * (ids_Tk == expert)).sum(1);
        found.tokens.push_back((ids_Tk == expert).sum().item<int64_t>());
        found.saliency.push_back((weights_T * norms_T).sum().item<double>() /
                                 static_cast<double>(std::max<int64_t>(1, found.tokens.back())));
    }
    return found;
}

/// The rows as one batch, every token a target.
data::Batch batch_of(const std::vector<Row>& rows) {
    std::vector<data::Sample> samples;
    for (const Row& row : rows) {
        data::Sample sample{static_cast<int64_t>(samples.size()), row.ids, row.ids, {}};
        for (std::size_t t = 0; t < row.ids.size(); ++t) sample.positions.push_back(static_cast<int32_t>(t));
        samples.push_back(std::move(sample));
    }
    return data::make_batch(samples);
}

/// What the layer's MLP reads where the layers below have their kept experts alone.
at::Tensor mlp_input(model::Model& model, const data::Batch& batch, const std::vector<Experts>& found, int layer) {
    model.experts_probe.added_to_logits.assign(found.size(), {});
    for (std::size_t below = 0; below < static_cast<std::size_t>(layer); ++below) {
        if (found[below].kept.empty()) continue;
        at::Tensor added_E = at::full({static_cast<int64_t>(found[below].tokens.size())}, -INFINITY);
        for (const int64_t expert : found[below].kept) added_E[expert] = 0;
        model.experts_probe.added_to_logits[below] = added_E;
    }
    at::Tensor h_TD;
    model.on_module = [&](const std::string& module, const at::Tensor& output) {
        if (module == cat("model.layers.", layer, ".post_attention_layernorm")) h_TD = output.to(at::kDouble);
    };
    model.score(batch);
    model.on_module = nullptr;
    model.experts_probe = {};
    return h_TD;
}

std::vector<Row> some_rows() {
    std::vector<Row> rows;
    for (int32_t r = 0; r < 6; ++r) {
        std::vector<int32_t> ids;
        for (int32_t t = 0; t < 11 + r; ++t) ids.push_back(5 + (37 * r + 17 * t * t) % 250);
        rows.push_back({ids, ids, {}});
    }
    return rows;
}

TEST(ExpertSaliency, EqualsPlainArithmeticWithTheLayersBelowPruned) {
    UNSLOTH_NEEDS_XZ();
    const std::vector<Row> rows = some_rows();
    for (const char* const family : {"qwen3_moe", "qwen3_moe_step2", "gpt_oss"}) {
        const ScratchFolder folder;
        write_rows(folder / "rows.jsonl", rows);
        const fs::path path = unpacked(golden(cat("families/", family)) / "model");
        const formats::WeightFile file = formats::WeightFile::open(path.string());
        const int64_t remain = file.spec.experts->count - 2;
        const engine_api::Calibration found = commands::calibrate(
            make_config({"--model.path", path.string(), "--model.load_in_4bit", "false", "--model.max_seq_length", "32",
                         "--training.per_device_train_batch_size", "1"}),  // batches of two rows
            {.file = (folder / "rows.jsonl").string(), .experts = remain});
        ASSERT_EQ(static_cast<int64_t>(found.experts.size()), file.spec.num_layers);

        const LoadedModel loaded = load_model(path, "cpu", at::kFloat, false, 128, 8);
        const data::Batch batch = batch_of(rows);
        int last = -1;
        for (int layer = 0; layer < static_cast<int>(file.spec.num_layers); ++layer) {
            const Experts& of_layer = found.experts[static_cast<std::size_t>(layer)];
            ASSERT_EQ(!of_layer.kept.empty(), file.spec.has_experts(layer)) << family << " " << layer;
            if (of_layer.kept.empty()) continue;
            const Experts plain = plain_saliency(file, layer, mlp_input(*loaded.model, batch, found.experts, layer));
            EXPECT_EQ(of_layer.tokens, plain.tokens) << family << " " << layer;
            std::vector<std::pair<double, int64_t>> order;
            for (std::size_t e = 0; e < plain.saliency.size(); ++e) {
                EXPECT_NEAR(of_layer.saliency[e], plain.saliency[e], 2e-5 * plain.saliency[e]) << family << " " << e;
                order.emplace_back(plain.tokens[e] > 0 ? -plain.saliency[e] : 1, static_cast<int64_t>(e));
            }
            std::ranges::sort(order);
            std::vector<int64_t> kept;
            for (int64_t i = 0; i < remain; ++i) kept.push_back(order[static_cast<std::size_t>(i)].second);
            std::ranges::sort(kept);
            EXPECT_EQ(of_layer.kept, kept) << family << " " << layer;
            last = layer;
        }
        // What is left out below reaches the layers above.
        const Experts whole = plain_saliency(
            file, last, mlp_input(*loaded.model, batch, std::vector<Experts>(found.experts.size()), last));
        double most = 0;
        for (std::size_t e = 0; e < whole.saliency.size(); ++e)
            most =
                std::max(most, std::abs(whole.saliency[e] - found.experts[static_cast<std::size_t>(last)].saliency[e]));
        EXPECT_GT(most, 1e-4 * *std::ranges::max_element(whole.saliency)) << family;
    }
}

}  // namespace
}  // namespace unsloth
