// The services and messages of proto/, and messages as JSON values: there are no classes for them, and protobuf's
// library is not used. LibTorch exports the symbols of another version of it, with which a process must not mix them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace unsloth::grpc {

struct MessageType;

/// The types that proto/ uses; the numbers are descriptor.proto's.
enum class FieldType : uint8_t {
    float64 = 1,
    float32 = 2,
    int64 = 3,
    uint64 = 4,
    int32 = 5,
    boolean = 8,
    text = 9,
    message = 11,
    bytes = 12,
    uint32 = 13,
    enumeration = 14,
};

struct MessageField {
    std::string name;
    uint32_t number = 0;
    FieldType type = FieldType::text;
    std::string type_name;  ///< of a message or an enumeration
    bool is_repeated = false;
    bool has_presence = false;               ///< a value of zero differs from none
    int oneof = -1;                          ///< the oneof that it belongs to; -1: none
    const MessageType* message = nullptr;    ///< of type message
    std::map<std::string, int32_t> names{};  ///< of an enumeration
};

struct MessageType {
    std::string name;  ///< with the package
    std::vector<MessageField> fields{};
    bool is_map_entry = false;
};

struct Method {
    std::string service, name;
    const MessageType* input = nullptr;
    const MessageType* output = nullptr;
    bool takes_stream = false, gives_stream = false;
};

class Schema {
  public:
    /// What proto/ says.
    static const Schema& own();
    /// A FileDescriptorSet as protoc writes it with --include_imports: a file comes after those that it imports.
    explicit Schema(std::string_view descriptors);
    Schema(const Schema&) = delete;
    Schema& operator=(const Schema&) = delete;

    /// "/PACKAGE.SERVICE/METHOD"; nullptr: there is none.
    const Method* method(const std::string& path) const;
    const MessageType& message(const std::string& name) const;
    std::vector<std::string> services() const;
    /// A FileDescriptorProto, and those of the files that it imports after it; empty: there is none.
    std::vector<std::string> file(const std::string& name) const;
    std::vector<std::string> file_of_symbol(const std::string& symbol) const;

  private:
    struct File {
        std::string bytes;
        std::vector<std::string> imports{};
    };
    void add_file(std::string_view bytes);
    void add_message(std::string_view bytes, const std::string& package, const std::string& file);
    void add_enumeration(std::string_view bytes, const std::string& package, const std::string& file);
    void add_service(std::string_view bytes, const std::string& package, const std::string& file);
    void link();

    std::map<std::string, File> files_;
    std::map<std::string, std::string> symbols_;  ///< to their files
    std::map<std::string, MessageType> messages_;
    std::map<std::string, std::map<std::string, int32_t>> enumerations_;
    std::map<std::string, Method> methods_;  ///< by path
    std::vector<std::string> services_;
};

/// A message as an object: a field that is absent has no key; bytes are a string of bytes, a map is an object, a value
/// of an enumeration its name or number. Of a field without presence, zero is absent. INVALID_ARGUMENT for what is
/// malformed or no UTF-8, and for an unknown field unless `accept_unknown`.
nlohmann::ordered_json read_message(std::string_view bytes, const MessageType& type, bool accept_unknown = false);

/// The reverse. The object's keys are fields of the message; null counts as absent.
std::string write_message(const nlohmann::ordered_json& object, const MessageType& type);

/// The answer to a ServerReflectionRequest of grpc.reflection.v1 or v1alpha.
nlohmann::ordered_json reflect(const Schema& schema, const nlohmann::ordered_json& request);

}  // namespace unsloth::grpc
