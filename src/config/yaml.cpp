#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>

#include "config/read_tree.h"
#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

constexpr int deepest_yaml = 64;
// A few lines of aliases can stand for more values than there is memory.
constexpr std::size_t most_values = 1000000;

bool is_one_of(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return text == word; });
}

Json integer_of(const std::string& digits, int base, bool negative) {
    uint64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, failure] = std::from_chars(digits.data(), end, value, base);
    if (failure != std::errc{} || stop != end || digits.empty()) return nullptr;
    if (!negative) return value;
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return nullptr;
    return -static_cast<int64_t>(value);
}

/// A plain scalar's number, or null when it is none. Between digits an underscore may stand, as PyYAML has it.
Json number_of(std::string text) {
    for (std::size_t i = 1; i + 1 < text.size(); ++i)
        if (text[i] == '_' && std::isdigit(static_cast<unsigned char>(text[i - 1])) != 0 &&
            std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0)
            text.erase(i, 1);
    const bool has_sign = !text.empty() && (text[0] == '+' || text[0] == '-');
    const std::string rest = text.substr(has_sign ? 1 : 0);
    const bool negative = has_sign && text[0] == '-';
    if (rest.starts_with("0x")) return integer_of(rest.substr(2), 16, negative);
    if (rest.starts_with("0o")) return integer_of(rest.substr(2), 8, negative);
    if (const Json whole = integer_of(rest, 10, negative); !whole.is_null()) return whole;
    if (rest.empty() || rest.find_first_not_of("0123456789.eE+-") != std::string::npos) return nullptr;
    double value = 0;
    const char* const end = rest.data() + rest.size();
    const auto [stop, failure] = std::from_chars(rest.data(), end, value);
    if (failure != std::errc{} || stop != end || !std::isfinite(value)) return nullptr;
    return negative ? -value : value;
}

Json plain_scalar(const std::string& text) {
    if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
    if (is_one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return true;
    if (is_one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) return false;
    const Json number = number_of(text);
    return number.is_null() ? Json(text) : number;
}

class Converter {
  public:
    explicit Converter(std::string file) : file_(std::move(file)) {}

    Json convert(const YAML::Node& node, int depth = 0) {
        if (depth > deepest_yaml)
            fail(node.Mark(),
                 cat("lists and objects nest deeper than ", deepest_yaml, " levels, or contain themselves"));
        if (++values_ > most_values) fail(node.Mark(), "aliases make more than a million values of this file");
        switch (node.Type()) {
            case YAML::NodeType::Scalar:
                return scalar(node);
            case YAML::NodeType::Sequence: {
                Json list = Json::array();
                for (const YAML::Node& element : node) list.push_back(convert(element, depth + 1));
                return list;
            }
            case YAML::NodeType::Map:
                return object(node, depth);
            default:
                return nullptr;
        }
    }

    [[noreturn]] void fail(const YAML::Mark& mark, const std::string& what) const {
        const std::string place = mark.is_null() ? "" : cat(":", mark.line + 1, ":", mark.column + 1);
        throw usage_error(cat(file_, place, ": ", what));
    }

  private:
    Json scalar(const YAML::Node& node) const {
        const std::string &tag = node.Tag(), &text = node.Scalar();
        if (tag == "?" || tag.empty()) return plain_scalar(text);
        if (tag == "!" || tag == "tag:yaml.org,2002:str") return text;  // between quotes, or said to be a string
        if (tag.starts_with("tag:yaml.org,2002:") && !tag.starts_with("tag:yaml.org,2002:python"))
            return plain_scalar(text);
        fail(node.Mark(), cat("the tag ", tag, " is not known; plain values alone are read"));
    }

    Json object(const YAML::Node& node, int depth) {
        Json object = Json::object();
        std::vector<YAML::Node> merged;
        for (const auto& entry : node) {
            if (!entry.first.IsScalar()) fail(entry.first.Mark(), "a key is a list or an object");
            const std::string& key = entry.first.Scalar();
            if (key == "<<" && entry.first.Tag() != "!") {
                merged.push_back(entry.second);
                continue;
            }
            if (object.contains(key))
                fail(entry.first.Mark(), cat("the key ", Json(key).dump(-1, ' ', false, Json::error_handler_t::replace),
                                             " stands twice in one object"));
            object[key] = convert(entry.second, depth + 1);
        }
        for (const YAML::Node& from : merged) merge(object, from, depth);
        return object;
    }

    // The object's own keys win, then the earlier ones of several.
    void merge(Json& object, const YAML::Node& from, int depth) {
        const Json others = convert(from, depth + 1);
        for (const Json& other : others.is_array() ? others : Json::array({others})) {
            if (!other.is_object()) fail(from.Mark(), "<< wants an object, or a list of objects");
            for (const auto& [key, value] : other.items())
                if (!object.contains(key)) object[key] = value;
        }
    }

    std::string file_;
    std::size_t values_ = 0;
};

}  // namespace

Json parse_yaml(const std::string& content, const std::string& file) {
    Converter converter(file);
    try {
        const std::vector<YAML::Node> documents = YAML::LoadAll(content);
        if (documents.empty()) return nullptr;
        if (documents.size() > 1)
            converter.fail(documents[1].Mark(), "a second document begins here; a file holds one");
        return converter.convert(documents.front());
    } catch (const YAML::Exception& failure) {
        converter.fail(failure.mark, cat("no valid YAML: ", failure.msg));
    }
}

}  // namespace unsloth::config
