#include "generate/cached_pass.h"

#include <algorithm>

#include "unsloth/generate/decoder.h"
#include "unsloth/generate/prompt_images.h"
#include "unsloth/model/tile_tower.h"
#include "unsloth/ops/paged_attention.h"

namespace unsloth::generate {
namespace {

/// The cache slot of the token at `position` of a sequence.
int32_t slot(const Sequence& s, int64_t position) {
    const int64_t page = s.pages[static_cast<std::size_t>(position / ops::page_tokens)];
    return static_cast<int32_t>(page * ops::page_tokens + position % ops::page_tokens);
}

/// The positions of time, height and width of a sequence's token.
void add_axes(const Sequence& s, int64_t t, std::vector<int32_t>& axes_T3) {
    const PromptImages* const images = s.request.images.get();
    if (images != nullptr && 3 * t < static_cast<int64_t>(images->axes_T3.size())) {
        const auto at = images->axes_T3.begin() + 3 * t;
        axes_T3.insert(axes_T3.end(), at, at + 3);
    } else {
        axes_T3.insert(axes_T3.end(), 3, static_cast<int32_t>(t) + (images != nullptr ? images->offset : 0));
    }
}

/// The images of this part, whose first token is number `first` of the pass.
void add_images(const ScheduledChunk& part, int64_t first, std::vector<data::Image>& to) {
    const Sequence& s = *part.sequence;
    if (!s.request.images || s.slot >= 0) return;
    for (std::size_t i = 0; i < s.request.images->images.size(); ++i) {
        if (!PromptImages::lies_in(s.request.images->places[i], s.cached, s.cached + part.count)) continue;
        data::Image& image = to.emplace_back(s.request.images->images[i]);
        image.cached = std::max(0, static_cast<int32_t>(s.cached) - image.first);
        image.first += image.cached + static_cast<int32_t>(first - s.cached);
    }
}

}  // namespace

void pad(model::CachedPass& pass, int64_t most, int64_t spare) {
    const int64_t tokens = pass.batch.tokens(), bucket = bucket_of(std::max<int64_t>(tokens, 1));
    if (pass.rows.decoding != tokens || bucket > most) return;
    const auto pages = static_cast<std::size_t>(pass.rows.most_pages);
    for (int64_t row = tokens; row < bucket; ++row) {
        for (auto* values : {&pass.batch.ids_T, &pass.batch.positions_T, &pass.slots_T, &pass.rows.lengths})
            values->push_back(values->back());
        if (!pass.batch.axes_T3.empty())
            for (int axis = 0; axis < 3; ++axis) pass.batch.axes_T3.push_back(pass.batch.axes_T3.end()[-3]);
        if (!pass.adapter_T.empty()) pass.adapter_T.push_back(pass.adapter_T.back());
        pass.batch.segments.push_back(static_cast<int32_t>(row + 1));
        pass.rows.q_offsets.push_back(static_cast<int32_t>(row + 1));
        const std::vector<int32_t> last(pass.rows.pages.end() - static_cast<std::ptrdiff_t>(pages),
                                        pass.rows.pages.end());
        pass.rows.pages.insert(pass.rows.pages.end(), last.begin(), last.end());
        if (pass.states.empty()) continue;
        pass.states.push_back(model::CachedPass::no_state);
        pass.slots_T.back() = static_cast<int32_t>(spare * ops::page_tokens);
        pass.batch.positions_T.back() = 0;
        pass.rows.lengths.back() = 1;
        pass.rows.pages.end()[-static_cast<std::ptrdiff_t>(pages)] = static_cast<int32_t>(spare);
    }
    pass.rows.decoding = bucket;
}

bool rates_prompt_at(const Sequence& s, int64_t t) {
    return s.request.prompt_logprobs && t + 1 < static_cast<int64_t>(s.request.prompt.size());
}

void see_slots(const std::vector<ScheduledChunk>& parts, const spec::VisionSpec& tower, int64_t slots,
               model::CachedPass& pass) {
    const auto has_images = [](const ScheduledChunk& part) { return part.sequence->slot >= 0; };
    if (std::ranges::none_of(parts, has_images)) return;
    const int64_t features = tower.tiles->features();
    auto sight = std::make_shared<model::ImageSight>();
    sight->rows = slots * features;
    for (const ScheduledChunk& part : parts) {
        const Sequence& s = *part.sequence;
        if (s.slot < 0) {
            sight->add_tokens(nullptr, s.cached, part.count);
            continue;
        }
        const std::vector<data::Image>& images = s.request.images->images;
        const model::RowSight row = model::row_sight(tower, images, s.slot * features, 0, INT32_MAX);
        const auto first = static_cast<int32_t>(sight->attends.size());
        sight->add_tokens(&row, s.cached, part.count);
        if (!part.sees) continue;
        sight->segments.push_back({first, s.slot * features, row.rows, s.request.adapter});
        sight->places.insert(sight->places.end(), row.places.begin(), row.places.end());
        pass.seen_now.insert(pass.seen_now.end(), images.begin(), images.end());
    }
    pass.sight = std::move(sight);
}

model::CachedPass pass_of(const std::vector<ScheduledChunk>& parts, int64_t context, bool names_adapters) {
    model::CachedPass pass;
    data::Batch& batch = pass.batch;
    ops::PagedRows& rows = pass.rows;
    rows.most_pages = ops::pages_of(context);
    batch.segments = rows.q_offsets = {0};
    const bool has_axes = std::ranges::any_of(parts, [](const ScheduledChunk& part) {
        const auto& images = part.sequence->request.images;
        return images && !images->axes_T3.empty();
    });
    for (const ScheduledChunk& part : parts) {
        const Sequence& s = *part.sequence;
        const int64_t end = s.cached + part.count;
        const auto end_row = [&](int64_t tokens, int64_t keys) {
            batch.segments.push_back(static_cast<int32_t>(batch.ids_T.size()));
            batch.longest = std::max(batch.longest, static_cast<int32_t>(tokens));
            if (s.state >= 0) pass.states.push_back(s.state);
            if (s.cached == 0 && !part.as_decode_rows) return;
            rows.q_offsets.push_back(batch.segments.back());
            rows.lengths.push_back(static_cast<int32_t>(keys));
            rows.pages.insert(rows.pages.end(), s.pages.begin(), s.pages.end());
            rows.pages.resize(rows.lengths.size() * static_cast<std::size_t>(rows.most_pages));
            rows.decoding += part.decodes() || part.as_decode_rows ? 1 : 0;
        };
        if (part.resumes >= 0) pass.resumed.push_back({part.resumes, s.state});
        if (part.keeps >= 0) pass.kept.push_back({s.state, part.keeps});
        add_images(part, batch.tokens(), batch.images);
        for (int64_t t = s.cached; t < end; ++t) {
            if (has_axes) add_axes(s, t, batch.axes_T3);
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
