// protoc's descriptors as types. The numbers are the fields' of descriptor.proto.
#include "unsloth/grpc/schema.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <protozero/pbf_reader.hpp>
#include <set>

#include "unsloth/core/error.h"
#include "unsloth/grpc/status.h"

namespace unsloth::grpc {
namespace {

#include "descriptors.inc"  // constexpr unsigned char descriptors[]

using Json = nlohmann::ordered_json;
using protozero::pbf_reader;

std::string_view view_of(pbf_reader& reader) {
    const protozero::data_view view = reader.get_view();
    return {view.data(), view.size()};
}

/// The fields of a message, one after the other.
template <class Take>
void for_each_field(std::string_view bytes, const Take& take) {
    pbf_reader reader(bytes.data(), bytes.size());
    while (reader.next()) take(reader, reader.tag());
}

/// ".a.b" is the symbol a.b.
std::string symbol_of(std::string name) {
    return name.starts_with('.') ? name.substr(1) : name;
}

/// What `name = 1` of any descriptor says.
std::string name_in(std::string_view bytes) {
    std::string name;
    for_each_field(bytes, [&](pbf_reader& reader, uint32_t tag) {
        if (tag == 1)
            name = reader.get_string();
        else
            reader.skip();
    });
    return name;
}

bool is_supported(FieldType type) {
    using enum FieldType;
    static constexpr std::array all{float64, float32, int64, uint64, int32,      boolean,
                                    text,    message, bytes, uint32, enumeration};
    return std::ranges::find(all, type) != all.end();
}

MessageField read_descriptor(std::string_view bytes) {
    constexpr int32_t repeated = 3;
    MessageField field;
    bool is_synthetic = false;
    for_each_field(bytes, [&](pbf_reader& reader, uint32_t tag) {
        switch (tag) {
            case 1:
                field.name = reader.get_string();
                break;
            case 3:
                field.number = static_cast<uint32_t>(reader.get_int32());
                break;
            case 4:
                field.is_repeated = reader.get_enum() == repeated;
                break;
            case 5:
                field.type = static_cast<FieldType>(reader.get_enum());
                break;
            case 6:
                field.type_name = symbol_of(reader.get_string());
                break;
            case 9:
                field.oneof = reader.get_int32();
                break;
            case 17:
                is_synthetic = reader.get_bool();
                break;
            default:
                reader.skip();
        }
    });
    UNSLOTH_CHECK(is_supported(field.type), field.name, ": type ", static_cast<int>(field.type), " is not supported");
    field.has_presence = field.oneof >= 0;
    if (is_synthetic) field.oneof = -1;  // `optional` is a oneof of a single field
    return field;
}

}  // namespace

const Schema& Schema::own() {
    static const Schema schema({reinterpret_cast<const char*>(descriptors), sizeof descriptors});
    return schema;
}

Schema::Schema(std::string_view descriptors_of_files) {
    for_each_field(descriptors_of_files, [&](pbf_reader& reader, uint32_t tag) {
        if (tag == 1)
            add_file(view_of(reader));
        else
            reader.skip();
    });
    link();
}

void Schema::add_file(std::string_view bytes) {
    std::string name, package;
    File file{std::string(bytes)};
    for_each_field(bytes, [&](pbf_reader& reader, uint32_t tag) {
        if (tag == 1)
            name = reader.get_string();
        else if (tag == 2)
            package = reader.get_string();
        else if (tag == 3)
            file.imports.push_back(reader.get_string());
        else
            reader.skip();
    });
    for_each_field(bytes, [&](pbf_reader& reader, uint32_t tag) {
        if (tag == 4)
            add_message(view_of(reader), package, name);
        else if (tag == 5)
            add_enumeration(view_of(reader), package, name);
        else if (tag == 6)
            add_service(view_of(reader), package, name);
        else
            reader.skip();
    });
    files_.emplace(name, std::move(file));
}

void Schema::add_message(std::string_view bytes, const std::string& package, const std::string& file) {
    MessageType type{cat(package, ".", name_in(bytes))};
    for_each_field(bytes, [&](pbf_reader& reader, uint32_t tag) {
        if (tag == 2)
            type.fields.push_back(read_descriptor(view_of(reader)));
        else if (tag == 3)
            add_message(view_of(reader), type.name, file);
        else if (tag == 4)
            add_enumeration(view_of(reader), type.name, file);
        else if (tag == 7)
            for_each_field(view_of(reader), [&](pbf_reader& option, uint32_t number) {
                if (number == 7)
                    type.is_map_entry = option.get_bool();
                else
                    option.skip();
            });
        else
            reader.skip();
    });
    symbols_[type.name] = file;
    const std::string name = type.name;
    messages_.emplace(name, std::move(type));
}

void Schema::add_enumeration(std::string_view bytes, const std::string& package, const std::string& file) {
    const std::string name = cat(package, ".", name_in(bytes));
    symbols_[name] = file;
    for_each_field(bytes, [&](pbf_reader& reader, uint32_t tag) {
        if (tag != 2) return reader.skip();
        const std::string_view value = view_of(reader);
        int32_t number = 0;
        for_each_field(value, [&](pbf_reader& inner, uint32_t of) {
            if (of == 2)
                number = inner.get_int32();
            else
                inner.skip();
        });
        enumerations_[name][name_in(value)] = number;
    });
}

void Schema::add_service(std::string_view bytes, const std::string& package, const std::string& file) {
    const std::string service = cat(package, ".", name_in(bytes));
    services_.push_back(service);
    symbols_[service] = file;
    for_each_field(bytes, [&](pbf_reader& reader, uint32_t tag) {
        if (tag != 2) return reader.skip();
        Method method{service, "", nullptr, nullptr};
        for_each_field(view_of(reader), [&](pbf_reader& inner, uint32_t of) {
            if (of == 1)
                method.name = inner.get_string();
            else if (of == 2)
                method.input = &message(symbol_of(inner.get_string()));
            else if (of == 3)
                method.output = &message(symbol_of(inner.get_string()));
            else if (of == 5)
                method.takes_stream = inner.get_bool();
            else if (of == 6)
                method.gives_stream = inner.get_bool();
            else
                inner.skip();
        });
        symbols_[cat(service, ".", method.name)] = file;
        const std::string path = cat("/", service, "/", method.name);
        methods_.emplace(path, std::move(method));
    });
}

void Schema::link() {
    for (auto& [name, type] : messages_)
        for (MessageField& field : type.fields) {
            if (field.type == FieldType::message) field.message = &message(field.type_name);
            if (field.type == FieldType::enumeration) field.names = enumerations_.at(field.type_name);
        }
}

const Method* Schema::method(const std::string& path) const {
    const auto found = methods_.find(path);
    return found == methods_.end() ? nullptr : &found->second;
}

const MessageType& Schema::message(const std::string& name) const {
    const auto found = messages_.find(name);
    UNSLOTH_CHECK(found != messages_.end(), "no message ", name);
    return found->second;
}

std::vector<std::string> Schema::services() const {
    return services_;
}

std::vector<std::string> Schema::file(const std::string& name) const {
    std::vector<std::string> all, asked{name};
    std::set<std::string> seen;
    while (!asked.empty()) {
        const std::string next = asked.back();
        asked.pop_back();
        const auto found = files_.find(next);
        if (found == files_.end() || !seen.insert(next).second) continue;
        all.push_back(found->second.bytes);
        asked.insert(asked.end(), found->second.imports.begin(), found->second.imports.end());
    }
    return all;
}

std::vector<std::string> Schema::file_of_symbol(const std::string& symbol) const {
    const auto found = symbols_.find(symbol);
    return found == symbols_.end() ? std::vector<std::string>{} : file(found->second);
}

Json reflect(const Schema& schema, const Json& request) {
    Json answer = {{"valid_host", request.value("host", "")}, {"original_request", request}};
    const auto files = [&](const std::vector<std::string>& found, const std::string& what) {
        if (found.empty())
            answer["error_response"] = {{"error_code", static_cast<int>(Code::not_found)},
                                        {"error_message", cat("not found: ", what)}};
        else
            answer["file_descriptor_response"] = {{"file_descriptor_proto", found}};
    };
    if (request.contains("list_services")) {
        Json all = Json::array();
        for (const std::string& name : schema.services()) all.push_back({{"name", name}});
        answer["list_services_response"] = {{"service", all}};
    } else if (request.contains("file_by_filename")) {
        const std::string name = request["file_by_filename"];
        files(schema.file(name), name);
    } else if (request.contains("file_containing_symbol")) {
        const std::string name = request["file_containing_symbol"];
        files(schema.file_of_symbol(name), name);
    } else if (request.contains("all_extension_numbers_of_type")) {
        const std::string name = request["all_extension_numbers_of_type"];
        if (schema.file_of_symbol(name).empty())
            files({}, name);
        else
            answer["all_extension_numbers_response"] = {{"base_type_name", name}};
    } else {
        files({}, "an extension");
    }
    return answer;
}

}  // namespace unsloth::grpc
