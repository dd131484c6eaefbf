// The report as text and as JSON.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/figures.h"
#include "unsloth/core/error.h"
#include "unsloth/core/utf8.h"
#include "unsloth/data/report.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t label_width = 12, number_width = 13;

std::string padded(const std::string& text, std::size_t width) {
    return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

std::string right(const std::string& text, std::size_t width) {
    return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

/// "  truncated             12   cut at 2,048 tokens".
std::string line(const std::string& label, int64_t number, const std::string& remark = {}) {
    return cat("  ", padded(label, label_width), right(grouped(number), number_width),
               remark.empty() ? "" : "   " + remark, "\n");
}

/// The lines of a text that comes from outside.
std::string indented(const std::string& text) {
    std::string out;
    std::istringstream lines(printable(text));
    for (std::string one; std::getline(lines, one);) out += "  " + one + "\n";
    return out;
}

std::string duplicates_text(const SetReport& set) {
    if (set.duplicates == 0) return {};
    std::string text = "have the tokens of an earlier row: ";
    for (std::size_t d = 0; d < set.first_duplicates.size(); ++d)
        text += cat(d == 0 ? "" : ", ", set.first_duplicates[d].first, " those of ", set.first_duplicates[d].second);
    return text + (set.duplicates > static_cast<int64_t>(set.first_duplicates.size()) ? ", ..." : "");
}

std::string histogram(const SetReport& set) {
    constexpr int64_t longest_bar = 40;
    int64_t most = 1;
    for (const LengthBin& bin : set.lengths) most = std::max(most, bin.rows);
    std::string text;
    for (const LengthBin& bin : set.lengths) {
        if (bin.to < set.shortest) continue;
        const int64_t bar = (bin.rows * longest_bar + most - 1) / most;
        text += cat("  ", right(cat(grouped(bin.from), " - ", grouped(bin.to)), label_width + 3),
                    right(grouped(bin.rows), number_width - 3), "  ", std::string(static_cast<std::size_t>(bar), '#'),
                    "\n");
    }
    return text;
}

std::string set_text(const char* title, const SetReport& set, bool held_out) {
    std::string text = cat("\n", title, ": ", printable(set.source), " (", format_name(set.format), ")\n");
    if (!held_out) {
        text += line("read", set.read);
        text +=
            line("dropped", set.bad + set.masked + set.too_long + set.too_short + set.dropped_duplicates,
                 cat(grouped(set.bad), " bad, ", grouped(set.masked), " with all labels masked",
                     set.too_long > 0 ? cat(", ", grouped(set.too_long), " too long") : "",
                     set.too_short > 0 ? cat(", ", grouped(set.too_short), " too short") : "",
                     set.dropped_duplicates > 0 ? cat(", ", grouped(set.dropped_duplicates), " as duplicates") : ""));
    }
    text += line("rows", set.rows);
    text += line("truncated", set.truncated);
    if (set.split > 0) text += line("split", set.split, cat("rows of the files, into ", grouped(set.pieces)));
    text += line("duplicates", set.duplicates, duplicates_text(set));
    text += line("tokens", set.tokens,
                 cat(grouped(set.trained_tokens), " of them trained (", percent(set.trained_tokens, set.tokens), ")"));
    if (set.images > 0)
        text += line("images", set.images,
                     cat(grouped(set.image_tokens), " tokens (", percent(set.image_tokens, set.tokens), ")"));
    if (set.rows == 0) return text;
    text +=
        cat("  ", padded("length", label_width), "shortest ", grouped(set.shortest), ", median ", grouped(set.median),
            ", 95 % up to ", grouped(set.p95), ", longest ", grouped(set.longest), " tokens\n");
    return text + histogram(set);
}

std::string batch_text(const StepsReport& steps) {
    const LoaderOptions& options = steps.options;
    const std::string batch =
        options.max_tokens_per_batch > 0
            ? cat("at most ", grouped(options.max_tokens_per_batch), " tokens")
            : cat(options.per_device_train_batch_size, options.packing ? " packed rows" : " rows");
    return cat(batch, " x ", options.gradient_accumulation_steps, " micro-batches on one device");
}

std::string steps_text(const StepsReport& steps) {
    const EpochCounts& epoch = steps.first_epoch;
    std::string text = "\nSteps\n";
    text += line("an epoch", steps.steps_per_epoch, batch_text(steps));
    text += line("in all", steps.total_steps);
    text += line("rows", epoch.rows, "an epoch");
    text += line("tokens", epoch.tokens, cat("an epoch, ", grouped(epoch.labels), " of them trained"));
    if (steps.options.packing)
        text += line("packed rows", steps.rows_per_epoch,
                     cat("an epoch, of at most ", grouped(steps.options.max_seq_length), " tokens, ",
                         percent(epoch.tokens, epoch.room), " full"));
    if (steps.options.max_tokens_per_batch > 0)
        text += cat("  ", padded("filled", label_width), right(percent(epoch.tokens, epoch.room), number_width), "\n");
    return text;
}

/// ", 2 images of 40 tokens"; empty without any.
std::string images_text(const Sample& sample) {
    if (sample.images.empty()) return {};
    int64_t tokens = 0;
    for (const auto& [begin, end] : image_ranges(sample)) tokens += end - begin;
    const auto count = static_cast<int64_t>(sample.images.size());
    return cat(", ", grouped(count), count == 1 ? " image of " : " images of ", grouped(tokens),
               tokens == 1 ? " token" : " tokens");
}

std::string samples_text(const DataReport& report, const tokenizer::Tokenizer* tokenizer, Marks marks) {
    if (report.samples.empty()) return {};
    std::string text = marks == Marks::colour
                           ? "Rows as the model sees them: loss tokens are green, masked ones faint.\n"
                           : "Rows as the model sees them: loss tokens are between \u27e6 and \u27e7.\n";
    for (const auto& [set, sample] : report.samples) {
        int64_t trained = 0;
        for (const auto& [begin, end] : target_ranges(sample)) trained += end - begin;
        text += cat("\n--- ", set == "masked" ? "all labels masked" : set, ", row ", sample.row, ": ",
                    grouped(static_cast<int64_t>(sample.ids.size())), " tokens, ", grouped(trained), " trained",
                    images_text(sample), "\n", show_tokens(sample, tokenizer, marks));
    }
    return text;
}

Json json_of(const SetReport& set) {
    Json json{
        {"source", set.source},
        {"format", format_name(set.format)},
        {"read", set.read},
        {"dropped", {{"bad", set.bad}, {"all_labels_masked", set.masked}}},
        {"dropped_duplicates", set.dropped_duplicates},
        {"too_long", set.too_long},
        {"too_short", set.too_short},
        {"rows", set.rows},
        {"truncated", set.truncated},
        {"split", {{"rows", set.split}, {"pieces", set.pieces}}},
        {"duplicates", set.duplicates},
        {"first_duplicates", set.first_duplicates},
        {"tokens", set.tokens},
        {"trained_tokens", set.trained_tokens},
        {"images", {{"count", set.images}, {"tokens", set.image_tokens}}},
        {"length", {{"shortest", set.shortest}, {"median", set.median}, {"p95", set.p95}, {"longest", set.longest}}}};
    json["histogram"] = Json::array();
    for (const LengthBin& bin : set.lengths)
        json["histogram"].push_back({{"from", bin.from}, {"to", bin.to}, {"rows", bin.rows}});
    return json;
}

Json json_of(const StepsReport& steps) {
    const EpochCounts& epoch = steps.first_epoch;
    Json json{{"steps_per_epoch", steps.steps_per_epoch},
              {"total_steps", steps.total_steps},
              {"rows_per_epoch", epoch.rows},
              {"tokens_per_epoch", epoch.tokens},
              {"trained_tokens_per_epoch", epoch.labels}};
    if (steps.options.packing) json["packed_rows_per_epoch"] = steps.rows_per_epoch;
    if (epoch.room > 0) json["efficiency"] = static_cast<double>(epoch.tokens) / static_cast<double>(epoch.room);
    return json;
}

Json json_of(const std::string& set, const Sample& sample, const tokenizer::Tokenizer* tokenizer) {
    Json json{{"set", set},
              {"row", sample.row},
              {"ids", sample.ids},
              {"labels", sample.labels},
              {"trained", target_ranges(sample)}};
    if (!sample.segments.empty() || (!sample.positions.empty() && sample.positions.front() != 0))
        json["position_ids"] = sample.positions;
    if (tokenizer != nullptr) json["text"] = tokenizer->decode(sample.ids, false);
    const auto ranges = image_ranges(sample);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        const Image& image = sample.images[i];
        Json one = {{"tokens", ranges[i]}, {"grid", {image.grid_h, image.grid_w}}};
        if (!sample.sources.at(i).inlined) one["path"] = sample.sources[i].data;
        json["images"].push_back(std::move(one));
    }
    return json;
}

}  // namespace

std::string report_text(const DataReport& report, const tokenizer::Tokenizer* tokenizer, Marks marks) {
    std::string text = samples_text(report, tokenizer, marks);
    text += set_text("Training rows", report.train, false);
    if (report.eval) {
        text += set_text("Evaluation rows", *report.eval, report.eval->held_out);
        text += line("shared", report.shared,
                     report.shared > 0 ? "have the tokens of a training row: their loss says little" : "");
    }
    if (report.steps) text += steps_text(*report.steps);
    if (!report.warnings.empty()) text += "\nWarnings\n";
    for (const std::string& warning : report.warnings) text += indented(warning);
    if (!report.refusal.empty())
        text += "\nA run with this configuration stops:\n" + indented(error_line(*report.refusal_id, report.refusal));
    const int64_t dropped = report.train.bad + report.train.masked +
                            (report.eval && !report.eval->held_out ? report.eval->bad + report.eval->masked : 0);
    if (!report.refusal.empty() && report.steps && dropped > 0)
        text += cat("  The figures are those of a run with data.skip_invalid: true, which drops ",
                    dropped == 1 ? "this row.\n" : cat("these ", grouped(dropped), " rows.\n"));
    return text.starts_with('\n') ? text.substr(1) : text;
}

std::string report_json(const DataReport& report, const tokenizer::Tokenizer* tokenizer) {
    Json json;
    json["train"] = json_of(report.train);
    json["eval"] = report.eval ? json_of(*report.eval) : Json(nullptr);
    json["shared"] = report.shared;
    json["steps"] = report.steps ? json_of(*report.steps) : Json(nullptr);
    json["warnings"] = report.warnings;
    json["refusal"] = report.refusal.empty() ? Json(nullptr) : Json(report.refusal);
    json["refusal_id"] = report.refusal_id ? Json(report.refusal_id->name()) : Json(nullptr);
    json["rows"] = Json::array();
    for (const auto& [set, sample] : report.samples) json["rows"].push_back(json_of(set, sample, tokenizer));
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace unsloth::data
