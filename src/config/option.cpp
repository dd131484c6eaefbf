#include "unsloth/config/option.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <sstream>

#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"
#include "unsloth/core/syntax.h"
#include "unsloth/core/text.h"

namespace unsloth::config {
namespace {

constexpr double largest_exact_integer = 9007199254740992.0;  // 2^53

std::string bounds_text(const Range& range) {
    std::ostringstream text;
    text << std::setprecision(15);  // whole numbers as such
    const char* joint = " ";
    if (range.minimum) {
        text << joint << (range.exclusive_minimum ? "> " : ">= ") << *range.minimum;
        joint = " and ";
    }
    if (range.maximum) text << joint << (range.exclusive_maximum ? "< " : "<= ") << *range.maximum;
    return text.str();
}

std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

std::string element_choices(const Option& option) {
    return option.choices.empty() ? "" : " out of " + joined(option.choices);
}

std::string kind_of(const Json& value) {
    switch (value.type()) {
        case Json::value_t::null:
            return "null";
        case Json::value_t::boolean:
            return cat("the boolean ", value.dump());
        case Json::value_t::string:
            return cat("the string ", value.dump(-1, ' ', false, Json::error_handler_t::replace));
        case Json::value_t::array:
            return "a list";
        case Json::value_t::object:
            return "an object";
        default:
            return cat("the number ", value.dump());
    }
}

std::string shown(const Json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

bool is_integer(const Json& value) {
    if (value.is_number_unsigned()) return value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    if (value.is_number_integer()) return true;
    if (!value.is_number_float()) return false;
    const double number = value.get<double>();
    return std::floor(number) == number && std::abs(number) < largest_exact_integer;
}

bool is_finite_number(const Json& value) {
    return value.is_number() && std::isfinite(value.get<double>());
}

template <class Number>
std::optional<Number> parse_number(const std::string& text) {
    Number number{};
    const char* const begin = text.data() + (text.size() > 1 && text[0] == '+' && text[1] != '-' ? 1 : 0);
    const char* const end = text.data() + text.size();
    const auto [stop, failure] = std::from_chars(begin, end, number);
    if (failure != std::errc{} || stop != end) return std::nullopt;
    return number;
}

Json number_from_text(const std::string& text, bool whole) {
    if (whole) {
        if (const auto number = parse_number<int64_t>(text)) return *number;
    } else if (const auto number = parse_number<double>(text); number && std::isfinite(*number)) {
        return *number;
    }
    return text;
}

bool all_elements(const Json& values, bool (*fits)(const Json&)) {
    return std::all_of(values.begin(), values.end(), fits);
}

bool is_text(const Json& value) {
    return value.is_string();
}
bool is_scalar(const Json& value) {
    return value.is_string() || value.is_boolean() || is_finite_number(value);
}

bool has_type(const Option& option, const Json& value) {
    switch (option.type) {
        case OptionType::boolean:
            return value.is_boolean();
        case OptionType::integer:
            return is_integer(value);
        case OptionType::number:
            return is_finite_number(value);
        // Absent is null, so that "" is always an error.
        case OptionType::text:
            return value.is_string() && !(option.nullable && value.get<std::string>().empty());
        case OptionType::choice:
            return value.is_string();
        case OptionType::text_list:
            return value.is_array() && all_elements(value, is_text);
        case OptionType::integer_list:
            return value.is_array() && all_elements(value, is_integer);
        case OptionType::integer_map:
            return value.is_object() && all_elements(value, is_integer);
        case OptionType::number_map:
            return value.is_object() && all_elements(value, is_finite_number);
        case OptionType::scalar_map:
            return value.is_object() && all_elements(value, is_scalar);
        case OptionType::object:
            return value.is_object() || (value.is_string() && !option.choices.empty());
        case OptionType::object_list:
            return value.is_array();
        case OptionType::json:
            return value.is_array() || value.is_object();
    }
    return false;
}

bool in_range(const Range& range, const Json& value) {
    if (!value.is_number()) return true;
    const double number = value.get<double>();
    if (range.minimum && (range.exclusive_minimum ? number <= *range.minimum : number < *range.minimum)) return false;
    if (range.maximum && (range.exclusive_maximum ? number >= *range.maximum : number > *range.maximum)) return false;
    return true;
}

void check_choice(const Option& option, const std::string& name, const std::string& origin) {
    if (option.choices.empty()) return;
    if (std::find(option.choices.begin(), option.choices.end(), name) != option.choices.end()) return;
    throw Error("option.invalid-value", cat(origin, ": expected ", expectation(option), ", found '", name, "'"),
                advice_on_value(option, name));
}

void check_one(const Option& option, const Json& value, const std::string& origin) {
    if (!in_range(option.range, value))
        throw Error("option.invalid-value", cat(origin, ": expected ", expectation(option), ", found ", shown(value)));
    if (value.is_string()) check_choice(option, value.get<std::string>(), origin);
}

void check(const Option& option, const Json& value, const std::string& origin) {
    const bool number = option.type == OptionType::integer || option.type == OptionType::number;
    if (number && value.is_string() && number_from_text(trimmed(value.get<std::string>()), false).is_number()) {
        throw Error("option.invalid-value", cat(origin, ": expected ", expectation(option), ", found ", kind_of(value)),
                    cat("Without the quotes it is a number: ", trimmed(value.get<std::string>()), "."));
    } else if (!has_type(option, value)) {
        throw Error("option.invalid-value", cat(origin, ": expected ", expectation(option), ", found ", kind_of(value)),
                    option.remedy);
    } else if (option.check_elements) {
        option.check_elements(value, origin);
    } else if (option.is_list() || option.is_map()) {
        for (const auto& element : value) check_one(option, element, origin);
    } else {
        check_one(option, value, origin);
    }
}

std::string lower_case(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

Json list_from_text(const Option& option, const std::string& text) {
    Json list = Json::array();
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
        part = trimmed(part);
        list.push_back(option.type == OptionType::integer_list ? number_from_text(part, true) : Json(part));
    }
    return list;
}

Json json_from_text(const std::string& text, const std::string& origin) {
    Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    const bool begins_as_json = text.find_first_of("{[") < text.find_first_not_of(" \t\n{[");
    if (value.is_discarded() && begins_as_json) {
        const SyntaxError error = find_json_error(text);
        throw Error("option.invalid-value", cat(origin, ": expected JSON: ", error.words), marked_line(text, error.at));
    }
    if (value.is_discarded())
        throw Error("option.invalid-value", cat(origin, ": expected JSON, found '", text, "'"),
                    cat("In quotes, so that the shell leaves it whole, as ", origin,
                        R"( '{"key": "value"}'; --help has an example.)"));
    return value;
}

}  // namespace

bool Option::is_map() const {
    return type == OptionType::integer_map || type == OptionType::number_map || type == OptionType::scalar_map;
}

bool Option::takes_null() const {
    return nullable || std::any_of(synonyms.begin(), synonyms.end(),
                                   [](const Synonym& synonym) { return synonym.written.is_null(); });
}

bool Option::null_changes_it() const {
    return std::any_of(synonyms.begin(), synonyms.end(), [&](const Synonym& synonym) {
        return synonym.written.is_null() && synonym.meant != default_value;
    });
}

std::string expectation(const Option& option) {
    std::string text;
    switch (option.type) {
        case OptionType::boolean:
            text = "true or false";
            break;
        case OptionType::integer:
            text = "an integer" + bounds_text(option.range);
            break;
        case OptionType::number:
            text = "a number" + bounds_text(option.range);
            break;
        case OptionType::text:
            if (option.choices.empty()) {
                text = option.nullable ? "a string that is not empty" : "a string";
                break;
            }
            [[fallthrough]];
        case OptionType::choice:
            text = "one of " + joined(option.choices);
            break;
        case OptionType::text_list:
            text = "a list of strings" + element_choices(option);
            break;
        case OptionType::integer_list:
            text = "a list of integers" + bounds_text(option.range);
            break;
        case OptionType::integer_map:
            text = "an object of integers" + bounds_text(option.range);
            break;
        case OptionType::number_map:
            text = "an object of numbers" + bounds_text(option.range);
            break;
        case OptionType::scalar_map:
            text = "an object of numbers, strings or booleans";
            break;
        case OptionType::object:
            text = option.choices.empty() ? "an object" : cat("one of ", joined(option.choices), ", or an object");
            break;
        case OptionType::object_list:
            text = "a list of objects";
            break;
        case OptionType::json:
            text = "a list or an object";
            break;
    }
    if (!option.nullable) return text;
    for (const Synonym& synonym : option.synonyms)
        if (synonym.meant.is_null() && synonym.written.is_string())
            return cat(text, ", or ", synonym.written.get<std::string>());
    return text + ", or null";
}

std::string advice_on_value(const Option& option, const std::string& value) {
    for (const auto& [foreign, advice] : option.foreign_values)
        if (foreign == value) return advice;
    const std::string meant = did_you_mean(nearest(value, option.choices));
    return meant.empty() ? option.remedy : meant;
}

void assign(const Option& option, const Json& value, const std::string& origin, std::vector<std::string>& notes) {
    for (const auto& synonym : option.synonyms) {
        if (value != synonym.written) continue;
        if (!synonym.note.empty()) notes.push_back(cat(origin, ": ", synonym.note));
        return option.set(synonym.meant);
    }
    if (option.nullable && value.is_null()) return option.set(value);
    Json meant = value;
    if (value.is_string() && option.accepts_number_as_text)
        meant = number_from_text(trimmed(value.get<std::string>()), false);
    if (value.is_string() && option.is_path) meant = expand_home(value.get<std::string>());
    check(option, meant, origin);
    option.set(meant);
}

std::string expand_home(const std::string& path) {
    const char* const home = std::getenv("HOME");
    if (home == nullptr || (path != "~" && !path.starts_with("~/"))) return path;
    return home + path.substr(1);
}

std::optional<bool> parse_boolean(const std::string& text) {
    const std::string word = lower_case(text);
    for (const char* yes : {"true", "yes", "on", "1"})
        if (word == yes) return true;
    for (const char* no : {"false", "no", "off", "0"})
        if (word == no) return false;
    return std::nullopt;
}

Json parse_flag_text(const Option& option, const std::string& text, const std::string& origin) {
    if (text == "null" && option.takes_null()) return nullptr;
    switch (option.type) {
        case OptionType::boolean:
            if (const auto value = parse_boolean(text)) return *value;
            return text;
        case OptionType::integer:
            return number_from_text(text, true);
        case OptionType::number:
            return number_from_text(text, false);
        case OptionType::text:
            return text;
        case OptionType::choice: {
            // "true" is a boolean where the table knows what a boolean means here.
            const auto value = parse_boolean(text);
            const auto knows = [&](const Synonym& synonym) { return value && synonym.written == Json(*value); };
            if (std::any_of(option.synonyms.begin(), option.synonyms.end(), knows)) return *value;
            return text;
        }
        case OptionType::text_list:
            if (option.one_text) {
                const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
                return list.is_array() ? list : Json::array({text});
            }
            [[fallthrough]];
        case OptionType::integer_list:
            return trimmed(text).starts_with('[') ? json_from_text(text, origin) : list_from_text(option, text);
        case OptionType::object:
            if (!option.choices.empty() && !trimmed(text).starts_with('{')) return text;
            return json_from_text(text, origin);
        default:
            return json_from_text(text, origin);
    }
}

int64_t parse_byte_size(const std::string& text, const std::string& origin) {
    static const std::vector<std::pair<std::string, double>> units = {
        {"", 1},      {"B", 1},      {"KB", 1e3},      {"MB", 1e6},         {"GB", 1e9},
        {"TB", 1e12}, {"KIB", 1024}, {"MIB", 1048576}, {"GIB", 1073741824}, {"TIB", 1099511627776}};
    double number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, failure] = std::from_chars(text.data(), end, number);
    std::string unit = trimmed(std::string(rest, end));
    std::transform(unit.begin(), unit.end(), unit.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    const auto known = std::find_if(units.begin(), units.end(), [&](const auto& one) { return one.first == unit; });
    const double bytes = failure == std::errc() && known != units.end() ? number * known->second : 0;
    if (!(bytes >= 1 && bytes <= largest_exact_integer))
        throw Error("option.invalid-value",
                    cat(origin, ": expected a size such as 5GB, 500MB or 2GiB, found '", text, "'"));
    return static_cast<int64_t>(bytes);
}

}  // namespace unsloth::config
