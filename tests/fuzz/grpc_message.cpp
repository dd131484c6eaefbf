// A body of gRPC and its message, as the service reads them.
// parser: src/grpc/messages.cpp src/grpc/call.cpp include/unsloth/grpc/schema.h
// options: -max_len=4096
#include <nlohmann/json.hpp>

#include "fuzz/support.h"
#include "unsloth/grpc/call.h"
#include "unsloth/grpc/schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace unsloth::grpc;
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    for (const char* name : {"unsloth.v1.GenerateRequest", "vllm.grpc.engine.GenerateRequest"}) {
        const MessageType& type = Schema::own().message(name);
        try {
            MessageReader reader;
            reader.add(bytes);
            const auto message = reader.next();
            if (!message) continue;
            const auto object = read_message(*message, type, /*accept_unknown=*/true);
            const auto again = read_message(write_message(object, type), type);
            // Texts with sorted keys: fields may come in any order, and NaN differs from itself.
            const auto text = [](const auto& fields) {
                return nlohmann::json(fields).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
            };
            unsloth::fuzz::require(text(object) == text(again), "a message changes when it is written and read");
        } catch (const Status&) {
        }
    }
    return 0;
}
