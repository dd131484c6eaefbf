// Passes that no request asks for, and what their cache takes.
#include <algorithm>
#include <numeric>

#include "unsloth/generate/decoder.h"
#include "unsloth/ops/paged_attention.h"

namespace unsloth::generate {

void Decoder::record_passes() {
    if (!ctx_.is_cuda()) return;
    const int64_t most = std::min(model_.sizes().segments, model_.sizes().tokens), pages = ops::pages_of(context_);
    const spec::Sampling greedy;
    const at::TensorOptions on_device(ctx_.device());
    const at::Tensor id = at::empty({1}, on_device.dtype(at::kInt)),
                     logprob = at::empty({1}, on_device.dtype(at::kFloat));
    for (int64_t rows = 1; rows <= most; rows = bucket_of(rows + 1)) {
        const auto zeros = std::vector<int32_t>(static_cast<std::size_t>(rows));
        model::CachedPass pass;  // of one token, in one place of the cache
        pass.batch.ids_T = pass.batch.positions_T = pass.slots_T = zeros;
        pass.batch.segments.resize(static_cast<std::size_t>(rows) + 1);
        std::iota(pass.batch.segments.begin(), pass.batch.segments.end(), 0);
        pass.batch.longest = 1, pass.batch.labels = 1;
        pass.batch.target_index = pass.batch.target_ids = {0};
        if (model_.sizes().adapters > 1) pass.adapter_T = zeros;
        if (model_.spec().delta) pass.states.assign(zeros.size(), model::CachedPass::no_state);
        pass.rows.q_offsets = pass.batch.segments;
        pass.rows.lengths.assign(zeros.size(), 1);
        pass.rows.pages.resize(zeros.size() * static_cast<std::size_t>(pages));
        pass.rows.most_pages = pages, pass.rows.decoding = rows;
        for (int time = 0; time < 2; ++time)  // the second one is recorded
            model_.forward_with_kv_cache(pass, [&](int64_t, const at::Tensor& logits_CV) {
                const ops::RowSampling row{&greedy, {}, 0, {}};
                ops::sample_tokens(ctx_, logits_CV, {&row, 1}, id, logprob);
            });
    }
    ops::Event done(ctx_);
    done.record();
    done.synchronize();
}

int64_t cache_bytes_per_token(const spec::ModelSpec& spec, at::ScalarType dtype, bool in_8_bit) {
    const int64_t head = in_8_bit ? spec.head_dim + 1 : spec.head_dim * static_cast<int64_t>(c10::elementSize(dtype));
    const auto caches = [](const spec::LayerSpec& layer) { return !layer.crosses && !layer.delta; };
    return 2 * std::ranges::count_if(spec.layers, caches) * spec.num_kv_heads * head;
}

}  // namespace unsloth::generate
