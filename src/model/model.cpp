// Legend: T tokens, D hidden, V vocabulary, n rows with a target, C rows of a chunk.
#include "unsloth/model/model.h"
#include "unsloth/spec/finite_sites.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/ops/cross_entropy.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/rows.h"

namespace unsloth::model {
namespace {

/// A host vector into the first elements of a device tensor, without waiting: the pinned copy lives until the device
/// has read it (LibTorch's pinned allocator keeps it).
template <class Value>
void copy_values(const std::vector<Value>& from, const at::Tensor& to) {
    const auto count = static_cast<int64_t>(from.size());
    UNSLOTH_CHECK(count <= to.numel(), count, " values for ", to.numel());
    if (count == 0) return;
    const at::Tensor source =
        at::from_blob(const_cast<Value*>(from.data()), {count}, c10::CppTypeToScalarType<Value>::value);
    const at::Tensor target = to.narrow(0, 0, count);
    if (to.is_cpu()) {
        target.copy_(source);
    } else {
        at::Tensor pinned = at::empty({count}, at::TensorOptions(source.scalar_type()).pinned_memory(true));
        pinned.copy_(source);
        target.copy_(pinned, /*non_blocking=*/true);
    }
}

}  // namespace

Model::Model(ops::Context& ctx, ModelParts parts) : ctx_(ctx), parts_(std::move(parts)) {
    ctx_.workspace = parts_.activations->workspace();
    trains_embedding_ = outer_parameter(spec::TensorRole::embed_tokens) != nullptr;
    lowest_trained_layer_ = 0;
    if (!parts_.full_finetuning) {
        while (lowest_trained_layer_ < static_cast<int>(parts_.lora.size()) &&
               std::all_of(
                   parts_.lora[static_cast<std::size_t>(lowest_trained_layer_)].begin(),
                   parts_.lora[static_cast<std::size_t>(lowest_trained_layer_)].end(),
                   [](const spec::LoraModule& m) { return m.r == 0; }))
            ++lowest_trained_layer_;
        if (trains_embedding_) lowest_trained_layer_ = 0;
    }
    const ActivationSizes& sizes = parts_.activations->sizes();
    if (sizes.training && sizes.checkpointing.offload)
        offload_ = std::make_unique<Offload>(ctx_, *parts_.activations, static_cast<int>(parts_.spec.num_layers),
                                             lowest_trained_layer_, counts_);
}

const Parameter* Model::outer_parameter(spec::TensorRole role) const {
    if (parts_.parameters == nullptr) return nullptr;
    const ParameterTable& table = parts_.parameters->table();
    const Parameter* found = table.find(role, -1, spec::Projection::q, Parameter::Kind::base);
    // A tied model that is trained as a whole has one matrix at both ends.
    if (found == nullptr && role == spec::TensorRole::lm_head && parts_.full_finetuning)
        found = table.find(spec::TensorRole::embed_tokens, -1, spec::Projection::q, Parameter::Kind::base);
    return found;
}

void Model::parameters_changed() {
    if (parts_.parameters != nullptr) ++parts_.parameters->version;
}

GradientBuckets& Model::cut_gradients(int64_t most_bytes) {
    UNSLOTH_CHECK(recordings_.size() == 0 && parts_.parameters != nullptr, "gradients are cut before the first step");
    buckets_ = std::make_unique<GradientBuckets>(ctx_, parts_.parameters->table(), parts_.spec.num_layers, most_bytes);
    return *buckets_;
}

void Model::reached(int level) {
    if (buckets_ != nullptr) buckets_->reached(level);
}

LayerContext Model::layer_context(int layer, const TokenInputs& inputs) {
    const GroupContext group{ctx_,
                             parts_.layout,
                             layer,
                             parts_.adapters.get(),
                             parts_.parameters.get(),
                             parts_.full_finetuning,
                             inputs.row_T.defined() ? parts_.lora_dropout : 0.0,
                             inputs.row_T,
                             inputs.offset_T,
                             parts_.activations->scratch().dropped,
                             on_module ? &on_module : nullptr};
    return {parts_.spec, group, inputs, parts_.activations->scratch(), counts_};
}

at::Tensor Model::layer_output(int64_t layer) const {
    return layer + 1 < parts_.spec.num_layers ? parts_.activations->layer(layer + 1).x_TD
                                              : parts_.activations->output_TD();
}

// --- inputs --------------------------------------------------------------------------------------------------------

void Model::make_rope_table(int64_t longest_position) {
    const bool dynamic = parts_.spec.rope.type == spec::RopeSpec::Type::dynamic;
    const int64_t length = dynamic ? longest_position + 1 : 0;
    const TokenBuffers& tokens = parts_.activations->tokens();
    if (rope_length_ != length) {
        const spec::RopeFrequencies frequencies = spec::rope_frequencies(parts_.spec, longest_position + 1);
        copy_values(frequencies.inv_freq, tokens.inv_freq_p);
        rope_scaling_ = frequencies.attention_scaling;
        rope_length_ = length;
    }
    inputs_.cos_Tp = tokens.cos_Tp.narrow(0, 0, tokens_);
    inputs_.sin_Tp = tokens.sin_Tp.narrow(0, 0, tokens_);
    ops::rope_table(ctx_, tokens.positions_T.narrow(0, 0, tokens_), tokens.inv_freq_p, rope_scaling_, inputs_.cos_Tp,
                    inputs_.sin_Tp);
}

void Model::upload(const data::Batch& batch) {
    const ops::Region region(ctx_, "inputs");
    tokens_ = batch.tokens();
    parts_.activations->resize(tokens_);
    const TokenBuffers& tokens = parts_.activations->tokens();
    copy_values(batch.ids_T, tokens.ids_T);
    copy_values(batch.positions_T, tokens.positions_T);
    copy_values(batch.target_index, tokens.target_index_n);
    copy_values(batch.target_ids, tokens.target_ids_n);
    copy_values(batch.segments, tokens.q_offsets);
    ops::Segments& segments = inputs_.segments;
    segments.q_offsets = segments.k_offsets = batch.segments;
    segments.q_offsets_device = segments.k_offsets_device = tokens.q_offsets;
    segments.max_q = segments.max_k = batch.longest;
    segments.uniform = true;
    for (std::size_t s = 1; s < batch.segments.size(); ++s)
        segments.uniform = segments.uniform && batch.segments[s] - batch.segments[s - 1] == batch.longest;
    inputs_.row_T = inputs_.offset_T = at::Tensor();
    inputs_.cache = nullptr;
    make_rope_table(*std::max_element(batch.positions_T.begin(), batch.positions_T.end()));
}

void Model::embed() {
    if (parts_.parameters != nullptr && outer_version_ != parts_.parameters->version) {
        const auto refresh = [&](spec::TensorRole role, at::Tensor& copy) {
            const Parameter* master = outer_parameter(role);
            if (master == nullptr) return;
            const at::Tensor value = parts_.parameters->value(*master);
            if (value.dim() == 1 || copy.scalar_type() == at::kFloat) {
                copy = value;  // fp32 is read where it is
            } else if (!(role == spec::TensorRole::lm_head && copy.is_same(parts_.outer.embed_VD))) {
                ops::copy_2d(ctx_, value, copy);
            }
        };
        refresh(spec::TensorRole::embed_tokens, parts_.outer.embed_VD);
        refresh(spec::TensorRole::lm_head, parts_.outer.lm_head_VD);
        refresh(spec::TensorRole::final_norm, parts_.outer.final_norm_D);
        outer_version_ = parts_.parameters->version;
    }
    const at::Tensor ids = parts_.activations->tokens().ids_T.narrow(0, 0, tokens_);
    ops::gather_rows(ctx_, parts_.outer.embed_VD, ids, parts_.activations->layer(0).x_TD);
    if (on_module) on_module("model.embed_tokens", parts_.activations->layer(0).x_TD);
}

// --- layers --------------------------------------------------------------------------------------------------------

/// Passes are issued as they come the first time that a micro-batch has this shape (libraries choose algorithms then),
/// recorded afterwards.
void Model::choose_recording() {
    const auto address = [](const void* p) { return static_cast<int64_t>(reinterpret_cast<std::intptr_t>(p)); };
    const bool records =
        parts_.records && ctx_.is_cuda() && inputs_.segments.uniform && !on_module && ctx_.profiler == nullptr;
    recording_ =
        records ? recordings_.use({tokens_, inputs_.segments.count(), address(ctx_.scalars), address(ctx_.outcome)})
                : nullptr;
}

void Model::issue_or_record(Pass pass, const std::function<void()>& work) {
    if (recording_ == nullptr) return work();
    Recording& recording = recording_->at(static_cast<std::size_t>(pass));
    if (!recording.work) {
        if (pass == Pass::forward) parts_.source->assume_held(-1);  // what lies there now may not lie there next time
        const PassCounts before = counts_;
        recording.work = ops::RecordedWork::record(ctx_, work);
        recording.leaves_held = parts_.source->held();
        recording.counts = counts_ - before;
        counts_ = before;
        ++counts_.recorded;
    }
    recording.work->issue(ctx_);
    counts_ = counts_ + recording.counts;
    ++counts_.replayed;
    parts_.source->assume_held(recording.leaves_held);
}

void Model::forward_layers(std::vector<KvCache>* caches, bool training) {
    const ops::Region region(ctx_, "forward");
    inputs_.cache = caches;
    parts_.source->refresh(ctx_);
    embed();
    const bool offloads = training && offload_ != nullptr;
    const auto layers = [&] {
        for (int layer = 0; layer < static_cast<int>(parts_.spec.num_layers); ++layer) {
            if (offloads) offload_->before_forward(layer);
            const LayerWeights& weights = parts_.source->ready(ctx_, layer, tokens_);
            layer_forward(layer_context(layer, inputs_), weights, parts_.activations->layer(layer),
                          layer_output(layer));
            if (offloads) offload_->after_forward(layer);
            parts_.source->release(layer);
            if (on_module) on_module(cat("model.layers.", layer), layer_output(layer));
        }
    };
    if (training) {
        issue_or_record(Pass::forward, layers);
    } else {
        layers();
    }
}

void Model::backward_layers() {
    const ops::Region region(ctx_, "backward");
    const spec::Keep keep = parts_.activations->sizes().checkpointing.keep;
    reached(static_cast<int>(parts_.spec.num_layers));  // the head stands before it
    issue_or_record(Pass::backward, [&] {
        for (int layer = static_cast<int>(parts_.spec.num_layers) - 1; layer >= lowest_trained_layer_; --layer) {
            if (offload_ != nullptr) offload_->before_backward(layer);
            const LayerWeights& weights = parts_.source->ready(ctx_, layer, tokens_);
            const bool input_gradient = layer > lowest_trained_layer_ || trains_embedding_;
            layer_backward(layer_context(layer, inputs_), weights, parts_.activations->layer(layer), keep,
                           input_gradient);
            parts_.source->release(layer);
            reached(layer);
        }
    });
}

void Model::embedding_gradient() {
    const ops::Region region(ctx_, "embedding");
    const TokenBuffers& tokens = parts_.activations->tokens();
    const at::Tensor g_TD = parts_.activations->scratch().g_full.narrow(1, 0, parts_.spec.hidden_size);
    ops::embedding_backward(ctx_, g_TD, tokens.order_T.narrow(0, 0, tokens_),
                            tokens.unique_u.narrow(0, 0, distinct_ids_),
                            tokens.starts_u1.narrow(0, 0, distinct_ids_ + 1),
                            parts_.parameters->gradient(*outer_parameter(spec::TensorRole::embed_tokens)));
}

// --- lm_head and loss ----------------------------------------------------------------------------------------------

void Model::gather_head_rows(int64_t rows) {
    const HeadBuffers& head = parts_.activations->head();
    const at::Tensor index = parts_.activations->tokens().target_index_n.narrow(0, 0, rows);
    const ops::Site site = ctx_.outcome ? ops::Site{static_cast<uint32_t>(2 * parts_.spec.num_layers)} : ops::Site{};
    ops::gather_rows(ctx_, parts_.activations->output_TD(), index, head.x_nD.narrow(0, 0, rows));
    ops::rms_norm_forward(ctx_, head.x_nD.narrow(0, 0, rows), parts_.outer.final_norm_D, parts_.spec.rms_norm_eps,
                          head.h_nD.narrow(0, 0, rows), head.rstd_n.narrow(0, 0, rows), site);
}

/// Logits of rows [first, first + rows) and their losses; with `gradient` the logits become their gradient and h its
/// own.
void Model::head_chunk(int64_t first, int64_t rows, bool gradient) {
    const HeadBuffers& head = parts_.activations->head();
    const at::Tensor h_CD = head.h_nD.narrow(0, first, rows), logits_CV = head.logits_CV.narrow(0, 0, rows);
    const at::Tensor targets_C = parts_.activations->tokens().target_ids_n.narrow(0, first, rows);
    ops::gemm(
        ctx_,
        {.a = h_CD, .b = parts_.outer.lm_head_VD, .out = logits_CV, .transpose_b = true, .label = "gemm lm_head"});
    ops::cross_entropy(ctx_, logits_CV, targets_C, head.loss_n.narrow(0, first, rows), gradient);
    if (!gradient) return;
    if (const Parameter* trained = outer_parameter(spec::TensorRole::lm_head))
        ops::gemm(ctx_, {.a = logits_CV,
                         .b = h_CD,
                         .out = parts_.parameters->gradient(*trained),
                         .transpose_a = true,
                         .beta = 1.0,
                         .label = "gemm dW lm_head"});
    ops::gemm(ctx_, {.a = logits_CV, .b = parts_.outer.lm_head_VD, .out = h_CD, .label = "gemm dx lm_head"});
}

void Model::head_forward_backward(const data::Batch& batch) {
    const ops::Region region(ctx_, "head");
    const int64_t rows = batch.labels, hidden = parts_.spec.hidden_size;
    const HeadBuffers& head = parts_.activations->head();
    gather_head_rows(rows);
    for (int64_t first = 0; first < rows; first += head.logits_CV.size(0))
        head_chunk(first, std::min(head.logits_CV.size(0), rows - first), /*gradient=*/true);
    ops::accumulate_loss(ctx_, head.loss_n.narrow(0, 0, rows), {static_cast<uint32_t>(2 * parts_.spec.num_layers + 1)});

    const at::Tensor dx_nD = head.dx_nD.narrow(0, 0, rows);
    const at::Tensor g_TD = parts_.activations->scratch().g_full.narrow(1, 0, hidden);
    const Parameter* norm = parts_.full_finetuning ? outer_parameter(spec::TensorRole::final_norm) : nullptr;
    ops::zero_2d(ctx_, dx_nD);
    ops::rms_norm_backward(ctx_, head.h_nD.narrow(0, 0, rows), head.x_nD.narrow(0, 0, rows), parts_.outer.final_norm_D,
                           head.rstd_n.narrow(0, 0, rows), dx_nD,
                           norm ? parts_.parameters->gradient(*norm) : at::Tensor());
    ops::zero_2d(ctx_, g_TD);
    ops::scatter_rows(ctx_, dx_nD, parts_.activations->tokens().target_index_n.narrow(0, 0, rows), g_TD);
}

// --- entries -------------------------------------------------------------------------------------------------------

void Model::train(const data::Batch& batch) {
    if (batch.labels == 0) {
        if (buckets_ != nullptr) buckets_->reached_all();
        return;
    }
    upload(batch);
    const TokenBuffers& tokens = parts_.activations->tokens();
    if (parts_.lora_dropout > 0.0) {
        copy_values(batch.row_T, tokens.row_T);
        copy_values(batch.offset_T, tokens.offset_T);
        inputs_.row_T = tokens.row_T.narrow(0, 0, tokens_);
        inputs_.offset_T = tokens.offset_T.narrow(0, 0, tokens_);
    }
    if (trains_embedding_) {
        UNSLOTH_CHECK(!batch.token_order.unique.empty(), "the loader was not asked for the token order");
        copy_values(batch.token_order.order, tokens.order_T);
        copy_values(batch.token_order.unique, tokens.unique_u);
        copy_values(batch.token_order.starts, tokens.starts_u1);
        distinct_ids_ = static_cast<int64_t>(batch.token_order.unique.size());
    }
    choose_recording();
    forward_layers(nullptr, /*training=*/true);
    head_forward_backward(batch);
    backward_layers();
    if (trains_embedding_) embedding_gradient();
    reached(-1);
}

at::Tensor Model::score(const data::Batch& batch, const OnLogits& on_logits) {
    if (batch.labels == 0) return at::empty({0}, at::kFloat);
    upload(batch);
    forward_layers(nullptr, /*training=*/false);
    const HeadBuffers& head = parts_.activations->head();
    gather_head_rows(batch.labels);
    if (on_module) on_module("model.norm", head.h_nD.narrow(0, 0, batch.labels));
    for (int64_t first = 0; first < batch.labels; first += head.logits_CV.size(0)) {
        const int64_t rows = std::min(head.logits_CV.size(0), batch.labels - first);
        head_chunk(first, rows, /*gradient=*/false);
        if (on_logits) on_logits(first, head.logits_CV.narrow(0, 0, rows));
    }
    // A copy on the CPU too: the buffer's bytes serve the next forward pass.
    return head.loss_n.narrow(0, 0, batch.labels).to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

std::vector<KvCache> Model::make_caches(int64_t capacity) const {
    UNSLOTH_CHECK(capacity <= parts_.activations->sizes().cache_tokens, "caches of ", capacity, " tokens, planned for ",
                  parts_.activations->sizes().cache_tokens);
    std::vector<KvCache> caches = parts_.activations->caches();
    for (KvCache& cache : caches) cache = {cache.k_SN.narrow(0, 0, capacity), cache.v_SN.narrow(0, 0, capacity)};
    return caches;
}

int32_t Model::next_token(const std::vector<int32_t>& ids, std::vector<KvCache>& caches) {
    const auto before = static_cast<int32_t>(caches.front().length), count = static_cast<int32_t>(ids.size());
    data::Batch batch;
    batch.ids_T = ids;
    for (int32_t t = 0; t < count; ++t) batch.positions_T.push_back(before + t);
    batch.segments = {0, count};
    batch.longest = count;
    batch.target_index = {count - 1};  // only the last row's logits are wanted
    batch.target_ids = {0};
    batch.labels = 1;
    upload(batch);
    inputs_.segments.k_offsets = {0, before + count};
    inputs_.segments.k_offsets_device = at::tensor(inputs_.segments.k_offsets, at::kInt).to(ctx_.device());
    inputs_.segments.max_k = before + count;
    inputs_.segments.uniform = before == 0;
    forward_layers(&caches, /*training=*/false);
    const HeadBuffers& head = parts_.activations->head();
    gather_head_rows(1);
    const at::Tensor logits = head.logits_CV.narrow(0, 0, 1);
    ops::gemm(ctx_, {.a = head.h_nD.narrow(0, 0, 1), .b = parts_.outer.lm_head_VD, .out = logits, .transpose_b = true});
    const at::Tensor best = at::empty({1}, at::TensorOptions().dtype(at::kInt).device(ctx_.device()));
    ops::argmax_rows(ctx_, logits, best);
    return best.cpu().item<int32_t>();
}

std::string Model::describe_site(uint32_t code) const {
    const auto layers = static_cast<uint32_t>(parts_.spec.num_layers);
    if (code == spec::all_finite) return "nowhere";
    if (code == spec::bad_gradient_norm) return "the norm of the gradients, which leaves 32 bits";
    if (code == spec::bad_elsewhere) return "another rank";
    // What enters a layer is what the one before made: a reader should look there.
    if (code == 0) return "the embeddings (forward)";
    if (code <= 2 * layers)
        return cat("layer ", (code - 1) / 2, ", output of its ", code % 2 == 0 ? "MLP" : "attention", " (forward)");
    if (code == 2 * layers + 1) return "the loss";
    const uint32_t back = code - 2 * layers - 2;
    return cat("layer ", layers - 1 - back / 2, ", gradient of its ", back % 2 == 0 ? "MLP" : "attention",
               " (backward)");
}

}  // namespace unsloth::model
