// JSON documents as template values.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

/// Keys keep their order. Failure for a document that nests too deep.
template <class Json>
Value from_json(const Json& json) {
    const Level level = value_level();
    switch (json.type()) {
        case nlohmann::detail::value_t::boolean:
            return json.template get<bool>();
        case nlohmann::detail::value_t::number_integer:
            return Integer{json.template get<int64_t>()};
        case nlohmann::detail::value_t::number_unsigned:
            return Integer{json.template get<uint64_t>()};
        case nlohmann::detail::value_t::number_float:
            return json.template get<double>();
        case nlohmann::detail::value_t::string:
            return json.template get_ref<const std::string&>();
        case nlohmann::detail::value_t::array: {
            Items items;
            items.reserve(json.size());
            for (const auto& item : json) items.push_back(from_json(item));
            return Value::list(std::move(items));
        }
        case nlohmann::detail::value_t::object: {
            auto dict = std::make_shared<Dict>();
            for (const auto& [key, value] : json.items()) dict->set(Value(key), from_json(value));
            return dict;
        }
        default:
            return {};
    }
}

}  // namespace unsloth::tokenizer::jinja
