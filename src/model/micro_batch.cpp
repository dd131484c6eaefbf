// Legend: T tokens, n rows with a target, u distinct ids, p = head_dim / 2.
#include "unsloth/model/micro_batch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/copy_values.h"
#include "model/delta_chain.h"
#include "unsloth/core/error.h"
#include "unsloth/model/tile_tower.h"
#include "unsloth/model/vision_tower.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rope.h"

namespace unsloth::model {
namespace {

/// Of each of `tokens` tokens the up to `each` places where `index` names it, or -1.
std::vector<int32_t> places_of(const std::vector<int32_t>& index, int64_t tokens, int64_t each) {
    std::vector<int32_t> places(static_cast<std::size_t>(each * tokens), -1);
    for (std::size_t i = 0; i < index.size(); ++i) {
        const auto first = places.begin() + each * index[i], free = std::find(first, first + each, -1);
        UNSLOTH_CHECK(free != first + each, "token ", index[i], " has more than ", each, " places");
        *free = static_cast<int32_t>(i);
    }
    return places;
}

}  // namespace

MicroBatch::MicroBatch(ops::Context& ctx, const spec::ModelSpec& spec, std::unique_ptr<Activations> activations,
                       int lowest_layer, PassCounts& counts, int slices)
    : ctx_(ctx), spec_(spec), activations_(std::move(activations)), slices_(slices) {
    if (const int64_t on_host = activations_->run().layers_on_host(); activations_->sizes().training && on_host > 0)
        offload_ = std::make_unique<Offload>(ctx, *activations_, static_cast<int>(on_host), lowest_layer, counts);
}

void MicroBatch::upload(const data::Batch& batch) {
    const ops::Region region(ctx_, "inputs");
    tokens_ = (batch.tokens() + slices_ - 1) / slices_ * slices_;
    targets_ = batch.labels;
    segments_ = static_cast<int64_t>(batch.segments.size()) - 1;
    distinct_ids_ = 0;
    activations_->resize(tokens_);
    const TokenBuffers& tokens = activations_->tokens();
    const auto with_added = [&](std::vector<int32_t> of_tokens) {
        of_tokens.resize(static_cast<std::size_t>(tokens_), 0);
        return of_tokens;
    };
    copy_values(with_added(batch.ids_T), tokens.ids_T);
    copy_values(with_added(batch.positions_T), tokens.positions_T);
    copy_values(batch.target_index, tokens.target_index_n);
    copy_values(batch.target_ids, tokens.target_ids_n);
    copy_values(batch.segments, tokens.q_offsets);
    inputs_ = {};
    take_images(batch);
    ops::Segments& segments = inputs_.segments;
    segments.q_offsets = segments.k_offsets = batch.segments;
    segments.q_offsets_device = segments.k_offsets_device = tokens.q_offsets;
    segments.max_k = batch.longest;
    segments.uniform = true;
    for (std::size_t s = 1; s < batch.segments.size(); ++s) {
        const int32_t own = batch.segments[s] - batch.segments[s - 1];
        segments.max_q = std::max(segments.max_q, own);
        segments.uniform = segments.uniform && own == batch.longest;
    }
    if (batch.context && spec_.delta) upload_chain(*batch.context);
    if (batch.context)
        upload_keys(batch.context->keys, batch.context->key_offsets, batch.context->all_keys);
    else if (!batch.shared.empty())
        upload_shared_keys(batch);
    if (activations_->sizes().training)
        copy_values(places_of(batch.target_index, tokens_, activations_->sizes().copies), tokens.target_places);
    make_rope_tables(batch, batch.context ? batch.context->last_position
                                          : *std::max_element(batch.positions_T.begin(), batch.positions_T.end()));
}

/// Their pixels stay on the host until the tower sees them.
void MicroBatch::take_images(const data::Batch& batch) {
    images_ = batch.images;
    places_.clear();
    if (images_.empty()) return;
    const ActivationSizes& sizes = activations_->sizes();
    UNSLOTH_CHECK(sizes.patches > 0, images_.size(), " images were not planned for");
    places_ = image_places(spec_.vision.value(), images_);
    const ImagePlace& last = places_.back();
    int64_t features = 0;
    for (std::size_t i = 0; i < images_.size(); ++i)
        if (!places_[i].again) features += spec_.vision->tokens_of(images_[i].patches());
    UNSLOTH_CHECK(features <= sizes.image_tokens, features, " image tokens of ", sizes.image_tokens, " planned");
    UNSLOTH_CHECK(last.token + last.count <= batch.tokens(), "an image of ", last.count, " tokens at ", last.token,
                  " of ", batch.tokens());
    for (const data::Image& image : images_) require_planned(image);
    if (spec_.vision->tiles)
        take_sight(std::make_shared<const ImageSight>(sight_of(*spec_.vision, images_, batch.segments)));
}

void MicroBatch::require_planned(const data::Image& image) const {
    const int64_t planned = activations_->sizes().patches;
    UNSLOTH_CHECK(image.patches() <= planned, "an image of ", image.patches(), " patches, planned for ", planned);
}

void MicroBatch::take_sight(std::shared_ptr<const ImageSight> sight) {
    const TokenBuffers& tokens = activations_->tokens();
    copy_values(sight->attends, tokens.attends_T);
    copy_values(sight->adds, tokens.adds_T);
    inputs_.attends_T = tokens.attends_T;
    inputs_.adds_T = tokens.adds_T;
    inputs_.features_full = activations_->vision().features.narrow(0, 0, sight->rows);
    if (const at::Tensor& dfeatures = activations_->vision().backward.dfeatures; dfeatures.defined())
        inputs_.dfeatures_SD = dfeatures.narrow(0, 0, sight->rows);
    inputs_.sight = std::move(sight);
}

/// Where segments share tokens, the keys and values that a segment attends over are copied into contiguous rows.
void MicroBatch::upload_shared_keys(const data::Batch& batch) {
    std::vector<int32_t> keys, offsets = {0};
    const auto add = [&](int32_t begin, int32_t count) {
        for (int32_t t = begin; t < begin + count; ++t) keys.push_back(t);
    };
    for (std::size_t s = 0; s + 1 < batch.segments.size(); ++s) {
        if (batch.shared_by(s) > 0) add(batch.segments[static_cast<std::size_t>(batch.owners[s])], batch.shared_by(s));
        add(batch.segments[s], batch.segments[s + 1] - batch.segments[s]);
        offsets.push_back(static_cast<int32_t>(keys.size()));
    }
    upload_keys(keys, offsets, /*all_keys=*/0);
}

/// `keys`: of all segments, one after another; the tokens that are them, or numbers below `all_keys` of all ranks'.
void MicroBatch::upload_keys(const std::vector<int32_t>& keys, const std::vector<int32_t>& offsets, int64_t all_keys) {
    const TokenBuffers& tokens = activations_->tokens();
    UNSLOTH_CHECK(tokens.key_tokens.defined() && all_keys <= activations_->sizes().all_keys, keys.size(), " keys of ",
                  all_keys, " were not planned for");
    copy_values(keys, tokens.key_tokens);
    copy_values(offsets, tokens.k_offsets);
    inputs_.all_keys = all_keys;
    inputs_.key_tokens_K = tokens.key_tokens.narrow(0, 0, offsets.back());
    if (activations_->sizes().training) {
        const int64_t rows = all_keys > 0 ? all_keys : tokens_, each = activations_->sizes().copies;
        copy_values(places_of(keys, rows, each), tokens.key_places);
        inputs_.key_places_TP = tokens.key_places.narrow(0, 0, each * rows).view({rows, each});
    }
    inputs_.segments.k_offsets = offsets;
    inputs_.segments.k_offsets_device = tokens.k_offsets;
}

void MicroBatch::upload_chain(const data::ContextSlice& context) {
    const TokenBuffers& tokens = activations_->tokens();
    UNSLOTH_CHECK(static_cast<int64_t>(context.sequences.size()) <= activations_->sizes().sequences,
                  context.sequences.size(), " sequences of ", activations_->sizes().sequences, " planned");
    const ChainIndex index = chain_index(context, spec_.delta->taps);
    DeltaChain chain;
    const auto device = [](const std::vector<int32_t>& values, const at::Tensor& to) {
        copy_values(values, to);
        return to.narrow(0, 0, static_cast<int64_t>(values.size()));
    };
    for (std::size_t chunk = 0; chunk + 1 < index.offsets.size(); ++chunk) {
        chain.sequence_of.push_back(static_cast<int32_t>(chunk) / 2);
        chain.own.push_back(static_cast<int32_t>(chunk));
        chain.chunks.max_q = std::max(chain.chunks.max_q, index.offsets[chunk + 1] - index.offsets[chunk]);
    }
    chain.chunks.max_k = chain.chunks.max_q;
    chain.chunks.q_offsets = chain.chunks.k_offsets = index.offsets;
    chain.chunks.q_offsets_device = chain.chunks.k_offsets_device = device(index.offsets, tokens.chunk_offsets);
    chain.sequence_of_S = device(chain.sequence_of, tokens.chunk_sequences);
    chain.own_S = device(chain.own, tokens.chunk_places);
    chain.ends_n = device(index.ends, tokens.chunk_ends);
    chain.before_n = device(index.before, tokens.rows_before);
    chain.places_nP = device(index.places, tokens.places_of_ends).view({chain.ends_n.numel(), spec_.delta->taps - 1});
    chain.rows = index.rows;
    chain.most_chunks = index.chunks;
    inputs_.chain = std::make_shared<const DeltaChain>(std::move(chain));
}

void MicroBatch::make_rope_tables(const data::Batch& batch, int64_t longest_position) {
    const TokenBuffers& tokens = activations_->tokens();
    ropes_.resize(spec_.ropes.size());
    if (!batch.axes_T3.empty()) {
        UNSLOTH_CHECK(tokens.axes.defined() && static_cast<int64_t>(batch.axes_T3.size()) == 3 * tokens_,
                      batch.axes_T3.size(), " positions on three axes of ", tokens_, " tokens");
        copy_values(batch.axes_T3, tokens.axes);
    }
    for (std::size_t i = 0; i < ropes_.size(); ++i) {
        const RopeTable& table = tokens.ropes[i];
        // Keys in a cache stay as they were turned: a sequence must not change its factors while it grows.
        const ActivationSizes& sizes = activations_->sizes();
        const bool grows = spec_.ropes[i].type == spec::RopeSpec::Type::longrope && sizes.cache_tokens > 0;
        const int64_t longest = grows ? sizes.longest_context() : longest_position + 1;
        const int64_t length = spec_.ropes[i].by_length() ? longest : 0;
        if (ropes_[i].length != length) {
            const spec::RopeFrequencies frequencies = spec::rope_frequencies(spec_, longest, i);
            copy_values(frequencies.inv_freq, table.inv_freq_p);
            if (table.axis_p.defined()) copy_values(spec::rope_axes(spec_, spec_.ropes[i]), table.axis_p);
            ropes_[i] = {frequencies.attention_scaling, length};
        }
        if (batch.axes_T3.empty())  // a text's positions are the same on all axes
            ops::rope_table(ctx_, tokens.positions_T, table.inv_freq_p, ropes_[i].scaling, table.cos_Tp, table.sin_Tp);
        else
            ops::rope_table(ctx_, tokens.axes.narrow(0, 0, 3 * tokens_).view({tokens_, 3}), table.inv_freq_p,
                            ropes_[i].scaling, table.cos_Tp, table.sin_Tp, table.axis_p);
        if (!table.query_T.defined()) continue;
        std::vector<float> multipliers(static_cast<std::size_t>(tokens_), 1.0F);
        for (std::size_t t = 0; t < batch.positions_T.size(); ++t)
            multipliers[t] = spec::query_multiplier(spec_, spec_.ropes[i], batch.positions_T[t]);
        copy_values(multipliers, table.query_T);
        at::mul_out(const_cast<at::Tensor&>(table.query_cos_Tp), table.cos_Tp, table.query_T.unsqueeze(1));
        at::mul_out(const_cast<at::Tensor&>(table.query_sin_Tp), table.sin_Tp, table.query_T.unsqueeze(1));
    }
    inputs_.ropes = tokens.ropes;
}

void MicroBatch::upload_rows(const data::Batch& batch) {
    const TokenBuffers& tokens = activations_->tokens();
    copy_values(batch.row_T, tokens.row_T);  // whatever is drawn for added tokens
    copy_values(batch.offset_T, tokens.offset_T);
    inputs_.row_T = tokens.row_T;
    inputs_.offset_T = tokens.offset_T;
    if (inputs_.sight == nullptr || !tokens.feature_row_S.defined()) return;
    std::vector<int32_t> rows, offsets;
    for (const SegmentFeatures& segment : inputs_.sight->segments)
        for (int64_t i = 0; i < segment.rows; ++i) {
            rows.push_back(batch.row_T[static_cast<std::size_t>(segment.token)]);
            offsets.push_back(static_cast<int32_t>(i));
        }
    copy_values(rows, tokens.feature_row_S);
    copy_values(offsets, tokens.feature_offset_S);
    inputs_.feature_row_S = tokens.feature_row_S.narrow(0, 0, inputs_.sight->rows);
    inputs_.feature_offset_S = tokens.feature_offset_S.narrow(0, 0, inputs_.sight->rows);
}

void MicroBatch::upload_noise(const data::Batch& batch, double alpha) {
    std::vector<float> magnitude;
    for (std::size_t s = 1; s < batch.segments.size(); ++s) {
        const int64_t tokens = batch.context ? batch.context->lengths[s - 1] : batch.length(s - 1);
        magnitude.resize(static_cast<std::size_t>(batch.segments[s]),
                         static_cast<float>(alpha / std::sqrt(static_cast<double>(tokens * spec_.hidden_size))));
    }
    magnitude.resize(static_cast<std::size_t>(tokens_), 0.0F);
    copy_values(magnitude, activations_->tokens().noise_T);
}

void MicroBatch::upload_to(std::size_t buffer, const std::vector<int32_t>& values) {
    copy_values(values, activations_->objective(buffer));
}

void MicroBatch::upload_to(std::size_t buffer, const std::vector<float>& values) {
    copy_values(values, activations_->objective(buffer));
}

void MicroBatch::upload_token_order(const data::TokenOrder& order) {
    UNSLOTH_CHECK(!order.unique.empty(), "the loader was not asked for the token order");
    const TokenBuffers& tokens = activations_->tokens();
    copy_values(order.order, tokens.order_t);
    copy_values(order.unique, tokens.unique_u);
    copy_values(order.starts, tokens.starts_u1);
    distinct_ids_ = static_cast<int64_t>(order.unique.size());
}

void MicroBatch::forward_with_kv_cache(const data::Batch& batch, const std::vector<int32_t>& slots_T,
                                       const std::vector<int32_t>& adapter_T, ops::PagedRows rows,
                                       std::vector<int32_t> states) {
    const TokenBuffers& tokens = activations_->tokens();
    copy_values(slots_T, tokens.slots_T);
    if (!adapter_T.empty()) {
        copy_values(adapter_T, tokens.adapter_T);
        inputs_.adapter_T = tokens.adapter_T;
    }
    copy_values(rows.lengths, tokens.lengths_S);
    copy_values(rows.pages, tokens.pages);
    rows.lengths_S = tokens.lengths_S;
    rows.pages_SM = tokens.pages;
    ops::place_rows(ctx_, rows);
    // What is left of the segments are the rows that begin with this pass.
    ops::Segments begun;
    for (auto s = static_cast<std::size_t>(rows.count()); s < batch.segments.size(); ++s)
        begun.q_offsets.push_back(batch.segments[s] - static_cast<int32_t>(rows.tokens()));
    begun.k_offsets = begun.q_offsets;
    for (std::size_t s = 1; s < begun.q_offsets.size(); ++s)
        begun.max_q = begun.max_k = std::max(begun.max_q, begun.q_offsets[s] - begun.q_offsets[s - 1]);
    begun.uniform = begun.count() == 1;
    if (rows.count() == 0) {
        begun.q_offsets_device = begun.k_offsets_device = tokens.q_offsets;
    } else if (ctx_.is_cuda() && begun.count() > 0) {
        const auto count = static_cast<int64_t>(begun.q_offsets.size());
        begun.q_offsets_device = at::empty({count}, at::TensorOptions(at::kInt).device(ctx_.device()));
        copy_values(begun.q_offsets, begun.q_offsets_device);  // the host does not wait for the pass before
        begun.k_offsets_device = begun.q_offsets_device;
    }
    const ops::Segments all = std::exchange(inputs_.segments, std::move(begun));
    DecodeBatch cached{&activations_->caches(), tokens.slots_T, std::move(rows), {}, {}, {}};
    if (spec_.delta) {
        const auto none = static_cast<int32_t>(activations_->sizes().state_places());
        for (int32_t& place : states)
            if (place < 0) place = none;
        copy_values(states, tokens.states_S);
        cached.all = all;
        cached.states = std::move(states);
        cached.states_S = tokens.states_S;
    }
    inputs_.cached = std::make_shared<const DecodeBatch>(std::move(cached));
}

void MicroBatch::see_cached(std::shared_ptr<const ImageSight> sight, std::vector<data::Image> images) {
    UNSLOTH_CHECK(sight->rows <= activations_->sizes().image_rows(spec_) && images.size() == sight->places.size(),
                  sight->rows, " rows of features, ", images.size(), " images");
    for (const data::Image& image : images) require_planned(image);
    const at::Tensor& adapters_S = activations_->tokens().feature_adapter_S;
    if (inputs_.adapter_T.defined() && !sight->segments.empty()) {
        std::vector<int32_t> adapters(static_cast<std::size_t>(sight->rows), -1);
        for (const SegmentFeatures& segment : sight->segments)
            std::fill_n(adapters.begin() + segment.first, segment.rows, segment.adapter);
        copy_values(adapters, adapters_S);
        inputs_.feature_adapter_S = adapters_S;
    }
    take_sight(std::move(sight));
    images_ = std::move(images);
    places_.clear();
}

}  // namespace unsloth::model
