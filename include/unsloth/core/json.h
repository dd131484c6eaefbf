// The one parser of JSON texts, and what it refuses besides texts that are no JSON.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "unsloth/core/error_id.h"

namespace unsloth {

/// What is accepted. Never: bytes that are not UTF-8, numbers that no double holds, and an object of more than
/// most_ordered_keys keys where their order is kept.
struct JsonRules {
    int deepest = 64;           ///< levels of lists and objects: what copies or writes a value recurses on them
    bool distinct_keys = true;  ///< false: of a key that is twice in one object the last value counts
    bool comments = false;      ///< // and /* */ may be there
};

/// For values that nothing recurses on.
inline constexpr int any_depth = std::numeric_limits<int>::max();
/// Finding a key of an ordered object compares all: one of very many would take forever.
inline constexpr int64_t most_ordered_keys = 10000;

/// Why a text is refused.
struct JsonRefusal {
    enum class Cause { syntax, depth, repeated_key, many_keys };
    Cause cause = Cause::syntax;
    std::string words;     ///< "the JSON nests deeper than 64 levels"; find_json_error() has better ones for syntax
    std::string key = {};  ///< that is repeated

    /// Of an input Error for it.
    ErrorId id() const;
};

// `Json` is nlohmann::json or nlohmann::ordered_json; the caller includes nlohmann/json.hpp.

/// One document. Throws a JsonRefusal.
template <class Json>
Json read_json(std::string_view text, const JsonRules& rules);
/// The same; input Error that begins with `source`, of syntax with line and column.
template <class Json>
Json parse_json(std::string_view text, const std::string& source, const JsonRules& rules = {});
/// The same; a discarded value for what is refused.
template <class Json>
Json try_parse_json(std::string_view text, const JsonRules& rules = {});

extern template nlohmann::json read_json(std::string_view, const JsonRules&);
extern template nlohmann::ordered_json read_json(std::string_view, const JsonRules&);
extern template nlohmann::json parse_json(std::string_view, const std::string&, const JsonRules&);
extern template nlohmann::ordered_json parse_json(std::string_view, const std::string&, const JsonRules&);
extern template nlohmann::json try_parse_json(std::string_view, const JsonRules&);
extern template nlohmann::ordered_json try_parse_json(std::string_view, const JsonRules&);

}  // namespace unsloth
