#include "formats/json.h"

#include <type_traits>
#include <unordered_set>

#include "unsloth/core/json_depth.h"
#include "unsloth/core/syntax.h"

namespace unsloth::formats {

namespace {

/// Refuses what the parser would take without a word. A pass of its own: given a callback, nlohmann's parser looks at
/// all elements of a list for each of them that is a list or an object.
template <class AnyJson>
class KeyCheck : public nlohmann::json_sax<AnyJson> {
  public:
    explicit KeyCheck(const std::string& source) : source_(source) {}

    bool start_object(std::size_t) override {
        keys_.emplace_back();
        return true;
    }
    bool key(std::string& name) override {
        if (std::is_same_v<AnyJson, OrderedJson> && keys_.back().size() == most_ordered_keys)
            throw Error("json.too-large", cat(source_, ": an object has more than ", most_ordered_keys, " keys"));
        if (!keys_.back().insert(name).second)
            throw Error("json.syntax", cat(source_, ": the key '", name, "' stands twice in one object"));
        return true;
    }
    bool end_object() override {
        keys_.pop_back();
        return true;
    }
    bool start_array(std::size_t) override { return true; }
    bool end_array() override { return true; }
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(typename AnyJson::number_integer_t) override { return true; }
    bool number_unsigned(typename AnyJson::number_unsigned_t) override { return true; }
    bool number_float(typename AnyJson::number_float_t, const std::string&) override { return true; }
    bool string(std::string&) override { return true; }
    bool binary(typename AnyJson::binary_t&) override { return true; }
    /// The parser that follows finds it again, and says it.
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  private:
    const std::string& source_;
    std::vector<std::unordered_set<std::string>> keys_;  ///< of the objects that are open
};

}  // namespace

template <class AnyJson>
AnyJson parse_json(std::string_view text, const std::string& source) {
    if (json_nesting_depth(text) > max_json_depth)
        throw Error("json.too-large", cat(source, ": the JSON nests deeper than ", max_json_depth, " levels"));
    KeyCheck<AnyJson> check(source);
    AnyJson::sax_parse(text.begin(), text.end(), &check);
    try {
        return AnyJson::parse(text.begin(), text.end());
    } catch (const nlohmann::json::exception&) {
        throw not_valid_json(source, text);
    }
}

template Json parse_json<Json>(std::string_view, const std::string&);
template OrderedJson parse_json<OrderedJson>(std::string_view, const std::string&);

}  // namespace unsloth::formats
