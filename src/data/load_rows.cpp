#include "data/load_rows.h"

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/columns.h"
#include "data/ordered_workers.h"
#include "data/row_errors.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/progress.h"

namespace unsloth::data {
namespace {

constexpr std::size_t shown_rows = 5;  ///< how many rows a message lists

/// A row that was not taken, and why.
struct Rejected {
    std::string place;
    BadRow reason;
};

/// How many rows something is so of, and where the first of them are.
struct Occurrences {
    int64_t count = 0;
    std::vector<std::string> first;

    void add(std::string place) {
        ++count;
        if (first.size() < shown_rows) first.push_back(std::move(place));
    }
};

constexpr std::array doubts = {RowDoubt::double_bos,    RowDoubt::open_end,         RowDoubt::guessed_template,
                               RowDoubt::merged_start,  RowDoubt::plain_prompt,     RowDoubt::empty_answer,
                               RowDoubt::double_end,    RowDoubt::unread_reasoning, RowDoubt::unused_template,
                               RowDoubt::unread_system, RowDoubt::unread_history,   RowDoubt::unread_tools,
                               RowDoubt::unread_media};

/// What was dropped or changed, or is in doubt.
struct Losses {
    int64_t bad = 0;
    std::vector<Rejected> first_bad;
    Occurrences masked, repaired, too_long, too_short;
    int64_t masked_after_cut = 0;
    int64_t augmented = 0;
    std::array<Occurrences, doubts.size()> doubtful;
};

template <class Item>
void add_first(std::vector<Item>& first, std::vector<Item>&& more) {
    for (Item& item : more)
        if (first.size() < shown_rows) first.push_back(std::move(item));
}

void add(Occurrences& sum, Occurrences&& other) {
    sum.count += other.count;
    add_first(sum.first, std::move(other.first));
}

/// Adds `other`, which comes later in the files.
void add(Losses& sum, Losses&& other) {
    sum.bad += other.bad;
    add_first(sum.first_bad, std::move(other.first_bad));
    add(sum.masked, std::move(other.masked));
    add(sum.repaired, std::move(other.repaired));
    add(sum.too_long, std::move(other.too_long));
    add(sum.too_short, std::move(other.too_short));
    sum.masked_after_cut += other.masked_after_cut;
    sum.augmented += other.augmented;
    for (std::size_t d = 0; d < doubts.size(); ++d) add(sum.doubtful[d], std::move(other.doubtful[d]));
}

std::string list_places(const Occurrences& noted) {
    std::string text;
    for (const std::string& place : noted.first) text += cat(text.empty() ? "" : ", ", place);
    return noted.count > static_cast<int64_t>(noted.first.size()) ? text + ", ..." : text;
}

Error error_at(const Rejected& row) {
    // Of a file whose columns say nothing, each row is such.
    if (row.reason.id == ErrorId("data.unknown-format"))
        return Error(row.reason.id, cat(row.place, ": ", row.reason.message), row.reason.advice);
    const char* const skip = "(data.skip_invalid: true leaves such rows out and counts them.)";
    return Error(row.reason.id, cat(row.place, ": ", row.reason.message),
                 row.reason.advice.empty() ? skip : row.reason.advice + "\n  " + skip);
}

void refuse_masked(const Losses& lost, int64_t rows) {
    const bool cut = lost.masked_after_cut > 0;
    throw Error(
        "data.all-masked",
        cat(lost.masked.first.front(), ": all labels are masked, nothing is left to train on (", lost.masked.count,
            " of ", rows, " rows", cut ? cat(", ", lost.masked_after_cut, " of them since they were cut") : "", ": ",
            list_places(lost.masked), ")"),
        cat("`unsloth-train data` with the same options shows such rows as the model sees them. ",
            cut ? "Raise model.max_seq_length, so that the answers are not cut off. " : "",
            "data.skip_invalid: true leaves such rows out and counts them; data.train_on_prompt: true "
            "trains on prompts too."));
}

/// `subject`: see RowEncoder::subject(); may be empty.
std::string doubt_text(RowDoubt doubt, const std::string& subject) {
    switch (doubt) {
        case RowDoubt::double_bos:
            return cat("begin with two BOS tokens", subject.empty() ? "" : cat(" (", subject, ")"),
                       "; where the tokenizer or the template adds one, leave it out of the text");
        case RowDoubt::open_end:
            return cat("have trained text that does not end with a token that ends a generation (",
                       subject.empty() ? "the tokenizer names none" : subject, "), so the model may not learn to stop");
        case RowDoubt::guessed_template:
            return cat("are conversations, and the model has no chat template: ", subject,
                       " was guessed from the tokenizer's tokens; name the right one with data.template");
        case RowDoubt::merged_start:
            return "have an answer whose first token also holds the end of the prompt, so it is not trained; put the "
                   "white space between them on the other side";
        case RowDoubt::plain_prompt:
            return "are Alpaca rows, made into \"### Instruction:\" prompts, and the model has a chat template: "
                   "data.template default gives them to it as a user's message and its answer, data.template alpaca "
                   "says that this is meant";
        case RowDoubt::empty_answer:
            return "have an answer that is empty, so the model learns to say nothing there";
        case RowDoubt::double_end:
            return cat("have an answer that ends with the same token twice (", subject,
                       "): the template adds it, so leave it out of the text");
        case RowDoubt::unread_reasoning:
            return cat(
                "have messages with reasoning (reasoning_content, thinking or reasoning), of which the chat "
                "template ",
                subject,
                " writes nothing: it is not trained; choose a data.template that writes it, or write "
                "it into the content");
        case RowDoubt::unused_template:
            return cat("have a prompt and an answer that are texts, so that data.template ", subject,
                       " is not applied to them; write them as messages for it, or leave data.template out");
        case RowDoubt::unread_system:
            return "have a column \"system\" together with a text, which is trained as it is, so the model does not "
                   "see the "
                   "column; write it into the text, or the prompt as messages";
        case RowDoubt::unread_history:
            return "have a column \"history\", which is read with a column instruction alone, so the model does not "
                   "see it; write its turns into the prompt, or into the messages";
        case RowDoubt::unread_tools:
            return "have a column \"tools\" together with a text, which is trained as it is, so the model does not see "
                   "the "
                   "column; write the tools into the text, or the prompt as messages";
        case RowDoubt::unread_media:
            return "have columns images, videos or audios that no message has a place for, so the model does not see "
                   "them";
    }
    return {};
}

std::vector<std::string> warnings_of(const Losses& lost, int64_t rows, const std::string& name,
                                     const DatasetOptions& options, const RowEncoder* encoder) {
    std::vector<std::string> warnings;
    if (lost.bad > 0) {
        std::string text = cat(name, ": skipped ", lost.bad, " bad of ", rows, " rows:");
        for (const Rejected& row : lost.first_bad) text += cat("\n  ", row.place, ": ", row.reason.message);
        warnings.push_back(lost.bad > static_cast<int64_t>(lost.first_bad.size()) ? text + "\n  ..." : text);
    }
    if (lost.masked.count > 0)
        warnings.push_back(cat(name, ": omitted ", lost.masked.count, " of ", rows,
                               " rows whose labels are all masked: ", list_places(lost.masked)));
    if (lost.too_long.count > 0)
        warnings.push_back(cat(name, ": omitted ", lost.too_long.count, " of ", rows, " rows of more than ",
                               options.max_seq_length,
                               " tokens (data.overflow_strategy: drop): ", list_places(lost.too_long)));
    if (lost.too_short.count > 0)
        warnings.push_back(cat(name, ": omitted ", lost.too_short.count, " of ", rows, " rows of fewer than ",
                               options.min_length, " tokens (data.min_length): ", list_places(lost.too_short)));
    if (lost.repaired.count > 0)
        warnings.push_back(cat(name, ": bytes that are not UTF-8 became U+FFFD in ", lost.repaired.count, " of ", rows,
                               " rows: ", list_places(lost.repaired)));
    for (std::size_t d = 0; d < doubts.size(); ++d)
        if (const Occurrences& noted = lost.doubtful[d]; noted.count > 0)
            warnings.push_back(cat(name, ": ", noted.count, " of ", rows, " rows ",
                                   doubt_text(doubts[d], encoder ? encoder->subject(doubts[d]) : ""), ": ",
                                   list_places(noted)));
    return warnings;
}

/// Some encoded rows, and what was lost among them.
struct Encoded {
    StorePart rows;
    Losses lost;
    int64_t read_rows = 0, read_bytes = 0;  ///< of the files
};

/// Bytes of all rows, nearly, for the progress; 0 where a file's name says that they are packed in it.
int64_t bytes_of(const std::vector<SourceFiles>& sources) {
    constexpr std::array packed{".gz", ".zst", ".parquet", ".arrow"};
    int64_t sum = 0;
    for (const SourceFiles& source : sources)
        for (const std::filesystem::path& path : source.files) {
            std::error_code unknown;  // reading it says what is wrong
            const auto bytes = std::filesystem::file_size(path, unknown);
            if (unknown || std::find(packed.begin(), packed.end(), path.extension()) != packed.end()) return 0;
            sum += static_cast<int64_t>(bytes);
        }
    return sum;
}

class RowLoader {
  public:
    RowLoader(const std::vector<SourceFiles>& sources, const DatasetOptions& options,
              const std::vector<const RowEncoder*>& encoders)
        : options_(options) {
        for (std::size_t i = 0; i < sources.size(); ++i)
            formatters_.emplace_back(sources[i].format, options, encoders.at(i));
    }

    Encoded encode(const SourceReader::Part& part) const {
        Encoded result;
        result.read_rows = static_cast<int64_t>(part.chunk.size());
        for (std::size_t i = 0; i < part.chunk.size(); ++i) {
            result.read_bytes += part.chunk.row(i).bytes;
            // In a run that stops at the first bad row, the chunk's later rows are not looked at.
            if (!encode_row(part, part.chunk.row(i), result) && !options_.skip_bad_rows) break;
        }
        return result;
    }

  private:
    struct EncodeResult {
        bool repaired = false, augmented = false, truncated = false;
        bool dropped = false, too_short = false, masked = false;  ///< nothing was appended
        uint32_t doubts = 0;
    };
    /// Encodes a row and appends it, or its pieces, to `rows`.
    EncodeResult take(const SourceReader::Part& part, const RawRow& raw, StorePart& rows) const {
        EncodeResult taken;
        const RowFormatter& formatter = formatters_[static_cast<std::size_t>(part.source)];
        const FormattedRow row = [&] {
            const nlohmann::ordered_json columns = part.file->parse(raw, &taken.repaired);
            taken.augmented = holds(columns, provenance_column);
            return formatter.format(columns, std::filesystem::path(part.file->name()).parent_path());
        }();
        taken.truncated = row.truncated;
        taken.doubts = row.doubts;
        taken.dropped = row.too_long && !formatter.splits();
        taken.masked = row.targets == 0 && !options_.keep_all_masked;
        taken.too_short = row.too_short;
        if (taken.dropped || taken.masked || taken.too_short) return taken;
        const int64_t id = part.first_id + raw.index;
        const std::size_t before = rows.records.size();
        const auto append = [&](const FormattedRow& one) { rows.append(one, id, part.source); };
        row.too_long ? formatter.for_each_piece(row, append) : append(row);
        taken.too_short = rows.records.size() == before;  // so is each piece
        return taken;
    }
    /// False when the row is bad.
    bool encode_row(const SourceReader::Part& part, const RawRow& raw, Encoded& result) const {
        Losses& lost = result.lost;
        const std::size_t words = result.rows.words.size(), records = result.rows.records.size();
        const auto reject = [&](BadRow reason) {
            result.rows.words.resize(words);
            result.rows.records.resize(records);
            ++lost.bad;
            if (lost.first_bad.size() < shown_rows)
                lost.first_bad.push_back({part.file->place(raw.line), std::move(reason)});
            return false;
        };
        const auto place = [&] { return part.file->place(raw.line); };
        try {
            const EncodeResult row = within_row_memory(raw.bytes, [&] { return take(part, raw, result.rows); });
            if (row.repaired) lost.repaired.add(place());
            lost.augmented += row.augmented;
            if (row.dropped) {
                lost.too_long.add(place());
                return true;
            }
            if (row.too_short) {
                lost.too_short.add(place());
                return true;
            }
            if (row.masked) {
                lost.masked.add(place());
                lost.masked_after_cut += row.truncated;
            }
            for (std::size_t d = 0; d < doubts.size(); ++d)
                if ((row.doubts & static_cast<uint32_t>(doubts[d])) != 0) lost.doubtful[d].add(place());
            return true;
        } catch (const BadRow& bad) {
            return reject(bad);
        } catch (const Error& error) {  // the template or the tokenizer refuses the row
            if (error.kind() != ErrorKind::input) throw;
            return reject({error.id(), error.what(), ""});
        }
    }

    DatasetOptions options_;
    std::vector<RowFormatter> formatters_;  ///< by source
};

int worker_count(int asked) {
    return asked > 0 ? asked : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void stop_when_asked() {
    if (const int signal = interrupt_requested(); signal != 0)
        throw Interrupted(signal, "stopped while the data was read; nothing was written");
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
    return std::all_of(sources.begin(), sources.end(),
                       [](const SourceFiles& source) { return source.format == config::DataFormat::tokenized; });
}

std::vector<const RowEncoder*> encoders_of(const std::vector<SourceFiles>& sources, const EncoderOnDemand& encoder) {
    std::vector<const RowEncoder*> encoders(sources.size(), nullptr);
    if (all_tokenized(sources)) return encoders;
    for (std::size_t i = 0; i < sources.size(); ++i) encoders[i] = encoder(sources[i].template_name);
    return encoders;
}

LoadReport load_rows(const std::vector<SourceFiles>& sources, const DatasetOptions& options,
                     const std::vector<const RowEncoder*>& encoders, RowSink& sink) {
    const RowLoader loader(sources, options, encoders);
    SourceReader reader(sources, options.reader);
    Losses lost;
    int64_t kept = 0, cut = 0;
    const int64_t bytes = bytes_of(sources);
    Progress progress(bytes > 0 ? "encoding rows" : "encoding rows:", bytes);
    const auto next = [&]() -> std::optional<SourceReader::Part> {
        SourceReader::Part part = reader.next();
        return part.chunk.empty() ? std::nullopt : std::optional(std::move(part));
    };
    const auto take = [&](Encoded&& encoded) {
        stop_when_asked();
        progress.add(bytes > 0 ? encoded.read_bytes : encoded.read_rows);
        if (encoded.lost.bad > 0 && !options.skip_bad_rows) throw error_at(encoded.lost.first_bad.front());
        kept += static_cast<int64_t>(encoded.rows.records.size());
        for (const RowRecord& row : encoded.rows.records) cut += row.has(RowRecord::truncated);
        sink.append(std::move(encoded.rows));
        add(lost, std::move(encoded.lost));
    };
    run_in_order<SourceReader::Part, Encoded>(
        worker_count(options.workers), next, [&](const SourceReader::Part& part) { return loader.encode(part); }, take);

    const std::string name = name_of(sources);
    if (lost.masked.count > 0 && !options.skip_bad_rows) refuse_masked(lost, reader.rows());
    if (kept == 0) {
        const std::string why = lost.first_bad.empty() ? ""
                                                       : cat("; the first: ", lost.first_bad[0].place, ": ",
                                                             lost.first_bad[0].reason.message);
        throw Error("data.no-usable-rows",
                    cat(name, ": none of its ", reader.rows(), " rows can be used (", lost.bad, " bad, ",
                        lost.masked.count, " with all labels masked, ", lost.too_long.count, " too long, ",
                        lost.too_short.count, " too short)", why));
    }
    LoadReport report{reader.rows(),          lost.bad,
                      lost.masked.count,      lost.too_long.count,
                      lost.too_short.count,   lost.augmented,
                      sources.front().format, warnings_of(lost, reader.rows(), name, options, encoders.front())};
    if (cut > 0)
        report.warnings.push_back(cat(name, ": cut ", cut, " of ", reader.rows(), " rows at ", options.max_seq_length,
                                      " tokens (model.max_seq_length)"));
    return report;
}

}  // namespace unsloth::data
