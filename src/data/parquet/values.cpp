#include "data/parquet/values.h"

#include <arrow/util/float16.h>
#include <arrow/util/ree_util.h>
#include <arrow/util/utf8.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace unsloth::data::arrow_json {
namespace {

using arrow::Array;
using arrow::Type;

template <class Number>
void write_number(Number value, Out& out) {
    if constexpr (std::is_floating_point_v<Number>) {
        if (!std::isfinite(value)) {
            out += "null";  // JSON has no other word for it
            return;
        }
    }
    char text[32];
    out.text.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

template <class ListArray>
void write_list(const Array& array, int64_t i, Out& out) {
    const auto& list = static_cast<const ListArray&>(array);
    out += '[';
    const int64_t begin = list.value_offset(i), end = begin + list.value_length(i);
    for (int64_t k = begin; k < end; ++k) {
        if (k > begin) out += ',';
        write_value(*list.values(), k, out);
    }
    out += ']';
}

/// The bytes of datasets' Image feature, struct<bytes: binary, path: string>, as a data: URL: JSON has texts alone.
bool write_image_bytes(const arrow::StructArray& array, int field, int64_t i, Out& out) {
    const arrow::StructType& type = *array.struct_type();
    const Array& bytes = *array.field(field);
    if (type.field(field)->name() != "bytes" || type.GetFieldIndex("path") < 0 || bytes.IsNull(i)) return false;
    std::string_view file;
    if (bytes.type_id() == Type::BINARY)
        file = static_cast<const arrow::BinaryArray&>(bytes).GetView(i);
    else if (bytes.type_id() == Type::LARGE_BINARY)
        file = static_cast<const arrow::LargeBinaryArray&>(bytes).GetView(i);
    else
        return false;
    constexpr const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out += "\"data:;base64,";
    for (std::size_t at = 0; at < file.size(); at += 3) {
        uint32_t three = 0;
        const std::size_t count = std::min<std::size_t>(3, file.size() - at);
        for (std::size_t k = 0; k < 3; ++k) three = three << 8 | (k < count ? static_cast<uint8_t>(file[at + k]) : 0u);
        for (std::size_t k = 0; k < 4; ++k) out += k <= count ? digits[three >> (18 - 6 * k) & 63] : '=';
    }
    out += '"';
    return true;
}

/// A struct has the members of all rows: those that this row lacks are null, and are omitted.
void write_struct(const arrow::StructArray& array, int64_t i, Out& out) {
    out += '{';
    const char* separator = "";
    for (int field = 0; field < array.num_fields(); ++field) {
        const std::size_t member = out.text.size();
        out += separator;
        write_string(array.struct_type()->field(field)->name(), out);
        out += ':';
        const std::size_t value = out.text.size();
        if (!write_image_bytes(array, field, i, out)) write_value(*array.field(field), i, out);
        if (out.text.compare(value, std::string::npos, "null") == 0)
            out.text.resize(member);
        else
            separator = ",";
    }
    out += '}';
}

void write_map(const arrow::MapArray& array, int64_t i, Out& out) {
    out += '{';
    const int64_t begin = array.value_offset(i), end = begin + array.value_length(i);
    for (int64_t k = begin; k < end; ++k) {
        if (k > begin) out += ',';
        const std::size_t key = out.text.size();
        write_value(*array.keys(), k, out);
        if (out.text[key] != '"') throw Unread{"a map whose keys are not strings"};
        out += ':';
        write_value(*array.items(), k, out);
    }
    out += '}';
}

template <class NumberArray>
void write_number_of(const Array& array, int64_t i, Out& out) {
    write_number(static_cast<const NumberArray&>(array).Value(i), out);
}

template <class TextArray>
void write_text_of(const Array& array, int64_t i, Out& out) {
    write_string(static_cast<const TextArray&>(array).GetView(i), out);
}

template <class BytesArray>
void write_bytes_of(const Array& array, int64_t i, Out& out) {
    const std::string_view bytes = static_cast<const BytesArray&>(array).GetView(i);
    if (!out.bytes_as_text && !arrow::util::ValidateUTF8(bytes))
        throw Unread{"bytes that are not UTF-8 (Arrow's type " + array.type()->name() + ")"};
    write_string(bytes, out);
}

/// Extension types are what they store; a text of arrow.json is the JSON that it holds.
void write_extension(const arrow::ExtensionArray& array, int64_t i, Out& out) {
    const std::string name = array.extension_type()->extension_name();
    const std::size_t begin = out.text.size();
    try {
        write_value(*array.storage(), i, out);
    } catch (const Unread&) {
        throw Unread{"a value of Arrow's type " + name + ", which is not read"};
    }
    if (name != "arrow.json") return;
    const auto stored = nlohmann::json::parse(out.text.substr(begin), nullptr, false);
    if (!stored.is_string()) return;  // null, or bytes that are not UTF-8
    const auto& json = stored.get_ref<const std::string&>();
    if (!nlohmann::json::accept(json)) throw Unread{"a text of Arrow's type arrow.json that is not JSON"};
    out.text.replace(begin, std::string::npos, json);
}

/// False: the type is none of numbers.
bool write_number_value(const Array& array, int64_t i, Out& out) {
    switch (array.type_id()) {
        case Type::BOOL:
            out += static_cast<const arrow::BooleanArray&>(array).Value(i) ? "true" : "false";
            return true;
        case Type::INT8:
            write_number<int>(static_cast<const arrow::Int8Array&>(array).Value(i), out);
            return true;
        case Type::UINT8:
            write_number<int>(static_cast<const arrow::UInt8Array&>(array).Value(i), out);
            return true;
        case Type::INT16:
            write_number_of<arrow::Int16Array>(array, i, out);
            return true;
        case Type::UINT16:
            write_number_of<arrow::UInt16Array>(array, i, out);
            return true;
        case Type::INT32:
            write_number_of<arrow::Int32Array>(array, i, out);
            return true;
        case Type::UINT32:
            write_number_of<arrow::UInt32Array>(array, i, out);
            return true;
        case Type::INT64:
            write_number_of<arrow::Int64Array>(array, i, out);
            return true;
        case Type::UINT64:
            write_number_of<arrow::UInt64Array>(array, i, out);
            return true;
        case Type::HALF_FLOAT:
            write_number(
                arrow::util::Float16::FromBits(static_cast<const arrow::HalfFloatArray&>(array).Value(i)).ToFloat(),
                out);
            return true;
        case Type::FLOAT:
            write_number_of<arrow::FloatArray>(array, i, out);
            return true;
        case Type::DOUBLE:
            write_number_of<arrow::DoubleArray>(array, i, out);
            return true;
        default:
            return false;
    }
}

/// False: the type is none of texts and bytes.
bool write_text_value(const Array& array, int64_t i, Out& out) {
    switch (array.type_id()) {
        case Type::STRING:
            write_text_of<arrow::StringArray>(array, i, out);
            return true;
        case Type::LARGE_STRING:
            write_text_of<arrow::LargeStringArray>(array, i, out);
            return true;
        case Type::STRING_VIEW:
            write_text_of<arrow::StringViewArray>(array, i, out);
            return true;
        case Type::BINARY:
            write_bytes_of<arrow::BinaryArray>(array, i, out);
            return true;
        case Type::LARGE_BINARY:
            write_bytes_of<arrow::LargeBinaryArray>(array, i, out);
            return true;
        case Type::BINARY_VIEW:
            write_bytes_of<arrow::BinaryViewArray>(array, i, out);
            return true;
        case Type::DATE32:
        case Type::DATE64:
        case Type::TIME32:
        case Type::TIME64:
        case Type::TIMESTAMP:
        case Type::DECIMAL32:
        case Type::DECIMAL64:
        case Type::DECIMAL128:
        case Type::DECIMAL256:
            write_string(require_value(array.GetScalar(i))->ToString(), out);  // as Arrow spells them
            return true;
        default:
            return false;
    }
}

/// False: the type is none of those that hold other values.
bool write_nested_value(const Array& array, int64_t i, Out& out) {
    switch (array.type_id()) {
        case Type::LIST:
            write_list<arrow::ListArray>(array, i, out);
            return true;
        case Type::LARGE_LIST:
            write_list<arrow::LargeListArray>(array, i, out);
            return true;
        case Type::FIXED_SIZE_LIST:
            write_list<arrow::FixedSizeListArray>(array, i, out);
            return true;
        case Type::LIST_VIEW:
            write_list<arrow::ListViewArray>(array, i, out);
            return true;
        case Type::LARGE_LIST_VIEW:
            write_list<arrow::LargeListViewArray>(array, i, out);
            return true;
        case Type::MAP:
            write_map(static_cast<const arrow::MapArray&>(array), i, out);
            return true;
        case Type::STRUCT:
            write_struct(static_cast<const arrow::StructArray&>(array), i, out);
            return true;
        case Type::DICTIONARY: {
            const auto& words = static_cast<const arrow::DictionaryArray&>(array);
            write_value(*words.dictionary(), words.GetValueIndex(i), out);
            return true;
        }
        case Type::RUN_END_ENCODED: {
            const auto& runs = static_cast<const arrow::RunEndEncodedArray&>(array);
            write_value(*runs.values(),
                        arrow::ree_util::FindPhysicalIndex(arrow::ArraySpan(*runs.data()), i, runs.offset()), out);
            return true;
        }
        case Type::EXTENSION:
            write_extension(static_cast<const arrow::ExtensionArray&>(array), i, out);
            return true;
        default:
            return false;
    }
}

}  // namespace

void write_string(std::string_view text, Out& out) {
    out += '"';
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
            out += escaped;
        } else {
            out += c;
        }
    }
    out += '"';
}

void write_value(const Array& array, int64_t i, Out& out) {
    if (array.IsNull(i))
        out += "null";
    else if (!write_number_value(array, i, out) && !write_text_value(array, i, out) &&
             !write_nested_value(array, i, out))
        throw Unread{"a value of Arrow's type " + array.type()->name() + ", which is not read"};
}

}  // namespace unsloth::data::arrow_json
