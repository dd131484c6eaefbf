#include "generate/cached_pass.h"

#include <algorithm>

#include "unsloth/generate/decoder.h"
#include "unsloth/ops/paged_attention.h"

namespace unsloth::generate {
namespace {

/// Where in the cache the token at `position` of a sequence lies.
int32_t slot(const Sequence& s, int64_t position) {
    const int64_t page = s.pages[static_cast<std::size_t>(position / ops::page_tokens)];
    return static_cast<int32_t>(page * ops::page_tokens + position % ops::page_tokens);
}

}  // namespace

void pad(model::CachedPass& pass, int64_t most) {
    const int64_t tokens = pass.batch.tokens(), bucket = bucket_of(std::max<int64_t>(tokens, 1));
    if (pass.rows.decoding != tokens || bucket > most) return;
    const auto pages = static_cast<std::size_t>(pass.rows.most_pages);
    for (int64_t row = tokens; row < bucket; ++row) {
        for (auto* values : {&pass.batch.ids_T, &pass.batch.positions_T, &pass.slots_T, &pass.rows.lengths})
            values->push_back(values->back());
        if (!pass.adapter_T.empty()) pass.adapter_T.push_back(pass.adapter_T.back());
        pass.batch.segments.push_back(static_cast<int32_t>(row + 1));
        pass.rows.q_offsets.push_back(static_cast<int32_t>(row + 1));
        const std::vector<int32_t> last(pass.rows.pages.end() - static_cast<std::ptrdiff_t>(pages),
                                        pass.rows.pages.end());
        pass.rows.pages.insert(pass.rows.pages.end(), last.begin(), last.end());
    }
    pass.rows.decoding = bucket;
}

bool rates_prompt_at(const Sequence& s, int64_t t) {
    return s.request.prompt_logprobs && t + 1 < static_cast<int64_t>(s.request.prompt.size());
}

model::CachedPass pass_of(const std::vector<ScheduledChunk>& parts, int64_t context, bool names_adapters) {
    model::CachedPass pass;
    data::Batch& batch = pass.batch;
    ops::PagedRows& rows = pass.rows;
    rows.most_pages = ops::pages_of(context);
    batch.segments = rows.q_offsets = {0};
    for (const ScheduledChunk& part : parts) {
        const Sequence& s = *part.sequence;
        const int64_t end = s.cached + part.count;
        const auto end_row = [&](int64_t tokens, int64_t keys) {
            batch.segments.push_back(static_cast<int32_t>(batch.ids_T.size()));
            batch.longest = std::max(batch.longest, static_cast<int32_t>(tokens));
            if (s.cached == 0 && !part.as_decode_rows) return;
            rows.q_offsets.push_back(batch.segments.back());
            rows.lengths.push_back(static_cast<int32_t>(keys));
            rows.pages.insert(rows.pages.end(), s.pages.begin(), s.pages.end());
            rows.pages.resize(rows.lengths.size() * static_cast<std::size_t>(rows.most_pages));
            rows.decoding += part.decodes() || part.as_decode_rows ? 1 : 0;
        };
        for (int64_t t = s.cached; t < end; ++t) {
            batch.ids_T.push_back(part.ahead() ? 0 : s.ids[static_cast<std::size_t>(t)]);
            batch.positions_T.push_back(static_cast<int32_t>(t));
            pass.slots_T.push_back(slot(s, t));
            if (names_adapters) pass.adapter_T.push_back(s.request.adapter);
            if (part.as_decode_rows) end_row(1, t + 1);
            if (rates_prompt_at(s, t)) batch.target_index.push_back(static_cast<int32_t>(batch.ids_T.size()) - 1);
        }
        if (!part.as_decode_rows) end_row(part.count, end);
        if (part.chooses()) batch.target_index.push_back(batch.segments.back() - 1);
    }
    batch.labels = static_cast<int64_t>(batch.target_index.size());
    batch.target_ids.assign(batch.target_index.size(), 0);
    return pass;
}

}  // namespace unsloth::generate
