#include "data/load_rows.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/ordered_workers.h"
#include "data/row_errors.h"
#include "unsloth/core/interrupt.h"

namespace unsloth {
namespace {

constexpr std::size_t shown_rows = 5;  ///< how many rows a message lists

/// A row that was not taken, and why.
struct Rejected {
    std::string place;
    BadRow reason;
};

/// What was left out or changed.
struct Losses {
    int64_t bad = 0;
    std::vector<Rejected> first_bad;
    int64_t masked = 0;
    int64_t masked_after_cut = 0;
    std::vector<std::string> first_masked;
    int64_t repaired = 0;
    std::vector<std::string> first_repaired;
};

template <class Item>
void add_first(std::vector<Item>& first, std::vector<Item>&& more) {
    for (Item& item : more)
        if (first.size() < shown_rows) first.push_back(std::move(item));
}

/// Adds `other`, which comes later in the files.
void add(Losses& sum, Losses&& other) {
    sum.bad += other.bad;
    sum.masked += other.masked;
    sum.masked_after_cut += other.masked_after_cut;
    sum.repaired += other.repaired;
    add_first(sum.first_bad, std::move(other.first_bad));
    add_first(sum.first_masked, std::move(other.first_masked));
    add_first(sum.first_repaired, std::move(other.first_repaired));
}

std::string list_places(const std::vector<std::string>& places, int64_t count) {
    std::string text;
    for (const std::string& place : places) text += cat(text.empty() ? "" : ", ", place);
    return count > static_cast<int64_t>(places.size()) ? text + ", ..." : text;
}

Error error_at(const Rejected& row) {
    const char* const skip = "(data.skip_bad_rows: true leaves such rows out and counts them.)";
    return input_error(cat(row.place, ": ", row.reason.message), row.reason.advice.empty() ? skip : row.reason.advice + "\n  " + skip);
}

void refuse_masked(const Losses& lost, int64_t rows) {
    const bool cut = lost.masked_after_cut > 0;
    throw input_error(cat(lost.first_masked.front(), ": all labels are masked, nothing is left to train on (", lost.masked, " of ", rows,
                          " rows", cut ? cat(", ", lost.masked_after_cut, " of them since they were cut") : "", ": ",
                          list_places(lost.first_masked, lost.masked), ")"),
                      cat(cut ? "Raise model.max_seq_length, so that the answers are not cut off. " : "",
                          "data.skip_bad_rows: true leaves such rows out and counts them; data.train_on_prompt: true "
                          "trains on prompts too."));
}

std::vector<std::string> warnings_of(const Losses& lost, int64_t rows, const std::string& name) {
    std::vector<std::string> warnings;
    if (lost.bad > 0) {
        std::string text = cat(name, ": skipped ", lost.bad, " bad of ", rows, " rows:");
        for (const Rejected& row : lost.first_bad) text += cat("\n  ", row.place, ": ", row.reason.message);
        warnings.push_back(lost.bad > static_cast<int64_t>(lost.first_bad.size()) ? text + "\n  ..." : text);
    }
    if (lost.masked > 0)
        warnings.push_back(cat(name, ": left out ", lost.masked, " of ", rows, " rows whose labels are all masked: ",
                               list_places(lost.first_masked, lost.masked)));
    if (lost.repaired > 0)
        warnings.push_back(cat(name, ": bytes that are not UTF-8 became U+FFFD in ", lost.repaired, " of ", rows, " rows: ",
                               list_places(lost.first_repaired, lost.repaired)));
    return warnings;
}

/// Some encoded rows, and what was lost among them.
struct Encoded {
    StorePart rows;
    Losses lost;
};

class RowLoader {
  public:
    RowLoader(const std::vector<SourceFiles>& sources, const DatasetOptions& options, const RowEncoder* encoder) : options_(options) {
        for (const SourceFiles& source : sources) formatters_.emplace_back(source.format, options, encoder);
    }

    Encoded encode(const SourceReader::Part& part) const {
        Encoded result;
        for (std::size_t i = 0; i < part.chunk.size(); ++i) {
            // In a run that stops at the first bad row, the rows behind it in the chunk are not looked at.
            if (!encode_row(part, part.chunk.row(i), result) && !options_.skip_bad_rows) break;
        }
        return result;
    }

  private:
    /// False when the row is bad.
    bool encode_row(const SourceReader::Part& part, const RawRow& raw, Encoded& result) const {
        Losses& lost = result.lost;
        const auto reject = [&](BadRow reason) {
            ++lost.bad;
            if (lost.first_bad.size() < shown_rows) lost.first_bad.push_back({part.file->place(raw.line), std::move(reason)});
            return false;
        };
        const auto note = [&](int64_t& count, std::vector<std::string>& first) {
            ++count;
            if (first.size() < shown_rows) first.push_back(part.file->place(raw.line));
        };
        try {
            bool repaired = false;
            const FormattedRow row = formatters_[static_cast<std::size_t>(part.source)].format(part.file->parse(raw, &repaired));
            if (repaired) note(lost.repaired, lost.first_repaired);
            if (row.targets > 0 || options_.keep_all_masked) {
                result.rows.append(row, part.first_id + raw.index, part.source);
            } else {
                note(lost.masked, lost.first_masked);
                lost.masked_after_cut += row.truncated;
            }
            return true;
        } catch (const BadRow& bad) {
            return reject(bad);
        } catch (const Error& error) {  // the template or the tokenizer refuses the row
            if (error.kind() != ErrorKind::input) throw;
            return reject({error.what(), ""});
        }
    }

    DatasetOptions options_;
    std::vector<RowFormatter> formatters_;  ///< by source
};

int worker_count(int asked) {
    return asked > 0 ? asked : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void stop_when_asked() {
    if (const int signal = interrupt_requested(); signal != 0) throw Interrupted(signal, "stopped while the data was read; nothing was written");
}

std::string name_of(const std::vector<SourceFiles>& sources) {
    std::string text;
    for (const SourceFiles& source : sources) text += cat(text.empty() ? "" : ", ", source.name);
    return text;
}

}  // namespace

Error error_at(const RowReader& file, int64_t line, const BadRow& reason) {
    return error_at(Rejected{file.place(line), reason});
}

bool all_tokenized(const std::vector<SourceFiles>& sources) {
    return std::all_of(sources.begin(), sources.end(), [](const SourceFiles& source) { return source.format == DataFormat::tokenized; });
}

LoadReport load_rows(const std::vector<SourceFiles>& sources, const DatasetOptions& options, const RowEncoder* encoder, RowSink& sink) {
    const RowLoader loader(sources, options, encoder);
    SourceReader reader(sources, options.reader);
    Losses lost;
    int64_t kept = 0, cut = 0;
    const auto next = [&]() -> std::optional<SourceReader::Part> {
        SourceReader::Part part = reader.next();
        return part.chunk.empty() ? std::nullopt : std::optional(std::move(part));
    };
    const auto take = [&](Encoded&& encoded) {
        stop_when_asked();
        if (encoded.lost.bad > 0 && !options.skip_bad_rows) throw error_at(encoded.lost.first_bad.front());
        kept += static_cast<int64_t>(encoded.rows.records.size());
        for (const RowRecord& row : encoded.rows.records) cut += row.has(RowRecord::truncated);
        sink.append(std::move(encoded.rows));
        add(lost, std::move(encoded.lost));
    };
    run_in_order<SourceReader::Part, Encoded>(worker_count(options.workers), next, [&](const SourceReader::Part& part) { return loader.encode(part); }, take);

    const std::string name = name_of(sources);
    if (lost.masked > 0 && !options.skip_bad_rows) refuse_masked(lost, reader.rows());
    if (kept == 0)
        throw input_error(cat(name, ": none of its ", reader.rows(), " rows can be used (", lost.bad, " bad, ", lost.masked,
                              " with all labels masked)"));
    LoadReport report{reader.rows(), lost.bad, lost.masked, sources.front().format, warnings_of(lost, reader.rows(), name)};
    if (cut > 0)
        report.warnings.push_back(cat(name, ": cut ", cut, " of ", reader.rows(), " rows at ", options.max_seq_length,
                                      " tokens (model.max_seq_length)"));
    return report;
}

}  // namespace unsloth
