#include "unsloth/data/dataset.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "data/load_rows.h"
#include "data/store.h"
#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"
#include "unsloth/data/sampler.h"
#include "unsloth/data/show.h"

namespace unsloth::data {
namespace {

/// Rows joined in memory.
class MemorySink : public RowSink {
  public:
    void append(StorePart&& part) override {
        const auto before = static_cast<int64_t>(rows.words.size());
        rows.words.insert(rows.words.end(), part.words.begin(), part.words.end());
        for (RowRecord& record : part.records) {
            record.start += before;
            rows.records.push_back(record);
        }
    }
    StorePart rows;
};

std::vector<int64_t> counted(int64_t n) {
    std::vector<int64_t> numbers(static_cast<std::size_t>(n));
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
}

}  // namespace

DatasetStats stats_of(const LoadReport& report, const DatasetOptions& options) {
    DatasetStats stats;
    stats.bad_rows = report.bad_rows;
    stats.masked_rows = report.masked_rows;
    stats.long_rows = report.long_rows;
    stats.short_rows = report.short_rows;
    stats.augmented_rows = report.augmented_rows;
    stats.format = report.format;
    stats.warnings = report.warnings;
    if (options.log_warnings)
        for (const std::string& warning : stats.warnings) log::warning(warning);
    return stats;
}

config::DataFormat probe_format(const std::filesystem::path& path, const DatasetOptions& options) {
    return resolve({.path = path.string(), .format = options.format, .columns = options.reader.columns}, options.reader,
                   options.skip_bad_rows)
        .format;
}

Dataset::Dataset() : store_(std::make_shared<Store>()) {}

Dataset::Dataset(std::shared_ptr<const Store> store, DatasetStats file)
    : Dataset(store, counted(store->rows()), file) {}

Dataset::Dataset(std::shared_ptr<const Store> store, std::vector<int64_t> rows, DatasetStats file)
    : store_(std::move(store)), rows_(std::move(rows)), stats_(store_->count(rows_)) {
    stats_.bad_rows = file.bad_rows;
    stats_.masked_rows = file.masked_rows;
    stats_.long_rows = file.long_rows;
    stats_.short_rows = file.short_rows;
    stats_.duplicate_rows = file.duplicate_rows;
    stats_.augmented_rows = file.augmented_rows;
    stats_.format = file.format;
    stats_.warnings = std::move(file.warnings);
}

Dataset Dataset::load(const std::vector<config::DataSource>& sources, const DatasetOptions& options,
                      const EncoderOnDemand& encoder) {
    std::vector<SourceFiles> files;
    for (const config::DataSource& source : sources)
        files.push_back(resolve(source, options.reader, options.skip_bad_rows));
    MemorySink sink;
    const LoadReport report = load_rows(files, options, encoders_of(files, encoder), sink);
    auto store = std::make_shared<Store>(std::move(sink.rows));
    store->vision = options.vision;
    return Dataset(std::move(store), stats_of(report, options));
}

Dataset Dataset::load(const std::filesystem::path& path, const DatasetOptions& options, const RowEncoder* encoder) {
    return load(
        std::vector<config::DataSource>{
            {.path = path.string(), .format = options.format, .columns = options.reader.columns}},
        options, [=](const std::string&) { return encoder; });
}

Dataset Dataset::from_samples(const std::vector<Sample>& samples) {
    StorePart rows;
    for (const Sample& sample : samples) {
        FormattedRow row{sample.ids, sample.labels, sample.positions, sample.segments};
        row.targets = count_targets(sample.labels, sample.segments);
        row.desirable = sample.desirable;
        row.options = sample.options;
        row.images = sample.images;
        row.sources = sample.sources;
        rows.append(row, sample.row, 0);
    }
    DatasetStats stats;
    stats.format = config::DataFormat::tokenized;
    return Dataset(std::make_shared<Store>(std::move(rows)), stats);
}

const VisionRows& Dataset::vision() const {
    UNSLOTH_CHECK(store_->vision != nullptr, "rows without images");
    return *store_->vision;
}

void Dataset::load_pixels(std::vector<Sample>& rows) const {
    if (store_->vision) data::load_pixels(rows, *store_->vision, kept_.get());
}

Sample Dataset::sample(int64_t i) const {
    return store_->sample(rows_.at(static_cast<std::size_t>(i)));
}

int64_t Dataset::row(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).source_row;
}

int64_t Dataset::piece(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).piece();
}

int32_t Dataset::source(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).source;
}

int64_t Dataset::tokens(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).length;
}

int64_t Dataset::targets(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).targets;
}

int64_t Dataset::first_targets(int64_t i) const {
    const Sample row = sample(i);
    const auto end = row.labels.begin() + listed(row.segments, row.ids.size()).front().length;
    return std::count_if(row.labels.begin() + 1, end, [](int32_t label) { return label != ignore_label; });
}

Dataset Dataset::subset(const std::vector<int64_t>& places) const {
    std::vector<int64_t> rows;
    for (const int64_t place : places) rows.push_back(rows_.at(static_cast<std::size_t>(place)));
    Dataset part(store_, std::move(rows), stats_);
    part.kept_ = kept_;
    return part;
}

/// A data set of rows that were made of this one's.
Dataset Dataset::of(StorePart&& rows) const {
    auto store = std::make_shared<Store>(std::move(rows));
    store->vision = store_->vision;
    return Dataset(std::move(store), stats_);
}

Dataset Dataset::with_foreign_answers(int64_t longest) const {
    if (size() < 2)
        throw Error("data.too-few-rows", cat("training.objective kto needs two rows at least, found ", size()),
                    "A row's prompt with another's answer shows how far the policy is from the reference.");
    const auto answer_begin = [](const Sample& row) {
        return std::find_if(row.labels.begin(), row.labels.end(), [](int32_t label) { return label != ignore_label; }) -
               row.labels.begin();
    };
    StorePart part;
    Sample before = sample(size() - 1);
    for (int64_t i = 0; i < size(); ++i) {
        const Sample own = sample(i);
        const RowRecord& record = store_->record(rows_[static_cast<std::size_t>(i)]);
        FormattedRow row{own.ids, own.labels, own.positions};
        const auto prompt = answer_begin(own), foreign = answer_begin(before);
        row.ids.insert(row.ids.end(), own.ids.begin(), own.ids.begin() + prompt);
        row.labels.insert(row.labels.end(), own.labels.begin(), own.labels.begin() + prompt);
        row.ids.insert(row.ids.end(), before.ids.begin() + foreign, before.ids.end());
        row.labels.insert(row.labels.end(), before.labels.begin() + foreign, before.labels.end());
        if (longest > 0 && row.ids.size() > own.ids.size() + static_cast<std::size_t>(longest)) {
            row.ids.resize(own.ids.size() + static_cast<std::size_t>(longest));
            row.labels.resize(row.ids.size());
        }
        for (std::size_t t = own.ids.size(); t < row.ids.size(); ++t)
            row.positions.push_back(static_cast<int32_t>(t - own.ids.size()));
        const auto first = static_cast<int32_t>(own.ids.size()), second = static_cast<int32_t>(row.ids.size()) - first;
        row.segments = {{0, first}, {first, second}};
        for (const int32_t begin : {0, first})  // images are the prompt's
            for (std::size_t image = 0; image < own.images.size(); ++image) {
                row.images.push_back(own.images[image]);
                row.images.back().first += begin;
                row.sources.push_back(own.sources[image]);
            }
        row.targets = count_targets(row.labels, row.segments);
        row.truncated = record.has(RowRecord::truncated);
        row.desirable = own.desirable;
        part.append(row, own.row, record.source);
        before = own;
    }
    return of(std::move(part));
}

Dataset Dataset::with_shared_prompts() const {
    StorePart part;
    for (int64_t i = 0; i < size(); ++i) {
        const RowRecord& record = store_->record(rows_[static_cast<std::size_t>(i)]);
        const Sample own = sample(i);
        FormattedRow row{own.ids, own.labels, own.positions, own.segments};
        row.truncated = record.has(RowRecord::truncated);
        row.desirable = own.desirable;
        const auto length = static_cast<std::ptrdiff_t>(own.ids.size());
        const std::ptrdiff_t second = record.segments == 2 ? own.segments[1].begin : length;
        std::ptrdiff_t shared = 0;
        const auto of_prompt = [&](std::ptrdiff_t t) {
            const auto a = static_cast<std::size_t>(t), b = static_cast<std::size_t>(second + t);
            return own.ids[a] == own.ids[b] && own.labels[a] == ignore_label && own.labels[b] == ignore_label &&
                   own.positions[a] == t && own.positions[b] == t;
        };
        while (record.segments == 2 && shared < std::min(second, length - second) && of_prompt(shared)) ++shared;
        if (shared == length - second) shared = 0;  // an answer of its own is needed
        // Where layers read an image's features, each segment is to have its own.
        const bool embeds = store_->vision && store_->vision->three_axes;
        if (!own.images.empty() && !embeds) shared = 0;
        const auto last_shared = [&](const Image& image) { return image.first >= second + shared; };
        if (std::ranges::any_of(own.images, last_shared)) shared = 0;
        for (std::size_t image = 0; image < own.images.size(); ++image) {
            if (shared > 0 && own.images[image].first >= second) break;
            row.images.push_back(own.images[image]);
            row.sources.push_back(own.sources[image]);
        }
        for (auto* values : {&row.ids, &row.labels, &row.positions})
            values->erase(values->begin() + second, values->begin() + second + shared);
        if (shared > 0)
            row.segments[1] = {static_cast<int32_t>(second), static_cast<int32_t>(length - second - shared),
                               /*owner=*/0, static_cast<int32_t>(shared)};
        row.targets = record.targets;
        part.append(row, own.row, record.source);
    }
    return of(std::move(part));
}

Dataset Dataset::with_trained_prompts() const {
    StorePart part;
    for (int64_t i = 0; i < size(); ++i) {
        const RowRecord& record = store_->record(rows_[static_cast<std::size_t>(i)]);
        const Sample own = sample(i);
        FormattedRow row{own.ids, own.labels, own.positions, own.segments};
        row.images = own.images;
        row.sources = own.sources;
        const int32_t image_token = own.images.empty() ? -1 : store_->vision->image_token;
        for (std::size_t t = 1; t < row.labels.size() && row.labels[t] == ignore_label; ++t)
            if (row.ids[t] != image_token) row.labels[t] = prompt_label(row.ids[t]);
        row.targets = count_targets(row.labels, row.segments);
        row.truncated = record.has(RowRecord::truncated);
        row.desirable = own.desirable;
        part.append(row, own.row, record.source);
    }
    return of(std::move(part));
}

int64_t Dataset::keys(int64_t i) const {
    int64_t keys = tokens(i);
    if (segments(i) < 2) return keys;
    for (const Segment& segment : sample(i).segments) keys += segment.shared;
    return keys;
}

Sample Dataset::images(int64_t i) const {
    return store_->images(rows_.at(static_cast<std::size_t>(i)));
}

Dataset::ImageSizes Dataset::image_sizes(int64_t i) const {
    ImageSizes sizes;
    if (!store_->record(rows_.at(static_cast<std::size_t>(i))).has(RowRecord::given_images)) return sizes;
    const Sample row = sample(i);
    for (const Image& image : row.images) sizes.patches = std::max(sizes.patches, image.patches());
    for (const auto& [begin, end] : image_ranges(row)) sizes.tokens += end - begin;
    return sizes;
}

int64_t Dataset::segments(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).segments;
}

bool Dataset::truncated(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).has(RowRecord::truncated);
}

int64_t Dataset::longest_segment(int64_t i) const {
    return store_->record(rows_.at(static_cast<std::size_t>(i))).longest;
}

std::string Dataset::fingerprint() const {
    ContentHash hash;
    const auto add = [&](const auto* values, std::size_t count) {
        hash.add({reinterpret_cast<const char*>(values), count * sizeof *values});
    };
    for (int64_t i = 0; i < size(); ++i) {
        const Sample row = sample(i);
        const int64_t named[] = {row.row, source(i), tokens(i)};
        add(named, std::size(named));
        if (constexpr int64_t verdict = 1; row.desirable) add(&verdict, 1);
        for (const auto* words : {&row.ids, &row.labels, &row.positions}) add(words->data(), words->size());
        add(row.options.ids.data(), row.options.ids.size());
        add(row.options.shares.data(), row.options.shares.size());
        for (const ImageSource& source : row.sources) hash.add_field(source.data);
        // Where the positions say what the segments are, checkpoints of earlier versions have the same hash.
        if (row.segments != segments_at_zero(row.positions)) add(row.segments.data(), row.segments.size());
    }
    return hash.hex();
}

std::pair<Dataset, Dataset> Dataset::split(double val_size, uint64_t seed) const {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < size(); ++i)
        if (ids.empty() || ids.back() != row(i)) ids.push_back(row(i));  // pieces of a row stand together
    std::set<int64_t> held_out;
    for (const int64_t place : validation_places(ids, val_size, seed))
        held_out.insert(ids[static_cast<std::size_t>(place)]);
    std::vector<int64_t> train, validation;
    for (int64_t i = 0; i < size(); ++i)
        if (held_out.contains(row(i))) validation.push_back(rows_[static_cast<std::size_t>(i)]);
    std::set_difference(rows_.begin(), rows_.end(), validation.begin(), validation.end(), std::back_inserter(train));
    return {Dataset(store_, std::move(train), stats_), Dataset(store_, std::move(validation), stats_)};
}

std::pair<std::string, int64_t> Dataset::content(int64_t begin) const {
    ContentHash hash;
    int64_t end = begin;
    for (; end < size() && row(end) == row(begin); ++end) {  // the pieces of a row stand together
        const Sample piece = sample(end);
        const auto add = [&](const auto& values) {
            hash.add_field({reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]});
        };
        for (const auto* words : {&piece.ids, &piece.labels, &piece.positions}) add(*words);
        add(piece.options.shares);
        add(piece.segments);
        for (const ImageSource& source : piece.sources) hash.add_field(source.data);
        hash.add_field(piece.desirable ? "desirable" : "");
    }
    return {hash.hex(), end};
}

std::pair<int64_t, int64_t> Dataset::shared_with(const Dataset& other) const {
    std::unordered_map<std::string, int64_t> own;  // and how many of them there are
    int64_t rows = 0, shared = 0;
    for (int64_t at = 0; at < size(); ++rows) {
        const auto [hash, end] = content(at);
        ++own[hash];
        at = end;
    }
    for (int64_t at = 0; at < other.size() && shared < rows;) {
        const auto [hash, end] = other.content(at);
        if (const auto found = own.find(hash); found != own.end()) shared += std::exchange(found->second, 0);
        at = end;
    }
    return {shared, rows};
}

Dataset Dataset::without_duplicates() const {
    std::vector<int64_t> kept;
    std::unordered_set<std::string> known;
    DatasetStats file = stats_;
    for (int64_t begin = 0, end = 0; begin < size(); begin = end) {
        std::string hash;
        std::tie(hash, end) = content(begin);
        const bool is_new = known.insert(std::move(hash)).second;
        file.duplicate_rows += !is_new;
        for (int64_t i = begin; is_new && i < end; ++i) kept.push_back(rows_[static_cast<std::size_t>(i)]);
    }
    return Dataset(store_, std::move(kept), file);
}

std::pair<Dataset, Dataset> Dataset::by_targets() const {
    std::vector<int64_t> trained, masked;
    for (int64_t i = 0; i < size(); ++i)
        (targets(i) > 0 ? trained : masked).push_back(rows_[static_cast<std::size_t>(i)]);
    DatasetStats file = stats_;
    file.masked_rows += static_cast<int64_t>(masked.size());
    return {Dataset(store_, std::move(trained), file), Dataset(store_, std::move(masked), file)};
}

}  // namespace unsloth::data
