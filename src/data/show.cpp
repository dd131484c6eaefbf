#include "unsloth/data/show.h"

#include <optional>
#include <span>

#include "data/image_source.h"
#include "unsloth/core/error.h"
#include "unsloth/core/utf8.h"

namespace unsloth::data {
namespace {

using Range = std::pair<int64_t, int64_t>;

constexpr const char* trained_colour = "\x1b[1;32m";  // bold green
constexpr const char* masked_colour = "\x1b[2m";      // faint
constexpr const char* no_colour = "\x1b[0m";
constexpr const char* open_bracket = "\u27e6";
constexpr const char* close_bracket = "\u27e7";

struct Run {
    Range tokens;
    bool trained = false, begins_segment = false;
    std::optional<std::size_t> image = {};  ///< whose tokens these are
};

/// Runs of tokens of one kind within one segment.
std::vector<Run> runs_of(const Sample& sample) {
    std::vector<Run> runs;
    const std::vector<Range> images = image_ranges(sample);
    std::size_t image = 0;
    for (const Segment& segment : listed(sample.segments, sample.ids.size()))
        for (int64_t t = segment.begin; t < segment.end(); ++t) {
            const bool begins = t == segment.begin;
            while (image < images.size() && t >= images[image].second) ++image;
            const auto seen = image < images.size() && t >= images[image].first ? std::optional(image) : std::nullopt;
            const bool trained =
                sample.labels[static_cast<std::size_t>(t)] != ignore_label && (!begins || segment.shared > 0);
            if (begins || trained != runs.back().trained || seen != runs.back().image)
                runs.push_back({{t, t}, trained, begins, seen});
            ++runs.back().tokens.second;
        }
    return runs;
}

std::span<const int32_t> front(const std::vector<int32_t>& ids, int64_t count) {
    return std::span(ids).first(static_cast<std::size_t>(count));
}

std::string id_list(const std::vector<int32_t>& ids, Range tokens) {
    std::string text;
    for (int64_t t = tokens.first; t < tokens.second; ++t)
        text += cat(t == tokens.first ? "" : " ", ids[static_cast<std::size_t>(t)]);
    return text;
}

/// A colour ends with the line and begins again, so that pagers and cut lines stay readable.
std::string coloured(const std::string& text, const char* colour) {
    std::string out = colour;
    for (const char c : text) {
        if (c == '\n')
            out += cat(no_colour, "\n", colour);
        else
            out += c;
    }
    return out + no_colour;
}

std::string marked(const std::string& text, bool trained, Marks marks) {
    if (marks == Marks::colour) return coloured(text, trained ? trained_colour : masked_colour);
    return trained ? open_bracket + text + close_bracket : text;
}

/// The text shown for the tokens of an image: they all are the same.
std::string image_text(const Sample& sample, const Run& run) {
    const std::size_t i = *run.image;
    const Image& image = sample.images[i];
    const std::size_t count = run.tokens.second - run.tokens.first;
    const std::string file = i < sample.sources.size() ? name_of(sample.sources[i]) : "an image";
    return cat("[", printable(file), ": ", image.grid_w, " x ", image.grid_h,
               sample.axes.empty() ? " tiles, " : " patches, ", count, count == 1 ? " token" : " tokens",
               " from token ", run.tokens.first, "]");
}

}  // namespace

std::vector<Range> target_ranges(const Sample& sample) {
    std::vector<Range> ranges;
    for (const Run& run : runs_of(sample))
        if (run.trained) ranges.push_back(run.tokens);
    return ranges;
}

std::vector<Range> image_ranges(const Sample& sample) {
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < sample.images.size(); ++i) {
        const auto first = static_cast<std::size_t>(sample.images[i].first);
        const std::size_t most =
            i + 1 < sample.images.size() ? static_cast<std::size_t>(sample.images[i + 1].first) : sample.ids.size();
        std::size_t end = first;
        while (end < most && sample.ids[end] == sample.ids[first]) ++end;
        ranges.emplace_back(first, end);
    }
    return ranges;
}

std::vector<std::string> decode_runs(const tokenizer::Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                     const std::vector<Range>& runs) {
    // A decoder may treat the beginning of a text in its own way (SentencePiece drops a space there), so a run is what
    // the text grows by.
    std::vector<std::string> texts;
    std::string before;
    for (const auto& [begin, end] : runs) {
        std::string until = tokenizer.decode(front(ids, end), false);
        if (until.starts_with(before)) {
            texts.push_back(until.substr(before.size()));
        } else {
            texts.push_back(tokenizer.decode(front(ids, end).subspan(static_cast<std::size_t>(begin)), false));
        }
        before = std::move(until);
    }
    return texts;
}

std::string show_tokens(const Sample& sample, const tokenizer::Tokenizer* tokenizer, Marks marks) {
    const std::vector<Run> runs = runs_of(sample);
    std::vector<Range> ranges;
    for (const Run& run : runs) ranges.push_back(run.tokens);
    std::vector<std::string> texts;
    if (tokenizer != nullptr) {
        texts = decode_runs(*tokenizer, sample.ids, ranges);
    } else {
        for (const Range& range : ranges) texts.push_back(id_list(sample.ids, range));
    }
    std::string out;
    for (std::size_t r = 0; r < runs.size(); ++r) {
        if (r > 0 && runs[r].begins_segment)
            out += "\n-- the next segment --\n";
        else if (r > 0 && tokenizer == nullptr)
            out += " ";
        out += marked(runs[r].image ? image_text(sample, runs[r]) : printable(texts[r]), runs[r].trained, marks);
    }
    return out + "\n";
}

}  // namespace unsloth::data
