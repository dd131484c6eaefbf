#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "unsloth/grpc/call.h"
#include "unsloth/grpc/schema.h"

namespace unsloth::grpc {
namespace {

using Json = nlohmann::ordered_json;

const MessageType& type_of(const std::string& name) {
    return Schema::own().message(name);
}
Code code_of_reading(std::string_view bytes, const std::string& type, std::string_view in_message = {}) {
    try {
        read_message(bytes, type_of(type));
        return Code::ok;
    } catch (const Status& refused) {
        EXPECT_NE(std::string(refused.what()).find(in_message), std::string::npos) << refused.what();
        return refused.code();
    }
}

TEST(GrpcSchema, KnowsMethods) {
    const Method* const method = Schema::own().method("/unsloth.v1.Generation/GenerateStream");
    ASSERT_NE(method, nullptr);
    EXPECT_EQ(method->input->name, "unsloth.v1.GenerateRequest");
    EXPECT_EQ(method->output->name, "unsloth.v1.GenerateResponse");
    EXPECT_TRUE(method->gives_stream && !method->takes_stream);
    EXPECT_TRUE(Schema::own().method("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")->takes_stream);
    EXPECT_EQ(Schema::own().method("/vllm.grpc.engine.VllmEngine/GetTokenizer")->input->name,
              "smg.grpc.common.GetTokenizerRequest");
    EXPECT_EQ(Schema::own().method("/unsloth.v1.Generation/Sing"), nullptr);
}

TEST(GrpcMessages, AreWrittenAndReadAsJson) {
    const Json request = {{"model", "legal"},
                          {"prompt_ids", {{"ids", {1, 300, 70000}}}},
                          {"max_tokens", 0},
                          {"stop", {"a", "é"}},
                          {"stop_token_ids", {7, -1}},
                          {"ignore_eos", true},
                          {"seed", -5},
                          {"temperature", 0.7},
                          {"logit_bias", {{"12", -100.0}, {"0", 0.5}}},
                          {"choice", {{"choices", {"yes", "no"}}}}};
    EXPECT_EQ(read_message(write_message(request, type_of("unsloth.v1.GenerateRequest")),
                           type_of("unsloth.v1.GenerateRequest")),
              request);
    const Json answer = {{"chunk",
                          {{"token_ids", {4294967295, 0}},
                           {"output_logprobs",
                            {{"token_logprobs", {-0.5, -1.25}},
                             {"top_logprobs", {{{"values", {-0.5}}, {"token_ids", {3}}}, Json::object()}}}}}}};
    EXPECT_EQ(read_message(write_message(answer, type_of("vllm.grpc.engine.GenerateResponse")),
                           type_of("vllm.grpc.engine.GenerateResponse")),
              answer);
    const Json health = {{"status", "NOT_SERVING"}};
    EXPECT_EQ(write_message(health, type_of("grpc.health.v1.HealthCheckResponse")), "\x08\x02");
    EXPECT_EQ(read_message("\x08\x02", type_of("grpc.health.v1.HealthCheckResponse")), health);
    EXPECT_EQ(read_message("\x08\x09", type_of("grpc.health.v1.HealthCheckResponse"))["status"], 9);
    const Json raw = {{"id", 3}, {"bytes", std::string("\xff\0", 2)}, {"logprob", 0.0}};
    EXPECT_EQ(read_message(write_message(raw, type_of("unsloth.v1.Token")), type_of("unsloth.v1.Token")), raw)
        << "a logprob of 0 is not absent, and bytes need be no text";
    EXPECT_THROW(write_message({{"nonsense", 1}}, type_of("unsloth.v1.Token")), std::exception);
}

TEST(GrpcMessages, AreReadAsOtherProgramsMayWriteThem) {
    const MessageType& ids = type_of("unsloth.v1.TokenIds");
    EXPECT_EQ(read_message("\x0a\x02\x01\x02", ids)["ids"], Json({1, 2})) << "packed";
    EXPECT_EQ(read_message("\x08\x01\x08\x02", ids)["ids"], Json({1, 2})) << "one by one";
    const MessageType& request = type_of("unsloth.v1.GenerateRequest");
    const Json last = read_message(std::string("\x12\x01x\x22\x00", 5), request);
    EXPECT_FALSE(last.contains("prompt")) << "the last of a oneof counts";
    EXPECT_EQ(last["conversation"], Json::object());
    EXPECT_EQ(read_message(std::string("\x28\x00\x48\x00", 4), request), Json({{"max_tokens", 0}}))
        << "zero says nothing where it has no presence";
    // An int32 of -1 has ten bytes.
    EXPECT_EQ(read_message("\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                           type_of("grpc.reflection.v1.ExtensionRequest"))["extension_number"],
              -1);
}

TEST(GrpcMessages, RefuseWhatIsMalformed) {
    const std::string type = "unsloth.v1.GenerateRequest";
    EXPECT_EQ(code_of_reading("\x0a\x05legal", type), Code::ok);
    EXPECT_EQ(code_of_reading("\x0a\x06legal", type, "malformed"), Code::invalid_argument);
    EXPECT_EQ(code_of_reading("\x28\xff", type, "malformed"), Code::invalid_argument);
    EXPECT_EQ(code_of_reading("\x0b", type, "malformed"), Code::invalid_argument);
    EXPECT_EQ(code_of_reading(std::string("\0\0", 2), type, "malformed"), Code::invalid_argument);
    EXPECT_EQ(code_of_reading("\x08\x01", type, "'model'"), Code::invalid_argument) << "another type";
    EXPECT_EQ(code_of_reading("\x0a\x01\xff", type, "'model'"), Code::invalid_argument) << "no UTF-8";
    EXPECT_EQ(code_of_reading("\x1a\x03\x0a\x01\x80", type, "malformed"), Code::invalid_argument) << "packed";
    EXPECT_EQ(code_of_reading("\xf8\x3f\x01", type, "field 1023"), Code::invalid_argument);
    EXPECT_EQ(read_message("\xf8\x3f\x01", type_of(type), /*accept_unknown=*/true), Json::object());
}

TEST(GrpcCall, FindsMessagesInPieces) {
    const std::string bytes = framed("hello") + framed("") + framed(std::string(70'000, 'x'));
    for (const std::size_t step : {std::size_t{1}, std::size_t{7}, bytes.size()}) {
        MessageReader reader;
        std::vector<std::size_t> sizes;
        for (std::size_t at = 0; at < bytes.size(); at += step) {
            reader.add(std::string_view(bytes).substr(at, step));
            while (const auto message = reader.next()) sizes.push_back(message->size());
        }
        EXPECT_EQ(sizes, (std::vector<std::size_t>{5, 0, 70'000})) << step;
        EXPECT_TRUE(reader.empty());
    }
    http::Request request;
    for (const std::string& body : {std::string(), framed("a") + framed("b"), framed("abc").substr(0, 7)}) {
        request.body = body;
        EXPECT_THROW(only_message(request), Status);
    }
    request.body = std::string("\1\0\0\0\1a", 6);
    try {
        only_message(request);
        ADD_FAILURE();
    } catch (const Status& refused) {
        EXPECT_EQ(refused.code(), Code::unimplemented) << "a compressed message";
    }
}

TEST(GrpcCall, ReadsHeaders) {
    const auto with = [](const std::string& name, const std::string& value) {
        return http::Request{.method = "POST", .headers = {{name, value}}};
    };
    for (const char* type : {"application/grpc", "application/grpc+proto", "application/grpc;a=b"})
        EXPECT_TRUE(is_call(with("content-type", type))) << type;
    for (const char* type : {"application/json", "application/grpc-web", "application/grpc+json"})
        EXPECT_FALSE(is_call(with("content-type", type))) << type;
    EXPECT_EQ(timeout_of(with("grpc-timeout", "15m")), std::chrono::milliseconds(15));
    EXPECT_EQ(timeout_of(with("grpc-timeout", "99999999H")), std::chrono::hours(99'999'999));
    EXPECT_EQ(timeout_of(with("a", "b")), std::nullopt);
    for (const char* text : {"", "m", "15", "-1m", "1.5m", "123456789m", "15 m", "15x"})
        EXPECT_THROW(timeout_of(with("grpc-timeout", text)), Status) << text;
}

TEST(GrpcReflection, AnswersFromTheDescriptors) {
    const Schema& schema = Schema::own();
    const Json listed = reflect(schema, {{"list_services", ""}})["list_services_response"]["service"];
    EXPECT_EQ(listed.size(), 5U) << listed;
    const Json found = reflect(schema, {{"file_containing_symbol", "vllm.grpc.engine.VllmEngine.Generate"}});
    const Json& files = found["file_descriptor_response"]["file_descriptor_proto"];
    ASSERT_EQ(files.size(), 2U) << "with the file that it imports";
    EXPECT_NE(files[0].get<std::string>().find("vllm_engine.proto"), std::string::npos);
    EXPECT_EQ(
        reflect(schema, {{"file_by_filename", "unsloth.proto"}})["file_descriptor_response"]["file_descriptor_proto"]
            .size(),
        1U);
    for (const char* kind : {"file_containing_symbol", "file_by_filename", "all_extension_numbers_of_type"})
        EXPECT_EQ(reflect(schema, {{kind, "nonsense"}})["error_response"]["error_code"], 5);
    for (const char* version : {"v1", "v1alpha"}) {
        const MessageType& type = type_of("grpc.reflection." + std::string(version) + ".ServerReflectionResponse");
        EXPECT_TRUE(read_message(write_message(found, type), type)["file_descriptor_response"] ==
                    found["file_descriptor_response"]);
    }
}

}  // namespace
}  // namespace unsloth::grpc
