#include "unsloth/data/augment.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_map>

#include "data/columns.h"
#include "data/figures.h"
#include "data/prompt_texts.h"
#include "data/row_errors.h"
#include "data/words.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/data/sampler.h"
#include "unsloth/data/source.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

/// Ways to make copies by words, with their streams of random numbers: beyond those of RngStream.
enum class Way : uint32_t { synonym = 0xDA7A1001u, swap = 0xDA7A1002u, remove = 0xDA7A1003u };

const char* name_of(Way way) {
    return way == Way::synonym ? "synonym" : way == Way::swap ? "swap" : "delete";
}

/// An id's text: that of a string, or the JSON of a number, so that a table's "3" is the same as 3.
std::string id_text(const Json& id) {
    if (id.is_string()) return id.get<std::string>();
    if (id.is_number_integer()) return id.dump();
    throw BadRow{"data.row-ids", cat("the id is ", shown(id), ": expected a string or a whole number"),
                 "--id_column names another column."};
}

uint64_t key_of(const std::string& id) {
    ContentHash hash;
    hash.add(id);
    return hash.word();
}

/// A row as it is read, and where from.
struct SourceRow {
    const RowReader* file = nullptr;
    RawRow raw;
    int64_t number = 0;  ///< over all files
    Json columns;
    bool repaired = false;
};

/// Calls `use` for each row of a source, in order; false from it, or a BadRow thrown in it, makes a bad row: an Error,
/// or with `skip_bad_rows` a count, which is returned.
int64_t for_each_row(const SourceFiles& source, const ReaderOptions& options, bool skip_bad_rows,
                     const std::function<void(SourceRow&)>& use) {
    SourceReader reader({source}, options);
    int64_t bad = 0;
    for (SourceReader::Part part = reader.next(); !part.chunk.empty(); part = reader.next()) {
        if (const int signal = interrupt_requested(); signal != 0)
            throw Interrupted(signal, "stopped; nothing was written");
        for (std::size_t i = 0; i < part.chunk.size(); ++i) {
            SourceRow row{part.file.get(), part.chunk.row(i), part.first_id + part.chunk.row(i).index, {}, false};
            try {
                row.columns = part.file->parse(row.raw, &row.repaired);
                refuse_unread(row.columns);
                use(row);
            } catch (const BadRow& reason) {
                if (!skip_bad_rows) throw error_at(*part.file, row.raw.line, reason);
                ++bad;
            }
        }
    }
    return bad;
}

/// Texts that a copy brings, and what its provenance says.
struct Copy {
    NamedTexts texts;
    Json provenance;
};

class Augmenter {
  public:
    Augmenter(const config::Config& config, const AugmentRequest& request) : config_(config), request_(request) {
        check_request();
        if (!request.thesaurus.empty()) thesaurus_ = Thesaurus::load(request.thesaurus);
        options_ = {config.data.text_unit, config.data.invalid_utf8, {}};
        input_ =
            request.in.empty() ? source_of(config.data.train_file, config.data.train_split) : source_of(request.in, "");
        fields_ = text_fields(input_.format, config.data.columns, request.fields);
        for (const std::string* out : {&request.out, &request.eval_out}) refuse_input(*out);
    }

    AugmentResult run() {
        find_ids();
        if (!request_.back_translations.empty()) read_back_translations();
        std::optional<AtomicText> eval_out;
        AtomicText out(request_.out);
        if (!request_.eval_out.empty()) eval_out.emplace(request_.eval_out);
        for (const Way way : ways_) result_.copies.push_back({name_of(way)});
        if (!request_.back_translations.empty()) result_.copies.push_back({"back_translation"});
        std::size_t next = 0;
        for_each_row(input_, options_, true, [&](SourceRow& row) {  // the bad ones are known by now
            if (next == rows_.size() || rows_[next] != row.number) return;
            ++next;
            if (std::binary_search(held_out_.begin(), held_out_.end(), row.number)) {
                eval_out->write(line_of(row));
                ++result_.held_out;
            } else {
                out.write(line_of(row));
                ++result_.kept;
                write_copies(row, out);
            }
        });
        UNSLOTH_CHECK(next == rows_.size(), "the input changed while it was read: ", next, " of ", rows_.size(),
                      " rows");
        if (eval_out) eval_out->finish();
        out.finish();
        return std::move(result_);
    }

  private:
    void check_request() {
        const config::DataOptions& data = config_.data;
        if (request_.in.empty() && !data.datasets.empty())
            throw Error("option.conflict", "data augment takes one source, and data.datasets lists several",
                        "Name one with --in FILE.");
        if (request_.in.empty() && data.train_file.empty())
            throw Error("option.missing", "data augment needs --in FILE", "Or a configuration with data.train_file.");
        if (data.val_size > 0 && request_.eval_out.empty())
            throw Error("option.missing",
                        "data.val_size is set: data augment needs --eval_out FILE for the rows that are held out",
                        "Copies of a held-out row would be trained on; so these rows go to a file of their own, "
                        "for data.eval_file.");
        if (data.val_size == 0 && !request_.eval_out.empty())
            throw Error("option.no-effect", "--eval_out is given, and data.val_size holds no rows out",
                        "Say how many: --val_size 0.05, or a number of rows.");
        if (request_.out == request_.eval_out)
            throw Error("output.same-file", "--out and --eval_out name the same file");
        if (!request_.thesaurus.empty() && request_.synonym_rate > 0) ways_.push_back(Way::synonym);
        if (request_.swap_rate > 0) ways_.push_back(Way::swap);
        if (request_.delete_rate > 0) ways_.push_back(Way::remove);
        if (ways_.empty() && request_.back_translations.empty())
            throw Error("option.nothing-to-do", "data augment has nothing to do",
                        "Give --thesaurus FILE, --swap_rate X, --delete_rate X or --back_translations FILE.");
    }

    /// The source with its format found under the names of data.columns; its rows are then read under the files' own
    /// names.
    SourceFiles source_of(const std::string& path, const std::string& split) const {
        const config::DataOptions& data = config_.data;
        SourceFiles source = resolve({.path = path, .format = data.format, .split = split, .columns = data.columns},
                                     options_, data.skip_bad_rows);
        source.columns.clear();
        return source;
    }

    void refuse_input(const std::string& out) const {
        std::error_code ignored;
        for (const auto& file : input_.files)
            if (!out.empty() && std::filesystem::equivalent(file, out, ignored))
                throw Error("output.same-file", cat(out, " is the input itself"),
                            "Write to another file: the rows as they are stay the ones to augment.");
    }

    /// The first pass: which rows there are, their ids, and which of them are held out.
    void find_ids() {
        result_.bad = for_each_row(input_, options_, config_.data.skip_bad_rows, [&](SourceRow& row) {
            if (holds(row.columns, provenance_column))
                throw Error("data.not-augmentable",
                            cat(row.file->place(row.raw.line), ": the row is a copy that data augment made"),
                            "Augment the rows that it was made of.");
            check_usable(row.columns, "the row");
            (void)texts_of(row.columns, fields_);
            const bool has_id = row.columns.contains(request_.id_column);
            if (!has_ids_) has_ids_ = has_id;
            if (*has_ids_ != has_id)
                throw BadRow{"data.row-ids",
                             cat("column \"", request_.id_column, "\" is ",
                                 has_id ? "here, and not in the rows before" : "missing, and the rows before have it"),
                             "Give every row an id, or none; --id_column names another column."};
            if (has_id || !request_.back_translations.empty()) remember(row, id_of(row));
            rows_.push_back(row.number);
        });
        result_.read = result_.bad + static_cast<int64_t>(rows_.size());
        if (rows_.empty())
            throw Error("data.no-usable-rows", cat(input_.name, ": none of its ", result_.read, " rows can be used"));
        for (const int64_t place :
             validation_places(rows_, config_.data.val_size, static_cast<uint64_t>(config_.training.seed)))
            held_out_.push_back(rows_[static_cast<std::size_t>(place)]);
    }

    std::string id_of(const SourceRow& row) const {
        return has_ids_.value_or(false) ? id_text(row.columns.at(request_.id_column)) : std::to_string(row.number);
    }

    void remember(const SourceRow& row, const std::string& id) {
        const auto [known, is_new] = row_of_id_.emplace(id, row.number);
        if (!is_new)
            throw Error(
                "data.row-ids",
                cat(row.file->place(row.raw.line), ": id ", id, " is that of row ", known->second, " (from 0) too"),
                "Give each row an id of its own, or --id_column a name that no column has: then rows go by their "
                "numbers.");
    }

    void read_back_translations() {
        SourceFiles source{request_.back_translations, files_of(request_.back_translations, ""), input_.format, {}};
        std::optional<Error> first_unknown;
        for_each_row(source, options_, config_.data.skip_bad_rows, [&](SourceRow& row) {
            if (!row.columns.contains(request_.id_column))
                throw BadRow{
                    "data.missing-column",
                    cat("column \"", request_.id_column, "\" is missing (found: ", column_list(row.columns), ")"),
                    "Back-translations name the row that they belong to; --id_column names another column."};
            const std::string id = id_text(row.columns[request_.id_column]);
            NamedTexts texts = texts_of(row.columns, fields_);
            const auto known = row_of_id_.find(id);
            if (known == row_of_id_.end()) {
                ++result_.back_translations_unknown;
                if (!first_unknown)
                    first_unknown =
                        Error("data.row-ids", cat(row.file->place(row.raw.line), ": no row of the input has id ", id));
            } else if (std::binary_search(held_out_.begin(), held_out_.end(), known->second)) {
                ++result_.back_translations_held_out;
            } else {
                back_translations_[known->second].push_back(std::move(texts));
            }
        });
        if (back_translations_.empty() && result_.back_translations_held_out == 0 && first_unknown)
            throw *first_unknown;
    }

    static std::string line_of(const SourceRow& row) {
        const bool as_it_is = row.file->text_is_json_line() && !row.repaired;
        return (as_it_is ? std::string(row.raw.text) : row.columns.dump()) + "\n";
    }

    std::string changed(Way way, const std::string& text, AugmentRng& draws) const {
        switch (way) {
            case Way::synonym:
                return with_synonyms(text, thesaurus_, request_.synonym_rate, draws);
            case Way::swap:
                return with_swaps(text, request_.swap_rate, draws);
            case Way::remove:
                return with_deletions(text, request_.delete_rate, draws);
        }
        return text;
    }

    void write_copies(const SourceRow& row, AtomicText& out) {
        const NamedTexts original = texts_of(row.columns, fields_);
        const std::string id = id_of(row);
        const Json of = has_ids_.value_or(false) ? row.columns.at(request_.id_column) : Json(row.number);
        const auto seed = static_cast<uint64_t>(config_.training.seed);
        std::set<NamedTexts> written{original};
        const auto write = [&](std::size_t way, const NamedTexts& texts, Json provenance) {
            // A back-translation may omit some texts: those keep their original value.
            Json copy = row.columns;
            set_texts(copy, fields_, texts);
            const bool is_new = written.insert(texts_of(copy, fields_)).second;
            ++(is_new ? result_.copies[way].made : result_.copies[way].unchanged);
            if (!is_new) return;
            copy[provenance_column] = std::move(provenance);
            out.write(copy.dump() + "\n");
        };
        for (std::size_t w = 0; w < ways_.size(); ++w)
            for (int64_t k = 0; k < request_.copies; ++k) {
                AugmentRng draws(seed, key_of(id), static_cast<uint32_t>(k), static_cast<uint32_t>(ways_[w]));
                NamedTexts texts = original;
                for (auto& [name, text] : texts) text = changed(ways_[w], text, draws);
                write(w, texts, {{"of", of}, {"by", name_of(ways_[w])}, {"copy", k}, {"seed", seed}});
            }
        const auto found = back_translations_.find(row.number);
        if (found == back_translations_.end()) return;
        for (std::size_t k = 0; k < found->second.size(); ++k) {
            try {
                write(ways_.size(), found->second[k], {{"of", of}, {"by", "back_translation"}, {"copy", k}});
            } catch (const BadRow& reason) {
                throw Error(reason.id, cat(request_.back_translations, ": the row with id ", id, ": ", reason.message),
                            reason.advice);
            }
        }
    }

    const config::Config& config_;
    const AugmentRequest& request_;
    Thesaurus thesaurus_;
    ReaderOptions options_;
    SourceFiles input_;
    TextFields fields_;
    std::vector<Way> ways_;
    std::optional<bool> has_ids_;
    std::vector<int64_t> rows_, held_out_;  ///< row numbers, ascending
    std::unordered_map<std::string, int64_t> row_of_id_;
    std::unordered_map<int64_t, std::vector<NamedTexts>> back_translations_;  ///< by row number
    AugmentResult result_;
};

}  // namespace

AugmentResult augment_rows(const config::Config& config, const AugmentRequest& request) {
    return Augmenter(config, request).run();
}

std::string describe(const AugmentResult& result) {
    std::string text =
        cat(grouped(result.read), " rows read",
            result.bad > 0 ? cat(", ", grouped(result.bad), " of them bad and omitted") : "", "; ",
            grouped(result.kept), " to train on, ", grouped(result.held_out), " held out for evaluation");
    for (const AugmentCounts& copies : result.copies)
        text +=
            cat("\n", copies.by, ": ", grouped(copies.made), " copies",
                copies.unchanged > 0 ? cat(" (", grouped(copies.unchanged), " more would have repeated a row)") : "");
    if (result.back_translations_held_out > 0)
        text += cat("\nback-translations of held-out rows, not used: ", grouped(result.back_translations_held_out));
    if (result.back_translations_unknown > 0)
        text += cat("\nback-translations whose id no row has, not used: ", grouped(result.back_translations_unknown));
    return text;
}

}  // namespace unsloth::data
