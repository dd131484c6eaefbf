// Messages from and to JSON values, by their types.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/utf8.h"
#include "unsloth/grpc/schema.h"
#include "unsloth/grpc/status.h"

namespace unsloth::grpc {
namespace {

using Json = nlohmann::ordered_json;
using protozero::pbf_reader, protozero::pbf_writer, protozero::pbf_wire_type;

[[noreturn]] void refuse_field(const MessageField& field, const char* why) {
    throw Status(Code::invalid_argument, cat("Invalid value for '", field.name, "': ", why, "."));
}

bool has_length(FieldType type) {
    return type == FieldType::text || type == FieldType::bytes || type == FieldType::message;
}

pbf_wire_type wire_type_of(FieldType type) {
    if (type == FieldType::float64) return pbf_wire_type::fixed64;
    if (type == FieldType::float32) return pbf_wire_type::fixed32;
    return has_length(type) ? pbf_wire_type::length_delimited : pbf_wire_type::varint;
}

Json enumerated(const MessageField& field, int32_t number) {
    for (const auto& [name, value] : field.names)
        if (value == number) return name;
    return number;
}

Json read_number(pbf_reader& reader, const MessageField& field) {
    switch (field.type) {
        case FieldType::float64:
            return reader.get_double();
        case FieldType::float32:
            return static_cast<double>(reader.get_float());
        case FieldType::int64:
            return reader.get_int64();
        case FieldType::uint64:
            return reader.get_uint64();
        case FieldType::int32:
            return reader.get_int32();
        case FieldType::uint32:
            return reader.get_uint32();
        case FieldType::boolean:
            return reader.get_bool();
        default:
            return enumerated(field, reader.get_enum());
    }
}

void read_packed(pbf_reader& reader, const MessageField& field, Json& list) {
    const auto add = [&](auto range) {
        for (const auto value : range) list.push_back(value);
    };
    switch (field.type) {
        case FieldType::float64:
            return add(reader.get_packed_double());
        case FieldType::float32:
            return add(reader.get_packed_float());
        case FieldType::int64:
            return add(reader.get_packed_int64());
        case FieldType::uint64:
            return add(reader.get_packed_uint64());
        case FieldType::int32:
            return add(reader.get_packed_int32());
        case FieldType::uint32:
            return add(reader.get_packed_uint32());
        case FieldType::boolean:
            return add(reader.get_packed_bool());
        default:
            for (const int32_t value : reader.get_packed_enum()) list.push_back(enumerated(field, value));
    }
}

Json read_value(pbf_reader& reader, const MessageField& field, bool accept_unknown) {
    if (reader.wire_type() != wire_type_of(field.type)) refuse_field(field, "it has another type");
    if (!has_length(field.type)) return read_number(reader, field);
    const protozero::data_view view = reader.get_view();
    const std::string_view bytes(view.data(), view.size());
    if (field.type == FieldType::message) return read_message(bytes, *field.message, accept_unknown);
    if (field.type == FieldType::text && first_invalid_utf8(bytes) != bytes.size())
        refuse_field(field, "it is not valid UTF-8");
    return std::string(bytes);
}

/// A key of a map is text in JSON.
void add_entry(Json& map, const MessageField& field, const Json& entry) {
    const MessageField& key = field.message->fields.front();
    const Json name = entry.value("key", key.type == FieldType::text ? Json("") : Json(0));
    const MessageField& value = field.message->fields.back();
    const Json none = has_length(value.type) ? Json("") : Json(0);
    map[name.is_string() ? name.get<std::string>() : name.dump()] = entry.value("value", none);
}

bool is_zero(const Json& value) {
    return value.is_boolean() ? !value.get<bool>() : value.is_number() ? value == 0 : value == "";
}

void read_field(pbf_reader& reader, const MessageField& field, const MessageType& type, bool accept_unknown, Json& to) {
    if (field.is_repeated && field.message != nullptr && field.message->is_map_entry) {
        Json& map = to.emplace(field.name, Json::object()).first.value();
        return add_entry(map, field, read_value(reader, field, accept_unknown));
    }
    if (field.is_repeated) {
        Json& list = to.emplace(field.name, Json::array()).first.value();
        if (!has_length(field.type) && reader.wire_type() == pbf_wire_type::length_delimited)
            read_packed(reader, field, list);
        else
            list.push_back(read_value(reader, field, accept_unknown));
        return;
    }
    if (field.oneof >= 0)
        for (const MessageField& other : type.fields)
            if (other.oneof == field.oneof) to.erase(other.name);
    to[field.name] = read_value(reader, field, accept_unknown);
    if (!field.has_presence && field.message == nullptr && is_zero(to[field.name])) to.erase(field.name);
}

/// A list's values as T; whether they are integers or not, JSON has them as its own types.
template <class T>
std::vector<T> values_of(const Json& list) {
    std::vector<T> values;
    values.reserve(list.size());
    for (const Json& one : list) values.push_back(one.get<T>());
    return values;
}

void write_list(pbf_writer& writer, const MessageField& field, const Json& list) {
    switch (field.type) {
        case FieldType::float64: {
            const auto values = values_of<double>(list);
            return writer.add_packed_double(field.number, values.begin(), values.end());
        }
        case FieldType::float32: {
            const auto values = values_of<float>(list);
            return writer.add_packed_float(field.number, values.begin(), values.end());
        }
        case FieldType::uint32:
        case FieldType::uint64: {
            const auto values = values_of<uint64_t>(list);
            return writer.add_packed_uint64(field.number, values.begin(), values.end());
        }
        default: {  // int32's negative values have ten bytes, too
            const auto values = values_of<int64_t>(list);
            return writer.add_packed_int64(field.number, values.begin(), values.end());
        }
    }
}

void write_value(pbf_writer& writer, const MessageField& field, const Json& value) {
    switch (field.type) {
        case FieldType::float64:
            return writer.add_double(field.number, value.get<double>());
        case FieldType::float32:
            return writer.add_float(field.number, value.get<float>());
        case FieldType::uint32:
        case FieldType::uint64:
            return writer.add_uint64(field.number, value.get<uint64_t>());
        case FieldType::boolean:
            return writer.add_bool(field.number, value.get<bool>());
        case FieldType::enumeration:
            return writer.add_int64(
                field.number, value.is_string() ? field.names.at(value.get<std::string>()) : value.get<int32_t>());
        case FieldType::message:
            return writer.add_message(field.number, write_message(value, *field.message));
        case FieldType::text:
        case FieldType::bytes:
            return writer.add_bytes(field.number, value.get_ref<const std::string&>());
        default:
            return writer.add_int64(field.number, value.get<int64_t>());
    }
}

void write_field(pbf_writer& writer, const MessageField& field, const Json& value) {
    if (!field.is_repeated) {
        const bool says_nothing = !field.has_presence && field.message == nullptr && is_zero(value);
        if (!says_nothing) write_value(writer, field, value);
    } else if (field.message != nullptr && field.message->is_map_entry) {
        const bool has_texts = field.message->fields.front().type == FieldType::text;
        for (const auto& [key, one] : value.items())
            write_value(writer, field, {{"key", has_texts ? Json(key) : Json(std::stoll(key))}, {"value", one}});
    } else if (has_length(field.type)) {
        for (const Json& one : value) write_value(writer, field, one);
    } else if (!value.empty()) {
        write_list(writer, field, value);
    }
}

}  // namespace

Json read_message(std::string_view bytes, const MessageType& type, bool accept_unknown) {
    Json object = Json::object();
    try {
        pbf_reader reader(bytes.data(), bytes.size());
        while (reader.next()) {
            const auto field = std::ranges::find(type.fields, reader.tag(), &MessageField::number);
            if (field != type.fields.end()) {
                read_field(reader, *field, type, accept_unknown, object);
            } else if (accept_unknown) {
                reader.skip();
            } else {
                throw Status(Code::invalid_argument, cat("Unknown parameter: field ", reader.tag(), " of ", type.name,
                                                         ", which this service does not have."));
            }
        }
    } catch (const protozero::exception&) {
        throw Status(Code::invalid_argument, cat("The message is no ", type.name, ": its bytes are malformed."));
    }
    return object;
}

std::string write_message(const Json& object, const MessageType& type) {
    std::string bytes;
    pbf_writer writer(bytes);
    std::size_t known = 0;
    for (const MessageField& field : type.fields) {
        const auto value = object.find(field.name);
        if (value == object.end()) continue;
        ++known;
        if (!value->is_null()) write_field(writer, field, *value);
    }
    UNSLOTH_CHECK(known == object.size(), type.name, " has not all fields of ", object.size());
    return bytes;
}

}  // namespace unsloth::grpc
