#include "reward/built_in.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numbers>
#include <unordered_set>

#include "unsloth/core/error.h"
#include "unsloth/core/json_depth.h"
#include "unsloth/core/json_reader.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"
#include "unsloth/data/answer_pattern.h"

namespace unsloth::reward {
namespace {

using data::AnswerPattern;
using nlohmann::json;
using Arguments = JsonReader<json>;

constexpr int deepest_json = 1000;

const std::vector<json>& column_of(const Batch& batch, const std::string& name, const std::string& where) {
    const auto found = std::ranges::find(batch.columns, name, &Column::first);
    if (found != batch.columns.end()) return found->second;
    std::string all;
    for (const Column& column : batch.columns) all += cat(all.empty() ? "" : ", ", column.first);
    throw Error("data.missing-column", cat(where, ": the data has no column '", name, "'"),
                all.empty() ? "It has no columns but the prompt." : cat("Its columns: ", all, "."));
}

/// A row whose text a pattern cannot be found in within its bound is not scored: 0 would be a verdict.
void warn_of_steps(const std::string& name) {
    log::warning("reward '", name, "': the pattern took too many steps on a completion, which is not scored");
}

/// One value from each row's text and ids.
class OfEachRow : public BuiltIn {
  public:
    Scores score(const Batch& batch) const override {
        Scores all;
        for (std::size_t i = 0; i < batch.completions.size(); ++i) all.push_back(of_row(batch, i));
        return all;
    }

  protected:
    virtual std::optional<double> of_row(const Batch& batch, std::size_t row) const = 0;
};

/// Whether an answer agrees with a column: 1 or 0; null where the column says nothing.
class AgainstColumn : public BuiltIn {
  public:
    AgainstColumn(const Entry& entry, const Arguments& arguments)
        : name_(entry.name), where_(entry.where), answer_(arguments.string("answer").value_or("answer")) {
        if (const auto pattern = arguments.string("pattern")) pattern_.emplace(*pattern, cat(entry.where, ".pattern"));
    }
    std::vector<std::string> columns() const override { return {answer_}; }
    Scores score(const Batch& batch) const override {
        const std::vector<json>& expected = column_of(batch, answer_, where_);
        Scores all;
        for (std::size_t i = 0; i < batch.completions.size(); ++i) {
            const AnswerPattern::Found part = part_of(batch.completions[i]);
            if (part.gave_up) warn_of_steps(name_);
            all.push_back(expected.at(i).is_null() || part.gave_up ? std::nullopt : agrees(part.text, expected[i]));
        }
        return all;
    }

  protected:
    /// `found`: what of the completion counts; nullopt: nothing.
    virtual std::optional<double> agrees(const std::optional<std::string>& found, const json& expected) const = 0;

    AnswerPattern::Found part_of(const std::string& text) const {
        return pattern_ ? pattern_->find_last(text) : AnswerPattern::Found{text, false};
    }

  private:
    std::string name_, where_, answer_;
    std::optional<AnswerPattern> pattern_;
};

class Exact final : public AgainstColumn {
  public:
    Exact(const Entry& entry, const Arguments& arguments)
        : AgainstColumn(entry, arguments), ignore_case_(arguments.boolean("ignore_case").value_or(false)) {
        arguments.only_keys({"answer", "pattern", "ignore_case"});
    }

  protected:
    std::optional<double> agrees(const std::optional<std::string>& found, const json& expected) const override {
        const std::string wanted = expected.is_string() ? expected.get<std::string>() : expected.dump();
        return found && folded(*found) == folded(wanted) ? 1 : 0;
    }

  private:
    std::string folded(const std::string& text) const {
        std::string result = trimmed(text);
        if (ignore_case_)
            std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
        return result;
    }

    bool ignore_case_;
};

class Numeric final : public AgainstColumn {
  public:
    Numeric(const Entry& entry, const Arguments& arguments)
        : AgainstColumn(entry, arguments), tolerance_(arguments.number("tolerance").value_or(1e-6)) {
        arguments.only_keys({"answer", "pattern", "tolerance"});
        if (tolerance_ < 0) arguments["tolerance"].refuse("a number of at least 0");
    }

  protected:
    std::optional<double> agrees(const std::optional<std::string>& part, const json& expected) const override {
        const auto wanted = number_of(expected);
        if (!wanted) return std::nullopt;
        const auto found = part ? last_number(*part) : std::nullopt;
        return found && std::abs(*found - *wanted) <= tolerance_ * std::max(1.0, std::abs(*wanted)) ? 1 : 0;
    }

  private:
    /// The column may hold the bare answer, or a whole solution in which the pattern finds it.
    std::optional<double> number_of(const json& expected) const {
        if (expected.is_number()) return expected.get<double>();
        if (!expected.is_string()) return std::nullopt;
        const std::string& text = expected.get_ref<const std::string&>();
        return last_number(part_of(text).text.value_or(text));
    }

    double tolerance_;  ///< of the larger of 1 and the expected number
};

class Regex final : public OfEachRow {
  public:
    Regex(const Entry& entry, const Arguments& arguments)
        : name_(entry.name), pattern_(expression_of(arguments), cat(entry.where, ".regex")) {}

  protected:
    std::optional<double> of_row(const Batch& batch, std::size_t row) const override {
        const AnswerPattern::Found found = pattern_.find_last(batch.completions[row]);
        if (!found.gave_up) return found.text ? 1 : 0;
        warn_of_steps(name_);
        return std::nullopt;
    }

  private:
    static std::string expression_of(const Arguments& arguments) {
        if (arguments.value().is_string()) return arguments.string();
        arguments.only_keys({"pattern"});
        return arguments.at("pattern").string();
    }

    std::string name_;
    AnswerPattern pattern_;
};

/// <think>…</think> at the very start, opened once and closed; TRL's pattern in closed form.
class ThinkFormat final : public OfEachRow {
  public:
    explicit ThinkFormat(const Arguments& arguments) { arguments.only_keys({}); }

  protected:
    std::optional<double> of_row(const Batch& batch, std::size_t row) const override {
        static const std::string open = "<think>", close = "</think>";
        const std::string& text = batch.completions[row];
        return text.starts_with(open) && text.find(open, open.size()) == std::string::npos &&
                       text.find(close, open.size()) != std::string::npos
                   ? 1
                   : 0;
    }
};

/// max_penalty times the share of n-grams of ids that repeat others.
class Repetition final : public OfEachRow {
  public:
    explicit Repetition(const Arguments& arguments)
        : size_(arguments.integer("ngram_size").value_or(3)), penalty_(arguments.number("max_penalty").value_or(-1)) {
        arguments.only_keys({"ngram_size", "max_penalty"});
        if (size_ < 1) arguments["ngram_size"].refuse("an integer above 0");
        if (penalty_ > 0) arguments["max_penalty"].refuse("a number of at most 0");
    }

  protected:
    std::optional<double> of_row(const Batch& batch, std::size_t row) const override {
        const std::vector<int32_t>& ids = batch.completion_ids[row];
        const auto n = static_cast<std::size_t>(size_);
        if (ids.size() < n) return 0;
        std::unordered_set<std::u32string> distinct;
        const std::size_t total = ids.size() - n + 1;
        for (std::size_t i = 0; i < total; ++i) distinct.emplace(ids.begin() + offset(i), ids.begin() + offset(i + n));
        const double repeated = 1 - static_cast<double>(distinct.size()) / static_cast<double>(total);
        return repeated > 0 ? repeated * penalty_ : 0;
    }

  private:
    static std::ptrdiff_t offset(std::size_t i) { return static_cast<std::ptrdiff_t>(i); }

    int64_t size_;
    double penalty_;
};

int64_t max_length_of(const Arguments& arguments, int64_t otherwise) {
    const int64_t length = arguments.integer("max_length").value_or(otherwise);
    if (length < 1) arguments["max_length"].refuse("a number of tokens");
    return length;
}

/// 0 up to max_length - cache tokens, from there linearly to -1 at max_length, and -1 beyond.
class Overlong final : public OfEachRow {
  public:
    Overlong(const Arguments& arguments, int64_t max_completion_length)
        : longest_(max_length_of(arguments, max_completion_length)), cache_(arguments.at("cache").integer()) {
        arguments.only_keys({"max_length", "cache"});
        if (cache_ < 0 || cache_ > longest_) arguments["cache"].refuse("a number of tokens up to max_length");
    }

  protected:
    std::optional<double> of_row(const Batch& batch, std::size_t row) const override {
        const auto length = static_cast<int64_t>(batch.completion_ids[row].size());
        if (length <= longest_ - cache_) return 0;
        if (length > longest_) return -1;
        return static_cast<double>(longest_ - cache_ - length) / static_cast<double>(cache_);
    }

  private:
    int64_t longest_, cache_;
};

/// A right answer is worth more when it is short, a wrong one costs less when it is long.
class Cosine final : public BuiltIn {
  public:
    Cosine(const Entry& entry, const Arguments& arguments, int64_t max_completion_length)
        : longest_(max_length_of(arguments, max_completion_length)),
          wrong_{arguments.number("max_value_wrong").value_or(-0.5), arguments.number("min_value_wrong").value_or(-1)},
          right_{arguments.number("min_value_correct").value_or(0.5),
                 arguments.number("max_value_correct").value_or(1)} {
        arguments.only_keys({"max_length", "min_value_wrong", "max_value_wrong", "min_value_correct",
                             "max_value_correct", "exact", "numeric"});
        if (arguments.has("exact") && arguments.has("numeric"))
            throw Error("reward.bad-entry", cat(arguments.where(), ": has both 'exact' and 'numeric'"),
                        "One of them says what is right.");
        Entry judge = entry;
        judge.built_in = arguments.has("exact") ? "exact" : "numeric";
        judge.arguments = arguments.has(judge.built_in) ? arguments[judge.built_in].value() : json::object();
        judge_ = make_built_in(judge, max_completion_length);
    }
    std::vector<std::string> columns() const override { return judge_->columns(); }
    Scores score(const Batch& batch) const override {
        Scores all = judge_->score(batch);
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (!all[i]) continue;
            const double length = static_cast<double>(batch.completion_ids[i].size());
            const double progress = std::min(length / static_cast<double>(longest_), 1.0);
            const auto& [least, most] = *all[i] > 0 ? right_ : wrong_;
            all[i] = least + 0.5 * (most - least) * (1 + std::cos(progress * std::numbers::pi));
        }
        return all;
    }

  private:
    int64_t longest_;
    std::pair<double, double> wrong_, right_;  ///< of the longest and of the shortest answer
    std::unique_ptr<BuiltIn> judge_;
};

/// -|length - target| * scale, in tokens or in characters.
class Length final : public OfEachRow {
  public:
    explicit Length(const Arguments& arguments)
        : target_(arguments.at("target").number()), scale_(arguments.number("scale").value_or(1 / target_)) {
        arguments.only_keys({"target", "scale", "unit"});
        if (!(target_ > 0)) arguments["target"].refuse("a length above 0");
        const std::string unit = arguments.string("unit").value_or("tokens");
        if (unit != "tokens" && unit != "characters") arguments["unit"].refuse("tokens or characters");
        characters_ = unit == "characters";
    }

  protected:
    std::optional<double> of_row(const Batch& batch, std::size_t row) const override {
        const std::string& text = batch.completions[row];
        const auto length = characters_
                                ? std::ranges::count_if(text, [](unsigned char c) { return (c & 0xC0) != 0x80; })
                                : static_cast<std::ptrdiff_t>(batch.completion_ids[row].size());
        return -std::abs(static_cast<double>(length) - target_) * scale_;
    }

  private:
    double target_, scale_;
    bool characters_ = false;
};

/// The text, or what its only ``` block holds, is JSON.
class JsonValid final : public OfEachRow {
  public:
    explicit JsonValid(const Arguments& arguments) : object_(arguments.boolean("object").value_or(false)) {
        arguments.only_keys({"object"});
    }

  protected:
    std::optional<double> of_row(const Batch& batch, std::size_t row) const override {
        std::string text = trimmed(batch.completions[row]);
        if (text.starts_with("```") && text.size() > 6 && text.ends_with("```")) {
            const std::size_t line = text.find('\n');
            if (line == std::string::npos) return 0;
            text = trimmed(text.substr(line, text.size() - line - 3));
        }
        const bool fits = json_nesting_depth(text) <= deepest_json && json::accept(text);
        return fits && (!object_ || text.starts_with('{')) ? 1 : 0;
    }

  private:
    bool object_;
};

std::unique_ptr<BuiltIn> made(const Entry& entry, const Arguments& arguments, int64_t max_completion_length) {
    const std::string& name = entry.built_in;
    if (name == "exact") return std::make_unique<Exact>(entry, arguments);
    if (name == "numeric") return std::make_unique<Numeric>(entry, arguments);
    if (name == "regex") return std::make_unique<Regex>(entry, arguments);
    if (name == "think_format") return std::make_unique<ThinkFormat>(arguments);
    if (name == "repetition") return std::make_unique<Repetition>(arguments);
    if (name == "overlong") return std::make_unique<Overlong>(arguments, max_completion_length);
    if (name == "cosine") return std::make_unique<Cosine>(entry, arguments, max_completion_length);
    if (name == "length") return std::make_unique<Length>(arguments);
    UNSLOTH_CHECK(name == "json_valid", name);
    return std::make_unique<JsonValid>(arguments);
}

}  // namespace

const std::vector<std::string>& built_in_names() {
    static const std::vector<std::string> names{"exact",    "numeric", "regex",  "think_format", "repetition",
                                                "overlong", "cosine",  "length", "json_valid"};
    return names;
}

std::unique_ptr<BuiltIn> make_built_in(const Entry& entry, int64_t max_completion_length) {
    // {"think_format": true} asks for the defaults, as does {}.
    static const json empty = json::object();
    const json& given = entry.arguments;
    const bool bare = given.is_boolean() && given.get<bool>();
    try {
        return made(entry, Arguments(bare ? empty : given, cat(entry.where, ", ", entry.built_in)),
                    max_completion_length);
    } catch (const Error& error) {  // the reader's are of input files
        throw Error("reward.bad-entry", error.what());
    }
}

std::optional<double> last_number(const std::string& text) {
    const auto digit = [&](std::size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
    std::optional<double> last;
    for (std::size_t i = 0; i < text.size();) {
        if (!digit(i) && !(text[i] == '.' && digit(i + 1))) {
            ++i;
            continue;
        }
        const std::size_t first = i;
        std::string number;
        while (digit(i) || (text[i] == ',' && i > first && digit(i - 1) && digit(i + 1))) {
            if (text[i] != ',') number += text[i];
            ++i;
        }
        if (i < text.size() && text[i] == '.' && digit(i + 1)) {
            number += text[i++];
            while (digit(i)) number += text[i++];
        }
        if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
            const std::size_t sign = i + 1 < text.size() && (text[i + 1] == '-' || text[i + 1] == '+') ? 1 : 0;
            if (digit(i + 1 + sign)) {
                number += "e";
                if (text[++i] == '-') number += '-';
                i += sign;
                while (digit(i)) number += text[i++];
            }
        }
        // A minus belongs to the number unless it is between two: "3-4".
        std::size_t before = first;
        bool minus = before > 0 && text[before - 1] == '-';
        if (minus) --before;
        if (!minus && before >= 3 && text.compare(before - 3, 3, "\xE2\x88\x92") == 0) minus = true, before -= 3;
        if (minus && before > 0 &&
            (std::isalnum(static_cast<unsigned char>(text[before - 1])) || text[before - 1] == ')'))
            minus = false;
        double value = 0;
        if (!number.empty() && number.front() == '.') number.insert(0, "0");
        const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
        if (error == std::errc() && std::isfinite(value)) last = minus ? -value : value;
    }
    return last;
}

}  // namespace unsloth::reward
