#include <algorithm>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/data/context_slice.h"
#include "unsloth/data/loader.h"

namespace unsloth::data {

EvalLoader::EvalLoader(Dataset dataset, int64_t max_tokens, int rank, int world_size, ContextRank context)
    : dataset_(std::move(dataset)), context_(context) {
    UNSLOTH_CHECK(max_tokens > 0 && world_size > 0 && rank >= 0 && rank < world_size, max_tokens, " tokens, rank ",
                  rank);
    int64_t number = 0;
    for (int64_t begin = 0, end = 0; begin < dataset_.size(); begin = end, ++number) {
        int64_t tokens = 0;
        const auto joins = [&] {
            return dataset_.source(end) == dataset_.source(begin) && tokens + dataset_.tokens(end) <= max_tokens;
        };
        while (end < dataset_.size() && (end == begin || joins())) tokens += dataset_.tokens(end++);
        if (number % world_size == rank) ranges_.emplace_back(begin, end);
    }
    most_batches_ = (number + world_size - 1) / world_size;
}

BatchLimits EvalLoader::limits() const {
    BatchLimits limits;
    for (const auto& [begin, end] : ranges_) {
        BatchLimits one;
        for (int64_t i = begin; i < end; ++i) {
            one.tokens += dataset_.tokens(i);
            one.segments += dataset_.segments(i);
            one.labels += dataset_.targets(i);
            const Dataset::ImageSizes images = dataset_.image_sizes(i);
            limits.patches = std::max(limits.patches, images.patches);
            one.image_tokens += images.tokens;
            one.keys += dataset_.keys(i);
            limits.longest = std::max(limits.longest, dataset_.longest_segment(i));
        }
        limits.tokens = std::max(limits.tokens, one.tokens);
        limits.segments = std::max(limits.segments, one.segments);
        limits.labels = std::max(limits.labels, one.labels);
        limits.image_tokens = std::max(limits.image_tokens, one.image_tokens);
        if (one.keys > one.tokens) limits.keys = std::max(limits.keys, one.keys);
    }
    return slice_limits(limits, context_);
}

int32_t EvalLoader::source(int64_t i) const {
    return dataset_.source(ranges_.at(static_cast<std::size_t>(i)).first);
}

std::vector<Extent> EvalLoader::extents() const {
    std::vector<Extent> extents(1);
    for (int64_t i = 0; i < dataset_.size(); ++i) {
        const auto source = static_cast<std::size_t>(dataset_.source(i));
        if (source >= extents.size()) extents.resize(source + 1);
        ++extents[source].rows;
        extents[source].labels += dataset_.targets(i);
    }
    return extents;
}

Batch EvalLoader::batch(int64_t i) const {
    const auto [begin, end] = ranges_.at(static_cast<std::size_t>(i));
    std::vector<Sample> samples;
    for (int64_t k = begin; k < end; ++k) samples.push_back(dataset_.sample(k));
    dataset_.load_pixels(samples);
    return slice(make_batch(samples), context_);
}

}  // namespace unsloth::data
