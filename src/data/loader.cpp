#include "unsloth/data/loader.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <numeric>

#include "unsloth/core/error.h"
#include "unsloth/data/sampler.h"

namespace unsloth {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

void check_options(const LoaderOptions& options) {
    const auto at_least_one = [](int64_t value, const char* key) {
        if (value < 1) throw usage_error(cat(key, " is ", value, ": expected at least 1"));
    };
    at_least_one(options.per_device_train_batch_size, "training.per_device_train_batch_size");
    at_least_one(options.gradient_accumulation_steps, "training.gradient_accumulation_steps");
    if (options.packing) at_least_one(options.max_seq_length, "model.max_seq_length (with data.packing)");
    UNSLOTH_CHECK(options.world_size > 0 && options.rank >= 0 && options.rank < options.world_size, "rank ",
                  options.rank, " of ", options.world_size);
}

Batch join(const std::vector<Sample>& samples) {
    std::vector<const Sample*> pointers;
    for (const Sample& sample : samples) pointers.push_back(&sample);
    return make_batch(pointers);
}

/// The sum of the `count` largest values.
int64_t sum_of_largest(std::vector<int64_t> values, int64_t count) {
    const auto middle = values.begin() + std::min<int64_t>(count, static_cast<int64_t>(values.size()));
    std::partial_sort(values.begin(), middle, values.end(), std::greater<>());
    return std::accumulate(values.begin(), middle, int64_t{0});
}

}  // namespace

std::vector<std::vector<int64_t>> pack_rows(const std::vector<int64_t>& lengths, int64_t capacity) {
    constexpr std::size_t open_limit = 64;
    struct Open {
        std::size_t row;
        int64_t room;
    };
    std::vector<std::vector<int64_t>> rows;
    std::deque<Open> open;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        auto found =
            std::find_if(open.begin(), open.end(), [&](const Open& row) { return row.room >= lengths[i]; });
        if (found == open.end()) {
            if (open.size() == open_limit) open.pop_front();
            open.push_back({rows.size(), capacity});
            rows.emplace_back();
            found = open.end() - 1;
        }
        rows[found->row].push_back(static_cast<int64_t>(i));
        found->room -= lengths[i];
        if (found->room <= 0) open.erase(found);
    }
    return rows;
}

StepLoader::StepLoader(Dataset dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
    check_options(options_);
    if (dataset_.size() == 0) throw usage_error("there are no rows to train on");
    std::vector<std::vector<int64_t>> groups;
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < dataset_.size(); ++i) lengths.push_back(dataset_.tokens(i));
    if (options_.packing)
        groups = pack_rows(lengths, options_.max_seq_length);
    else
        for (int64_t i = 0; i < dataset_.size(); ++i) groups.push_back({i});
    for (const auto& group : groups) {
        const auto begin = static_cast<int64_t>(members_.size());
        members_.insert(members_.end(), group.begin(), group.end());
        units_.emplace_back(begin, static_cast<int64_t>(members_.size()));
        unit_rows_.push_back(dataset_.row(group.front()));
    }
}

int64_t StepLoader::steps_per_epoch() const {
    return ceil_div(rounds_per_epoch(), options_.gradient_accumulation_steps);
}

int64_t StepLoader::round_rows() const {
    return options_.per_device_train_batch_size * options_.world_size;
}

int64_t StepLoader::rounds_per_epoch() const {
    return ceil_div(rows_per_epoch(), round_rows());
}

int64_t StepLoader::total_steps(double num_train_epochs, int64_t max_steps) const {
    if (max_steps >= 0) return max_steps;
    if (!(num_train_epochs > 0) || !std::isfinite(num_train_epochs))
        throw usage_error(
            cat("training.num_train_epochs is ", num_train_epochs, ": expected a number above 0"));
    return static_cast<int64_t>(std::ceil(num_train_epochs * static_cast<double>(steps_per_epoch())));
}

BatchLimits StepLoader::limits() const {
    BatchLimits limits;
    std::vector<int64_t> tokens, segments, labels;
    for (const auto& [first, last] : units_) {
        std::vector<Sample> samples;
        for (int64_t m = first; m < last; ++m)
            samples.push_back(dataset_.sample(members_[static_cast<std::size_t>(m)]));
        const Batch unit = join(samples);
        tokens.push_back(unit.tokens());
        segments.push_back(static_cast<int64_t>(unit.segments.size()) - 1);
        labels.push_back(unit.labels);
        limits.longest = std::max<int64_t>(limits.longest, unit.longest);
    }
    const int64_t rows = options_.per_device_train_batch_size;
    limits.tokens = sum_of_largest(std::move(tokens), rows);
    limits.segments = sum_of_largest(std::move(segments), rows);
    limits.labels = sum_of_largest(std::move(labels), rows);
    return limits;
}

StepBatch StepLoader::step(int64_t number) {
    UNSLOTH_CHECK(number >= 0, "step ", number);
    const int64_t in_epoch = number % steps_per_epoch();
    StepBatch step;
    step.epoch_index = static_cast<uint32_t>(number / steps_per_epoch());
    enter_epoch(step.epoch_index);

    const int64_t first_round = in_epoch * options_.gradient_accumulation_steps;
    const int64_t last_round =
        std::min(first_round + options_.gradient_accumulation_steps, rounds_per_epoch());
    for (int64_t round = first_round; round < last_round; ++round) {
        const int64_t begin = round * round_rows();
        const int64_t end = std::min(begin + round_rows(), rows_per_epoch());
        count(begin, end, step);
        const auto [own_begin, own_end] = slice(begin, end);
        step.micro.push_back(micro_batch(own_begin, own_end));
    }
    step.epoch = step.epoch_index + static_cast<double>(last_round) / static_cast<double>(rounds_per_epoch());
    return step;
}

void StepLoader::enter_epoch(uint32_t epoch) {
    if (epoch_ == static_cast<int64_t>(epoch)) return;
    order_ = epoch_order(unit_rows_, options_.seed, epoch, options_.shuffle);
    epoch_ = epoch;
}

StepLoader::Unit StepLoader::unit_at(int64_t place) const {
    return units_[static_cast<std::size_t>(order_[static_cast<std::size_t>(place)])];
}

void StepLoader::count(int64_t begin, int64_t end, StepBatch& step) const {
    for (int64_t place = begin; place < end; ++place) {
        const auto [first, last] = unit_at(place);
        for (int64_t m = first; m < last; ++m) {
            step.labels += dataset_.targets(members_[static_cast<std::size_t>(m)]);
            step.tokens += dataset_.tokens(members_[static_cast<std::size_t>(m)]);
        }
    }
}

/// Our part of a round: equal shares, the first ranks taking one more where they do not come out even.
std::pair<int64_t, int64_t> StepLoader::slice(int64_t begin, int64_t end) const {
    const int64_t share = (end - begin) / options_.world_size;
    const int64_t extra = (end - begin) % options_.world_size;
    const int64_t rank = options_.rank;
    const int64_t own_begin = begin + rank * share + std::min(rank, extra);
    return {own_begin, own_begin + share + (rank < extra ? 1 : 0)};
}

Batch StepLoader::micro_batch(int64_t begin, int64_t end) const {
    std::vector<Sample> samples;
    for (int64_t place = begin; place < end; ++place) {
        const auto [first, last] = unit_at(place);
        for (int64_t m = first; m < last; ++m)
            samples.push_back(dataset_.sample(members_[static_cast<std::size_t>(m)]));
    }
    Batch batch = join(samples);
    if (options_.order_tokens) batch.token_order = sort_tokens(batch.ids_T);
    return batch;
}

EvalLoader::EvalLoader(Dataset dataset, int64_t max_tokens, int rank, int world_size)
    : dataset_(std::move(dataset)) {
    UNSLOTH_CHECK(max_tokens > 0 && world_size > 0 && rank >= 0 && rank < world_size, max_tokens,
                  " tokens, rank ", rank);
    int64_t number = 0;
    for (int64_t begin = 0, end = 0; begin < dataset_.size(); begin = end, ++number) {
        int64_t tokens = 0;
        while (end < dataset_.size() && (end == begin || tokens + dataset_.tokens(end) <= max_tokens))
            tokens += dataset_.tokens(end++);
        if (number % world_size == rank) ranges_.emplace_back(begin, end);
    }
}

BatchLimits EvalLoader::limits() const {
    BatchLimits limits;
    for (int64_t i = 0; i < batches(); ++i) {
        const Batch one = batch(i);
        limits.tokens = std::max(limits.tokens, one.tokens());
        limits.segments = std::max(limits.segments, static_cast<int64_t>(one.segments.size()) - 1);
        limits.longest = std::max<int64_t>(limits.longest, one.longest);
        limits.labels = std::max(limits.labels, one.labels);
    }
    return limits;
}

Batch EvalLoader::batch(int64_t i) const {
    const auto [begin, end] = ranges_.at(static_cast<std::size_t>(i));
    std::vector<Sample> samples;
    for (int64_t k = begin; k < end; ++k) samples.push_back(dataset_.sample(k));
    return join(samples);
}

}  // namespace unsloth
