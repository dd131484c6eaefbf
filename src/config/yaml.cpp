#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/config/read_tree.h"
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

/// What the library's messages mean to who wrote the file.
std::string plain_words(const std::string& message) {
    static const std::vector<std::pair<std::string_view, const char*>> words = {
        {"end of map flow", "a comma or } is missing before this"},
        {"end of sequence flow", "a comma or ] is missing before this"},
        {"end of map", "this line is indented unlike the keys that it follows, or has no colon after its key"},
        {"end of sequence", "this line is indented unlike the list that it follows, or lacks its -"},
        {"illegal flow end", "this bracket closes none"},
        {"illegal block entry", "a list's - is where no list can begin: it begins a line of its own"},
        {"illegal map key", "a key is where none can: is the line indented too far?"},
        {"illegal map value",
         "this colon is where no value can begin: is the line indented too far, or does a text with a colon lack "
         "quotes?"},
        {"illegal tab", "the indentation has a tab; it takes spaces only"},
        {"illegal EOF in scalar", "a quote is not closed before the file ends"},
        {"illegal document indicator", "a quote is not closed before the document ends"},
        {"illegal character in scalar", "no text begins with this character, unless it is in quotes"},
        {"unknown token", "no value begins with this character; a text with it needs quotes"},
        {"unexpected character in block", "nothing but the depth of its indentation may follow | or >"},
        {"unknown escape", "this backslash begins no known character; in single quotes it is one itself"},
        {"bad character found while scanning hex", "hexadecimal digits are expected"},
        {"the referenced anchor",
         "* begins the name of a part marked by & before, which there is not; a text that begins "
         "with * needs quotes"},
        {"alias not found", "* begins the name of a part; a text that begins with * needs quotes"},
        {"illegal character found while scanning alias",
         "* begins the name of a part; a text that begins with * needs quotes"},
        {"anchor not found", "& begins the name of a part; a text that begins with & needs quotes"},
        {"illegal character found while scanning anchor",
         "& begins the name of a part; a text that begins with & needs quotes"},
        {"illegal character found while scanning tag", "! begins a tag; a text that begins with ! needs quotes"},
        {"cannot assign", "two marks of one kind (& or !) stand before one value"}};
    for (const auto& [begin, meaning] : words)
        if (message.starts_with(begin)) return meaning;
    return "it cannot be read from here on";
}

class Converter {
  public:
    Converter(std::string file, const std::string& content) : file_(std::move(file)), content_(content) {}

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
        if (mark.is_null()) throw Error("config.syntax", cat(file_, ": ", what));
        throw malformed(file_, content_, offset_of(mark), what);
    }
    [[noreturn]] void fail(const YAML::Exception& failure) const {
        const std::size_t at = failure.mark.is_null() ? 0 : offset_of(failure.mark);
        const std::size_t line = at == 0 ? 0 : content_.rfind('\n', at - 1) + 1;  // npos + 1 is 0
        const std::string before = content_.substr(line, at - line);
        const bool tab = before.find('\t') != std::string::npos && before.find_first_not_of(" \t") == std::string::npos;
        fail(failure.mark, cat("no valid YAML: ",
                               tab ? "the indentation has a tab; it takes spaces only" : plain_words(failure.msg)));
    }
    /// What the library makes a document of its own without the mark of one.
    [[noreturn]] void fail_second(const YAML::Mark& mark) const {
        const bool marked = content_.rfind("\n---", offset_of(mark)) != std::string::npos;
        fail(mark, marked
                       ? "a second document begins here; a file holds one"
                       : "this belongs to none of the lines before it: a list and an object do not follow each other");
    }

  private:
    std::size_t offset_of(const YAML::Mark& mark) const {
        std::size_t at = 0;
        for (int line = 0; line < mark.line; ++line) at = std::min(content_.find('\n', at), content_.size() - 1) + 1;
        return std::min(at + static_cast<std::size_t>(mark.column), content_.size());
    }

    /// The library takes a quote that is not closed for one that ends with the file.
    void require_closed(const YAML::Mark& mark) const {
        const std::size_t begin = offset_of(mark);
        const char quote = begin < content_.size() ? content_[begin] : '\0';
        if (quote != '\'' && quote != '"') return;
        for (std::size_t at = begin + 1; at < content_.size(); ++at) {
            if (quote == '"' && content_[at] == '\\')
                ++at;
            else if (content_[at] == quote && content_[at + 1] != quote)
                return;  // a string ends with a 0
            else if (content_[at] == quote) {
                if (quote == '"') return;
                ++at;
            }
        }
        fail(mark, "no valid YAML: the quote that begins here is not closed");
    }

    Json scalar(const YAML::Node& node) const {
        const std::string &tag = node.Tag(), &text = node.Scalar();
        if (tag == "!") require_closed(node.Mark());
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
                                             " appears twice in one object"));
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
    const std::string& content_;
    std::size_t values_ = 0;
};

}  // namespace

Json parse_yaml(const std::string& content, const std::string& file) {
    Converter converter(file, content);
    try {
        const std::vector<YAML::Node> documents = YAML::LoadAll(content);
        if (documents.empty()) return nullptr;
        if (documents.size() > 1) converter.fail_second(documents[1].Mark());
        return converter.convert(documents.front());
    } catch (const YAML::Exception& failure) {
        converter.fail(failure);
    }
}

}  // namespace unsloth::config
