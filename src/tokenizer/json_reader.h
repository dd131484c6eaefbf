// Typed access to a JSON document whose errors name the file and the key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth::tokenizer {

/// A value for a message. Lists and objects are not written out: the writer recurses, and a file may nest them without
/// end.
template <class Json>
std::string shown(const Json& value) {
    if (value.is_array()) return cat("a list of ", value.size());
    if (value.is_object()) return cat("an object of ", value.size());
    const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

/// A value within a document. The document outlives it.
class JsonReader {
  public:
    JsonReader(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

    const nlohmann::json& value() const { return *value_; }
    /// "FILE: key a.b[2]"
    const std::string& where() const { return where_; }
    bool null() const { return value_->is_null(); }

    /// A member; input Error when it is absent.
    JsonReader at(const char* key) const {
        require(value_->is_object(), "an object");
        const auto it = value_->find(key);
        if (it == value_->end()) throw input_error(cat(where_, ": '", key, "' is missing"));
        return {*it, child(key)};
    }
    bool has(const char* key) const {
        if (!value_->is_object()) return false;
        const auto it = value_->find(key);
        return it != value_->end() && !it->is_null();
    }
    JsonReader at(std::size_t index) const { return {value_->at(index), cat(where_, "[", index, "]")}; }
    std::size_t size() const {
        require(value_->is_array(), "an array");
        return value_->size();
    }
    const std::string& string() const {
        require(value_->is_string(), "a string");
        return value_->get_ref<const std::string&>();
    }
    bool boolean() const {
        require(value_->is_boolean(), "true or false");
        return value_->get<bool>();
    }
    bool boolean_or(const char* key, bool otherwise) const { return has(key) ? at(key).boolean() : otherwise; }
    /// A token id: an integer from 0 that fits 31 bits.
    int32_t id() const {
        const bool fits = value_->is_number_unsigned() && value_->get<uint64_t>() < 0x7FFFFFFF;
        require(fits, "an integer from 0 to 2147483646");
        return value_->get<int32_t>();
    }
    /// Input Error when the object has a key that is not listed.
    void only_keys(std::initializer_list<std::string_view> known) const {
        require(value_->is_object(), "an object");
        for (const auto& [key, ignored] : value_->items()) {
            bool found = false;
            for (const std::string_view name : known) found = found || name == key;
            if (!found) throw input_error(cat(where_, ": this program does not know the key '", key, "'"));
        }
    }
    [[noreturn]] void refuse(const std::string& expected) const {
        throw input_error(cat(where_, ": expected ", expected, ", found ", shown(*value_)));
    }

  private:
    void require(bool condition, const char* expected) const {
        if (!condition) refuse(expected);
    }
    std::string child(const char* key) const {
        const bool top = where_.find(": key ") == std::string::npos;
        return cat(where_, top ? ": key " : ".", key);
    }

    const nlohmann::json* value_;
    std::string where_;
};

/// Input Error that begins with `where` and names line and column.
inline nlohmann::json parse_json(std::string_view text, const std::string& where) {
    try {
        return nlohmann::json::parse(text);
    } catch (const nlohmann::json::exception& error) {
        throw input_error(cat(where, ": not valid JSON: ", error.what()));
    }
}
inline nlohmann::json parse_json_file(const std::filesystem::path& path) {
    return parse_json(read_file(path), path.string());
}

/// The document of a file, or null where there is none.
class OptionalJsonFile {
  public:
    explicit OptionalJsonFile(const std::filesystem::path& path)
        : path_(path.string()),
          document_(std::filesystem::is_regular_file(path) ? parse_json_file(path) : nlohmann::json()) {}
    JsonReader root() const { return {document_, path_}; }

  private:
    std::string path_;
    nlohmann::json document_;
};

/// The keys of tokenizer_config.json and special_tokens_map.json that give tokens a role.
inline constexpr const char* role_keys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                            "pad_token", "cls_token", "mask_token"};

}  // namespace unsloth::tokenizer
