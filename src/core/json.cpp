#include "unsloth/core/json.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/json_depth.h"
#include "unsloth/core/syntax.h"

namespace unsloth {
namespace {

using Cause = JsonRefusal::Cause;

JsonRefusal too_deep(const JsonRules& rules) {
    return {Cause::depth, cat("the JSON nests deeper than ", rules.deepest, " levels")};
}

JsonRefusal too_many_keys() {
    return {Cause::many_keys, cat("an object has more than ", most_ordered_keys, " keys")};
}

/// Refuses what the parser would take without a word. A pass of its own: given a callback, nlohmann's parser looks at
/// all elements of a list for each of them that is a list or an object.
template <class Json>
class Inspection : public nlohmann::json_sax<Json> {
  public:
    explicit Inspection(const JsonRules& rules) : rules_(rules) {}

    bool start_object(std::size_t) override { return open(); }
    bool key(std::string& name) override {
        std::unordered_set<std::string>& keys = keys_.back();
        if (std::is_same_v<Json, nlohmann::ordered_json> && keys.size() == most_ordered_keys) throw too_many_keys();
        if (!keys.insert(name).second && rules_.distinct_keys)
            throw JsonRefusal{Cause::repeated_key, cat("the key '", name, "' appears twice in one object"), name};
        return true;
    }
    bool end_object() override { return close(); }
    bool start_array(std::size_t) override { return open(); }
    bool end_array() override { return close(); }
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(typename Json::number_integer_t) override { return true; }
    bool number_unsigned(typename Json::number_unsigned_t) override { return true; }
    bool number_float(typename Json::number_float_t, const std::string&) override { return true; }
    bool string(std::string&) override { return true; }
    bool binary(typename Json::binary_t&) override { return true; }
    /// The parser that follows finds it again.
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  private:
    bool open() {
        if (static_cast<int64_t>(keys_.size()) == rules_.deepest) throw too_deep(rules_);
        keys_.emplace_back();
        return true;
    }
    bool close() {
        keys_.pop_back();
        return true;
    }

    const JsonRules& rules_;
    std::vector<std::unordered_set<std::string>> keys_;  ///< of the objects and lists that are open
};

/// The same of a text whose keys may repeat. The full inspection costs a fifth of the parser's time; few texts have
/// enough brackets or strings to need it.
template <class Json>
void inspect_fast(std::string_view text, const JsonRules& rules) {
    const auto count = [&](char c) { return static_cast<int64_t>(std::count(text.begin(), text.end(), c)); };
    if (rules.deepest != any_depth && count('[') + count('{') > rules.deepest &&
        json_nesting_depth(text) > rules.deepest)
        throw too_deep(rules);
    if (std::is_same_v<Json, nlohmann::ordered_json> && count('"') > 2 * most_ordered_keys &&
        most_json_keys(text) > most_ordered_keys)
        throw too_many_keys();
}

}  // namespace

ErrorId JsonRefusal::id() const {
    return cause == Cause::depth || cause == Cause::many_keys ? ErrorId("json.too-large") : ErrorId("json.syntax");
}

template <class Json>
Json read_json(std::string_view text, const JsonRules& rules) {
    if (rules.distinct_keys || rules.comments) {
        Inspection<Json> inspection(rules);
        Json::sax_parse(text.begin(), text.end(), &inspection, nlohmann::detail::input_format_t::json, /*strict=*/true,
                        rules.comments);
    } else {
        inspect_fast<Json>(text, rules);
    }
    try {
        return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/true, rules.comments);
    } catch (const nlohmann::json::exception&) {
        throw JsonRefusal{Cause::syntax, "it is not valid JSON"};
    }
}

template <class Json>
Json parse_json(std::string_view text, const std::string& source, const JsonRules& rules) {
    try {
        return read_json<Json>(text, rules);
    } catch (const JsonRefusal& refusal) {
        if (refusal.cause == Cause::syntax) throw not_valid_json(source, text);
        throw Error(refusal.id(), cat(source, ": ", refusal.words));
    }
}

template <class Json>
Json try_parse_json(std::string_view text, const JsonRules& rules) {
    try {
        return read_json<Json>(text, rules);
    } catch (const JsonRefusal&) {
        return Json(Json::value_t::discarded);
    }
}

template nlohmann::json read_json(std::string_view, const JsonRules&);
template nlohmann::ordered_json read_json(std::string_view, const JsonRules&);
template nlohmann::json parse_json(std::string_view, const std::string&, const JsonRules&);
template nlohmann::ordered_json parse_json(std::string_view, const std::string&, const JsonRules&);
template nlohmann::json try_parse_json(std::string_view, const JsonRules&);
template nlohmann::ordered_json try_parse_json(std::string_view, const JsonRules&);

}  // namespace unsloth
