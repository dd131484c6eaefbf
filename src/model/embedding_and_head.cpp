// Legend: T tokens, D hidden, V vocabulary, n rows with a target, C rows of a chunk.
#include "unsloth/model/embedding_and_head.h"

#include <algorithm>

#include "model/row_range.h"
#include "unsloth/model/site.h"
#include "unsloth/model/tile_tower.h"
#include "unsloth/model/vision_tower.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/cross_entropy.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/rows.h"

namespace unsloth::model {
namespace {

using HeadProduct = weights::EmbeddingAndHead::HeadProduct;

/// What embeddings are multiplied by, in their type where it is theirs.
double embedding_multiplier(const Network& network) {
    const double multiplier = network.spec.embedding_multiplier;
    if (!network.spec.embedding_multiplier_is_inside) return multiplier;
    return network.dtype == at::kBFloat16
               ? static_cast<float>(static_cast<at::BFloat16>(static_cast<float>(multiplier)))
           : network.dtype == at::kHalf ? static_cast<float>(static_cast<at::Half>(static_cast<float>(multiplier)))
                                        : multiplier;
}

/// This rank's rows of lm_head.
weights::Operand head_operand(const Network& network, const HeadBuffers& head) {
    return network.embedding_and_head.head(head.lm_head_VD, network.vocabulary());
}

/// The gradient of a chunk's rows from that of their logits.
void head_dx(ops::Context& ctx, const Network& network, const HeadBuffers& head, const at::Tensor& dlogits_CV,
             const at::Tensor& dh_CD) {
    const weights::Operand w = head_operand(network, head);
    const ops::CodedMatrix codes = w.gradient_codes(head.codes, dlogits_CV.size(0), dlogits_CV.size(1));
    ops::quantize_rows(ctx, dlogits_CV, codes);
    weights::multiply_backward(ctx, w, {.input = dlogits_CV, .codes = codes, .out = dh_CD, .label = "gemm dx lm_head"});
}

/// What the objective made of a chunk's logits, as products read it.
at::Tensor logits_gradient(ops::Context& ctx, const HeadBuffers& head, const at::Tensor& logits_CV, double divisor) {
    if (divisor != 1.0) logits_CV.div_(divisor);
    if (!head.dlogits_CV.defined()) return logits_CV;
    const at::Tensor dlogits_CV = head.dlogits_CV.narrow(0, 0, logits_CV.size(0));
    ops::copy_2d(ctx, logits_CV, dlogits_CV);
    return dlogits_CV;
}

/// The last layer's output of all tokens.
at::Tensor all_outputs(ops::Context& ctx, const Network& network, const Activations& a) {
    const TensorParallel& tp = network.tp;
    if (tp.alone()) return a.output_tD();
    each_slice(tp, a.scratch(), [&](const RowRange& range) {
        const at::Tensor rows_TD = range.of(a.head().x_TD);
        ops::copy_2d(ctx, range.slice(tp).of(a.output_tD()), tp.own(rows_TD));
        tp.gather(ctx, rows_TD, "the layers' output");
    });
    return a.head().x_TD;
}

}  // namespace

void embed(ops::Context& ctx, const Network& network, const MicroBatch& micro, bool noise, bool adapted) {
    const Activations& a = micro.activations();
    const std::vector<data::Image>& images = micro.images();
    const bool tiles = !images.empty() && network.spec.vision->tiles;  // their features are no embeddings
    if (tiles)
        see_tiles(ctx, *network.spec.vision, *network.vision, a.vision(), images, micro.inputs().sight->places, adapted,
                  network.kept.get());
    else if (!images.empty())
        see_images(ctx, *network.spec.vision, *network.vision, a.vision(), images,
                   /*together=*/micro.inputs().cached == nullptr, adapted, network.kept.get());
    const TokenBuffers& tokens = a.tokens();
    const TensorParallel& tp = network.tp;
    each_slice(tp, a.scratch(), [&](const RowRange& range) {
        const at::Tensor x_tD = range.slice(tp).of(a.layer(0).x_tD);
        const auto own = [&](const at::Tensor& of_tokens) { return tp.own(range.of(of_tokens)); };
        weights::gather_rows(ctx, network.embedding_and_head.embed_VD, own(tokens.ids_T), x_tD);
        const double multiplier = embedding_multiplier(network);
        const bool inside = network.spec.embedding_multiplier_is_inside;
        if (multiplier != 1.0 && inside) x_tD.mul_(multiplier);
        if (noise) ops::add_noise(ctx, x_tD, own(tokens.row_T), own(tokens.offset_T), own(tokens.noise_T));
        if (multiplier != 1.0 && !inside) x_tD.mul_(multiplier);
    });
    if (images.empty() || tiles) return;
    // Without noise, as transformers puts them there.
    for (const ImagePlace& place : micro.places())
        ops::copy_2d(ctx, a.vision().features.narrow(0, place.feature, place.count),
                     a.layer(0).x_tD.narrow(0, place.token, place.count));
}

void add_image_features(const MicroBatch& micro, int layer) {
    if (micro.images().empty()) return;
    const Activations& a = micro.activations();
    const auto number = static_cast<std::size_t>(layer);
    if (number >= a.vision().deepstack.size()) return;
    for (const ImagePlace& place : micro.places())
        a.output_of(layer)
            .narrow(0, place.token, place.count)
            .add_(a.vision().deepstack[number].narrow(0, place.feature, place.count));
}

namespace {

/// Of each image's tokens the rows of the residual stream's gradient. Images of the same pixels have the same features:
/// their gradients are added up.
void gather_image_gradients(const Network& network, const MicroBatch& micro, const at::Tensor& to) {
    const at::Tensor g_tD = micro.activations().scratch().g_full.narrow(1, 0, network.spec.hidden_size);
    to.zero_();
    for (const ImagePlace& place : micro.places())
        to.narrow(0, place.feature, place.count).add_(g_tD.narrow(0, place.token, place.count));
}

}  // namespace

void take_image_gradients(const Network& network, const MicroBatch& micro, int layer) {
    if (!network.trains_tower || micro.images().empty()) return;
    const std::vector<at::Tensor>& deepstack = micro.activations().vision().deepstack;
    const auto number = static_cast<std::size_t>(layer);
    if (number < deepstack.size()) gather_image_gradients(network, micro, deepstack[number]);
}

void tower_backward(ops::Context& ctx, const Network& network, const MicroBatch& micro) {
    if (!network.trains_tower || micro.images().empty()) return;
    const VisionBuffers& b = micro.activations().vision();
    if (network.spec.vision->tiles)
        return see_tiles_backward(ctx, *network.spec.vision, *network.vision, b, micro.images(),
                                  micro.inputs().sight->places, *network.parameters);
    gather_image_gradients(network, micro, b.features);
    see_images_backward(ctx, *network.spec.vision, *network.vision, b, micro.images(), *network.parameters);
}

void embedding_backward(ops::Context& ctx, const Network& network, const MicroBatch& micro) {
    const TokenBuffers& tokens = micro.activations().tokens();
    const at::Tensor g_tD = micro.activations().scratch().g_full.narrow(1, 0, network.spec.hidden_size);
    const int64_t ids = micro.distinct_ids();
    if (const double multiplier = embedding_multiplier(network); multiplier != 1.0) g_tD.mul_(multiplier);
    if (!micro.images().empty() && !network.spec.vision->tiles)  // other values took these tokens' place
        for (const ImagePlace& place : micro.places()) ops::zero_2d(ctx, g_tD.narrow(0, place.token, place.count));
    ops::embedding_backward(ctx, g_tD, tokens.order_t, tokens.unique_u.narrow(0, 0, ids),
                            tokens.starts_u1.narrow(0, 0, ids + 1),
                            network.parameters->gradient(*network.trained(spec::TensorRole::embed_tokens)));
}

void gather_head_rows(ops::Context& ctx, const Network& network, const MicroBatch& micro) {
    const Activations& a = micro.activations();
    const HeadBuffers& head = a.head();
    const int64_t n = micro.targets();
    const ops::Site site = ctx.outcome ? ops::Site{code_of({Place::final_norm}, network.layers())} : ops::Site{};
    network.embedding_and_head.expand_head(ctx, HeadProduct::logits, head.lm_head_VD);
    ops::gather_rows(ctx, all_outputs(ctx, network, a), a.tokens().target_index_n.narrow(0, 0, n),
                     head.x_nD.narrow(0, 0, n));
    ops::rms_norm_forward(ctx, head.x_nD.narrow(0, 0, n), network.embedding_and_head.final_norm_D,
                          network.spec.rms_norm_eps, head.h_nD.narrow(0, 0, n), head.rstd_n.narrow(0, 0, n), site);
}

at::Tensor head_logits(ops::Context& ctx, const Network& network, const MicroBatch& micro, int64_t first,
                       int64_t rows) {
    const HeadBuffers& head = micro.activations().head();
    const at::Tensor logits_CV = head.logits_CV.narrow(0, 0, rows), h_CD = head.h_nD.narrow(0, first, rows);
    const weights::Operand w = head_operand(network, head);
    const ops::CodedMatrix codes = w.input_codes(head.codes, rows, h_CD.size(1));
    ops::quantize_rows(ctx, h_CD, codes);
    weights::multiply_forward(ctx, w, {.input = h_CD, .codes = codes, .out = logits_CV, .label = "gemm lm_head"});
    if (network.spec.logits_divisor != 1.0) logits_CV.div_(network.spec.logits_divisor);
    return logits_CV;
}

void head_loss(ops::Context& ctx, const Network& network, const MicroBatch& micro, int64_t first,
               const at::Tensor& logits_CV, LogitsGradient gradient) {
    const Activations& a = micro.activations();
    const HeadBuffers& head = a.head();
    const int64_t rows = logits_CV.size(0), column = network.vocabulary().begin;
    const at::Tensor targets = a.tokens().target_ids_n.narrow(0, first, rows),
                     losses = head.loss_n.narrow(0, first, rows);
    const bool wanted = gradient != LogitsGradient::none;
    const at::Tensor weights =
        gradient == LogitsGradient::weighted ? head.weight_n.narrow(0, first, rows) : at::Tensor();
    const TensorParallel& tp = network.tp;
    if (tp.alone()) return ops::cross_entropy(ctx, logits_CV, targets, losses, wanted, weights);
    const at::Tensor statistics =
        head.statistics.narrow(0, 0, tp.place().size * 3 * rows).view({tp.place().size, 3, rows});
    ops::cross_entropy_statistics(ctx, logits_CV, targets, column, statistics[tp.place().rank]);
    tp.gather(ctx, statistics, "the logits' statistics");
    ops::cross_entropy_of_slice(ctx, logits_CV, targets, column, statistics, losses, wanted, weights);
}

void HeadObjective::chunk_loss(ops::Context& ctx, const Network& network, const MicroBatch& micro, int64_t first,
                               const at::Tensor& logits_CV, LogitsGradient gradient) {
    head_loss(ctx, network, micro, first, logits_CV, gradient);
}

void head_forward_backward(ops::Context& ctx, const Network& network, const MicroBatch& micro,
                           HeadObjective& objective) {
    const Activations& a = micro.activations();
    const HeadBuffers& head = a.head();
    const int64_t n = micro.targets(), chunk = head.logits_CV.size(0);
    const ops::Site site{code_of({Place::loss}, network.layers())};
    const weights::Parameter* const lm_head = network.trained(spec::TensorRole::lm_head);
    const weights::Parameter* const norm =
        network.full_finetuning && network.tp.first() ? network.trained(spec::TensorRole::final_norm) : nullptr;
    // A row's gradient is linear in its weight, which follows from all rows. Where nothing is trained here it is made
    // with weight one, and weighed on its way back to its place; gradients that are sums over rows need the weights
    // first, and the products twice.
    const bool weighs_first =
        objective.weighs() && (lm_head != nullptr || network.full_finetuning || objective.weighs_before_gradient());
    gather_head_rows(ctx, network, micro);
    network.embedding_and_head.expand_head(ctx, HeadProduct::dx, head.lm_head_VD);
    if (weighs_first) {
        for (int64_t first = 0; first < n; first += chunk)
            objective.chunk_loss(ctx, network, micro, first,
                                 head_logits(ctx, network, micro, first, std::min(chunk, n - first)),
                                 LogitsGradient::none);
        objective.weigh(ctx, micro, site);
    }
    for (int64_t first = 0; first < n; first += chunk) {
        const int64_t rows = std::min(chunk, n - first);
        const at::Tensor h_CD = head.h_nD.narrow(0, first, rows);
        const at::Tensor logits_CV = head_logits(ctx, network, micro, first, rows);
        objective.chunk_loss(ctx, network, micro, first, logits_CV,
                             weighs_first ? LogitsGradient::weighted : LogitsGradient::plain);
        const at::Tensor dlogits_CV = logits_gradient(ctx, head, logits_CV, network.spec.logits_divisor);
        if (lm_head != nullptr)
            ops::gemm(ctx, {.a = dlogits_CV,
                            .b = h_CD,
                            .out = network.parameters->gradient(*lm_head).narrow(0, network.vocabulary().begin,
                                                                                 network.vocabulary().size),
                            .transpose_a = true,
                            .beta = 1.0,
                            .label = "gemm dW lm_head"});
        // The rows' gradient takes their place.
        head_dx(ctx, network, head, dlogits_CV, h_CD);
    }
    network.tp.sum(ctx, head.h_nD.narrow(0, 0, n), "the gradient of the head's rows");
    if (!weighs_first) objective.weigh(ctx, micro, site);

    const at::Tensor dx_nD = head.dx_nD.narrow(0, 0, n);
    const at::Tensor g_tD = a.scratch().g_full.narrow(1, 0, network.spec.hidden_size);
    ops::zero_2d(ctx, dx_nD);
    ops::rms_norm_backward(ctx, head.h_nD.narrow(0, 0, n), head.x_nD.narrow(0, 0, n),
                           network.embedding_and_head.final_norm_D, head.rstd_n.narrow(0, 0, n), dx_nD,
                           norm ? network.parameters->gradient(*norm) : at::Tensor());
    const int64_t tokens = micro.tokens(), each = a.sizes().copies;
    const at::Tensor places_TP = a.tokens().target_places.narrow(0, 0, each * tokens).view({tokens, each});
    const at::Tensor weights = objective.weighs() && !weighs_first ? head.weight_n.narrow(0, 0, n) : at::Tensor();
    each_slice(network.tp, a.scratch(), [&](const RowRange& range) {
        ops::sum_rows(ctx, dx_nD, network.tp.own(range.of(places_TP)), range.slice(network.tp).of(g_tD), weights);
    });
}

}  // namespace unsloth::model
