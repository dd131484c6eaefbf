#include "unsloth/data/loader.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "unsloth/core/error.h"
#include "unsloth/data/context_slice.h"

namespace unsloth::data {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

void check_options(const LoaderOptions& options) {
    const auto at_least_one = [](int64_t value, const char* key) {
        if (value < 1) throw Error("option.out-of-range", cat(key, " is ", value, ": expected at least 1"));
    };
    at_least_one(options.per_device_train_batch_size, "training.per_device_train_batch_size");
    at_least_one(options.gradient_accumulation_steps, "training.gradient_accumulation_steps");
    if (options.packing) at_least_one(options.max_seq_length, "model.max_seq_length (with data.packing)");
    if (options.max_tokens_per_batch > 0 && !options.source_weights.empty())
        throw Error("option.conflict", "training.max_tokens_per_batch and weights in data.datasets are both given",
                    "Their number of steps would differ from epoch to epoch; take rows "
                    "(per_device_train_batch_size) or packing.");
    UNSLOTH_CHECK(options.world_size > 0 && options.rank >= 0 && options.rank < options.world_size, "rank ",
                  options.rank, " of ", options.world_size);
}

/// The sum of the `count` largest values.
int64_t sum_of_largest(std::vector<int64_t> values, int64_t count) {
    const auto middle = values.begin() + std::min<int64_t>(count, static_cast<int64_t>(values.size()));
    std::partial_sort(values.begin(), middle, values.end(), std::greater<>());
    return std::accumulate(values.begin(), middle, int64_t{0});
}

}  // namespace

std::vector<std::vector<int64_t>> pack_rows(const std::vector<int64_t>& lengths, int64_t capacity) {
    std::vector<std::size_t> longest_first(lengths.size());
    std::iota(longest_first.begin(), longest_first.end(), 0);
    std::stable_sort(longest_first.begin(), longest_first.end(),
                     [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });

    std::vector<std::vector<int64_t>> rows;
    std::set<std::pair<int64_t, std::size_t>> open;  // {room, row}
    for (const std::size_t i : longest_first) {
        const auto best = open.lower_bound({lengths[i], 0});
        std::size_t row = rows.size();
        int64_t room = capacity;
        if (best != open.end()) {
            std::tie(room, row) = *best;
            open.erase(best);
        } else {
            rows.emplace_back();
        }
        rows[row].push_back(static_cast<int64_t>(i));
        if (room > lengths[i]) open.emplace(room - lengths[i], row);
    }
    for (auto& row : rows) std::sort(row.begin(), row.end());
    std::sort(rows.begin(), rows.end());  // no two begin with the same sample
    return rows;
}

StepLoader::StepLoader(Dataset dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
    check_options(options_);
    if (dataset_.size() == 0) throw Error("data.too-few-rows", "there are no rows to train on");
    pass_rows_ = options_.per_device_train_batch_size;
    make_units();
    rows_per_epoch_ = static_cast<int64_t>(units_.size());
    if (!options_.source_weights.empty()) make_mixture();
    if (!fills_by_tokens()) return;
    const int64_t longest = *std::max_element(unit_tokens_.begin(), unit_tokens_.end());
    if (longest > options_.max_tokens_per_batch)
        throw Error("data.row-exceeds-batch",
                    cat("training.max_tokens_per_batch is ", options_.max_tokens_per_batch,
                        ", and the longest row has ", longest, " tokens"),
                    "Raise it, or lower model.max_seq_length, so that rows are cut.");
    enter_epoch(0);
}

/// Rows as they are batched: single samples, or packed ones (of one source, if the sources are weighted).
void StepLoader::make_units() {
    for (int64_t i = 0; i < dataset_.size(); ++i) {
        row_ids_ = std::max(row_ids_, dataset_.row(i) + 1);
        pieces_ = std::max(pieces_, dataset_.piece(i) + 1);
    }
    const auto add_unit = [&](const std::vector<int64_t>& group) {
        const auto begin = static_cast<int64_t>(members_.size());
        members_.insert(members_.end(), group.begin(), group.end());
        units_.emplace_back(begin, static_cast<int64_t>(members_.size()));
        // A row's pieces are drawn for one by one; 31 bits are the row's, and a mixture's passes stand above them.
        constexpr int64_t nameable = int64_t{1} << 22;
        unit_rows_.push_back(dataset_.row(group.front()) | (dataset_.piece(group.front()) % nameable) << 40);
        int64_t tokens = 0;
        for (const int64_t i : group) tokens += dataset_.tokens(i);
        unit_tokens_.push_back(tokens);
    };
    if (!options_.packing) {
        for (int64_t i = 0; i < dataset_.size(); ++i) add_unit({i});
        return;
    }
    std::map<int32_t, std::vector<int64_t>> samples;
    for (int64_t i = 0; i < dataset_.size(); ++i)
        samples[options_.source_weights.empty() ? 0 : dataset_.source(i)].push_back(i);
    for (const auto& [source, of_source] : samples) {
        std::vector<int64_t> lengths;
        for (const int64_t i : of_source) lengths.push_back(dataset_.tokens(i));
        for (std::vector<int64_t>& row : pack_rows(lengths, options_.max_seq_length)) {
            for (int64_t& i : row) i = of_source[static_cast<std::size_t>(i)];
            add_unit(row);
        }
    }
}

void StepLoader::make_mixture() {
    mixture_.resize(options_.source_weights.size());
    for (std::size_t u = 0; u < units_.size(); ++u) {
        const auto source =
            static_cast<std::size_t>(dataset_.source(members_[static_cast<std::size_t>(units_[u].first)]));
        UNSLOTH_CHECK(source < mixture_.size(), "source ", source, " of ", mixture_.size(), " weights");
        mixture_[source].places.push_back(static_cast<int64_t>(u));
    }
    std::vector<int64_t> sizes;
    for (const MixtureSource& source : mixture_) sizes.push_back(static_cast<int64_t>(source.places.size()));
    const std::vector<int64_t> counts = mixture_counts(sizes, options_.source_weights);
    for (std::size_t s = 0; s < counts.size(); ++s) mixture_[s].count = counts[s];
    rows_per_epoch_ = std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

void StepLoader::set_pass_rows(int64_t rows) {
    UNSLOTH_CHECK(rows > 0 && !fills_by_tokens(), rows, " rows of a pass");
    pass_rows_ = rows;
}

int64_t StepLoader::passes_of_step() const {
    if (fills_by_tokens()) return options_.gradient_accumulation_steps;
    return ceil_div(rows_of_step(), pass_rows_);
}

int64_t StepLoader::steps_per_epoch() const {
    return ceil_div(rounds_per_epoch(), options_.gradient_accumulation_steps);
}

int64_t StepLoader::batches_per_epoch() const {
    return fills_by_tokens() ? static_cast<int64_t>(batch_ends_.size())
                             : ceil_div(rows_per_epoch(), options_.per_device_train_batch_size);
}

int64_t StepLoader::round_rows() const {
    return options_.per_device_train_batch_size * options_.world_size;
}

int64_t StepLoader::rounds_per_epoch() const {
    return fills_by_tokens() ? ceil_div(batches_per_epoch(), options_.world_size)
                             : ceil_div(rows_per_epoch(), round_rows());
}

/// The places in the epoch's order of what all ranks take in a round.
std::pair<int64_t, int64_t> StepLoader::round_places(int64_t round) const {
    if (!fills_by_tokens()) return {round * round_rows(), std::min((round + 1) * round_rows(), rows_per_epoch())};
    return {begin_of_batch(round * options_.world_size), begin_of_batch((round + 1) * options_.world_size)};
}

/// With max_tokens_per_batch: where a micro-batch begins in the epoch's order; its end for those that the epoch does
/// not have.
int64_t StepLoader::begin_of_batch(int64_t batch) const {
    return batch == 0 ? 0 : batch_ends_[static_cast<std::size_t>(std::min(batch, batches_per_epoch()) - 1)];
}

int64_t StepLoader::total_steps(double num_train_epochs, int64_t max_steps) const {
    if (max_steps >= 0) return max_steps;
    if (!(num_train_epochs > 0) || !std::isfinite(num_train_epochs))
        throw Error("option.out-of-range",
                    cat("training.num_train_epochs is ", num_train_epochs, ": expected a number above 0"));
    return static_cast<int64_t>(std::ceil(num_train_epochs * static_cast<double>(steps_per_epoch())));
}

BatchLimits StepLoader::limits() const {
    BatchLimits limits;
    std::vector<int64_t> segments, labels, keys, image_tokens;
    int64_t copies = 0;  // most segments of a row that shares tokens: how often each of its tokens may be a key
    for (const auto& [first, last] : units_) {
        int64_t unit_segments = 0, unit_labels = 0, unit_keys = 0, unit_image_tokens = 0;
        for (int64_t m = first; m < last; ++m) {
            const int64_t i = members_[static_cast<std::size_t>(m)];
            unit_segments += dataset_.segments(i);
            unit_labels += dataset_.targets(i);
            const Dataset::ImageSizes images = dataset_.image_sizes(i);
            limits.patches = std::max(limits.patches, images.patches);
            unit_image_tokens += images.tokens;
            const int64_t own_keys = dataset_.keys(i);
            unit_keys += own_keys;
            if (own_keys > dataset_.tokens(i)) copies = std::max(copies, dataset_.segments(i));
            limits.longest = std::max(limits.longest, dataset_.longest_segment(i));
        }
        segments.push_back(unit_segments);
        labels.push_back(unit_labels);
        keys.push_back(unit_keys);
        image_tokens.push_back(unit_image_tokens);
    }
    int64_t rows = pass_rows_;
    if (fills_by_tokens()) {
        // What lengths come together is the same in every epoch, which rows have them is not.
        rows = 0;
        for (std::size_t b = 0; b < batch_ends_.size(); ++b) {
            const int64_t begin = b == 0 ? 0 : batch_ends_[b - 1];
            int64_t tokens = 0;
            for (int64_t place = begin; place < batch_ends_[b]; ++place)
                tokens += unit_tokens_[static_cast<std::size_t>(order_[static_cast<std::size_t>(place)])];
            limits.tokens = std::max(limits.tokens, tokens);
            rows = std::max(rows, batch_ends_[b] - begin);
        }
    } else {
        limits.tokens = most(unit_tokens_, rows);
    }
    limits.segments = most(std::move(segments), rows);
    limits.labels = std::min(limits.tokens, most(std::move(labels), rows));
    limits.image_tokens = std::min(limits.tokens, most(std::move(image_tokens), rows));
    if (limits.patches > 0 && !options_.context.alone())
        throw Error("option.unsupported", "distributed.cp_size is set, and rows have images",
                    "Ranks do not share the tokens of such rows: leave cp_size at 1.");
    if (copies > 0) limits.keys = std::clamp(most(std::move(keys), rows), limits.tokens, copies * limits.tokens);
    return slice_limits(limits, options_.context);
}

int64_t StepLoader::most(std::vector<int64_t> values, int64_t count) const {
    // A mixture may take one row several times in a micro-batch.
    if (!mixture_.empty()) return *std::max_element(values.begin(), values.end()) * std::min(count, rows_per_epoch_);
    return sum_of_largest(std::move(values), count);
}

StepBatch StepLoader::step(int64_t number) {
    UNSLOTH_CHECK(number >= 0, "step ", number);
    const int64_t in_epoch = number % steps_per_epoch();
    StepBatch step;
    step.epoch_index = static_cast<uint32_t>(number / steps_per_epoch());
    enter_epoch(step.epoch_index);

    const int64_t first_round = in_epoch * options_.gradient_accumulation_steps;
    const int64_t last_round = std::min(first_round + options_.gradient_accumulation_steps, rounds_per_epoch());
    const bool regroups = !fills_by_tokens() && pass_rows_ != options_.per_device_train_batch_size;
    std::vector<int64_t> own;
    int64_t most = 0;  // rows of the rank that has most
    for (int64_t round = first_round; round < last_round; ++round) {
        const auto [begin, end] = round_places(round);
        count(begin, end, step);
        most += ceil_div(end - begin, options_.world_size);
        const std::vector<int64_t> places = own_places(round);
        own.insert(own.end(), places.begin(), places.end());
        if (regroups) continue;
        step.micro.push_back(micro_batch(own));
        own.clear();
    }
    for (int64_t pass = 0; regroups && pass < ceil_div(most, pass_rows_); ++pass) {
        const auto mine = static_cast<int64_t>(own.size());
        const auto place = [&](int64_t k) { return own.begin() + std::min(k * pass_rows_, mine); };
        step.micro.push_back(micro_batch({place(pass), place(pass + 1)}));
    }
    step.epoch = step.epoch_index + static_cast<double>(last_round) / static_cast<double>(rounds_per_epoch());
    return step;
}

std::vector<int64_t> StepLoader::rows_of_steps(int64_t first, int64_t last) {
    std::set<int64_t> rows;
    for (int64_t number = first; number < last && static_cast<int64_t>(rows.size()) < dataset_.size(); ++number) {
        enter_epoch(static_cast<uint32_t>(number / steps_per_epoch()));
        const int64_t round = number % steps_per_epoch() * options_.gradient_accumulation_steps;
        const int64_t last_round = std::min(round + options_.gradient_accumulation_steps, rounds_per_epoch());
        const int64_t end = round_places(last_round - 1).second;
        for (int64_t place = round_places(round).first; place < end; ++place) {
            const auto [unit_begin, unit_end] = unit_at(place);
            rows.insert(members_.begin() + unit_begin, members_.begin() + unit_end);
        }
    }
    return {rows.begin(), rows.end()};
}

EpochCounts StepLoader::count_epoch(uint32_t epoch) {
    enter_epoch(epoch);
    StepBatch sums;
    const auto places = static_cast<int64_t>(order_.size());
    count(0, places, sums);
    EpochCounts counts{0, sums.tokens, sums.labels, 0};
    for (int64_t place = 0; place < places; ++place) counts.rows += unit_at(place).second - unit_at(place).first;
    if (options_.packing) counts.room = places * options_.max_seq_length;
    if (fills_by_tokens()) counts.room = batches_per_epoch() * options_.max_tokens_per_batch;
    return counts;
}

void StepLoader::enter_epoch(uint32_t epoch) {
    if (epoch_ == static_cast<int64_t>(epoch)) return;
    order_ = mixture_.empty() ? epoch_order(unit_rows_, options_.seed, epoch, options_.shuffle)
                              : mixture_order(mixture_, unit_rows_, options_.seed, epoch, options_.shuffle);
    if (!mixture_.empty()) count_repetitions();
    if (fills_by_tokens()) fill_by_tokens(epoch);
    epoch_ = epoch;
}

void StepLoader::count_repetitions() {
    std::vector<int64_t> seen(units_.size());
    repetition_.clear();
    for (const int64_t unit : order_) repetition_.push_back(seen[static_cast<std::size_t>(unit)]++);
}

/// The k-th repetition of a row, and its k-th piece, count as row + k x (number of row ids), a row that there is not;
/// of the epoch's first coming of a first piece there is nothing to say. 31 bits name 2^31 such rows, and beyond them
/// names come again.
std::optional<int32_t> StepLoader::dropout_row(int64_t member, int64_t place) const {
    const int64_t repetition = repetition_.empty() ? 0 : repetition_[static_cast<std::size_t>(place)];
    const int64_t k = repetition * pieces_ + dataset_.piece(member);
    if (k == 0) return std::nullopt;
    constexpr int64_t names = int64_t{1} << 31;
    return static_cast<int32_t>((dataset_.row(member) + k % names * row_ids_) % names);
}

/// Makes micro-batches of the rows in order_, which then follow each other there.
void StepLoader::fill_by_tokens(uint32_t epoch) {
    std::vector<int64_t> lengths;
    for (const int64_t unit : order_) lengths.push_back(unit_tokens_[static_cast<std::size_t>(unit)]);
    std::vector<std::vector<int64_t>> batches = pack_rows(lengths, options_.max_tokens_per_batch);
    std::vector<int64_t> names;  // a batch goes by its first row
    for (const auto& batch : batches)
        names.push_back(unit_rows_[static_cast<std::size_t>(order_[static_cast<std::size_t>(batch.front())])]);
    std::vector<int64_t> filled;
    batch_ends_.clear();
    for (const int64_t b : epoch_order(names, options_.seed, epoch, options_.shuffle, RngStream::batch_order)) {
        for (const int64_t place : batches[static_cast<std::size_t>(b)])
            filled.push_back(order_[static_cast<std::size_t>(place)]);
        batch_ends_.push_back(static_cast<int64_t>(filled.size()));
    }
    order_ = std::move(filled);
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
            ++step.rows;
            if (options_.count_first_labels)
                step.first_labels += dataset_.first_targets(members_[static_cast<std::size_t>(m)]);
        }
    }
}

Batch StepLoader::micro_batch(const std::vector<int64_t>& places) const {
    std::vector<Sample> samples;
    for (const int64_t place : places) {
        const auto [first, last] = unit_at(place);
        for (int64_t m = first; m < last; ++m) {
            const int64_t member = members_[static_cast<std::size_t>(m)];
            samples.emplace_back(dataset_.sample(member)).dropout_row = dropout_row(member, place);
        }
    }
    dataset_.load_pixels(samples);
    Batch batch = slice(make_batch(samples), options_.context);
    if (options_.order_tokens) batch.token_order = sort_tokens(batch.ids_T);
    return batch;
}

}  // namespace unsloth::data
