// The service's OpenAPI document. Its routes and requests are those of the tables that answer and read them.
#include <nlohmann/json.hpp>

#include "serve/call.h"
#include "serve/route.h"
#include "unsloth/core/error.h"
#include "unsloth/core/version.h"

namespace unsloth::serve {
namespace {

using Json = nlohmann::ordered_json;

Json error_schema() {
    const Json perhaps = {{"type", Json::array({"string", "null"})}};
    const Json error = {
        {"type", "object"},
        {"required", Json::array({"message", "type", "param", "code"})},
        {"properties",
         {{"message", {{"type", "string"}}}, {"type", {{"type", "string"}}}, {"param", perhaps}, {"code", perhaps}}}};
    return {{"type", "object"}, {"required", Json::array({"error"})}, {"properties", {{"error", error}}}};
}

/// Of a service that accepts unknown fields: no object forbids them.
void allow_unknown(Json& schema) {
    if (schema.is_object() && schema.value("additionalProperties", Json()) == false)
        schema.erase("additionalProperties");
    if (schema.is_structured())
        for (Json& inner : schema) allow_unknown(inner);
}

}  // namespace

void Service::openapi(const Call& call) {
    const Json error = {{"description", "Refused or failed."},
                        {"content", {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Error"}}}}}}}};
    Json paths = Json::object();
    for (const Route& route : routes()) {
        Json content = {{route.content_type, Json::object()}};
        if (route.may_stream) content["text/event-stream"] = Json::object();
        Json operation = {{"summary", route.summary},
                          {"responses",
                           {{"200", {{"description", "Answered."}, {"content", std::move(content)}}},
                            {"4XX", error},
                            {"5XX", error}}}};
        if (route.body != nullptr) {
            Json schema = route.body();
            if (options_.accept_unknown_fields) allow_unknown(schema);
            operation["requestBody"] = {{"required", true},
                                        {"content", {{"application/json", {{"schema", std::move(schema)}}}}}};
        }
        if (!route.is_free && !options_.keys.empty()) operation["security"] = Json::array({{{"key", Json::array()}}});
        if (route.is_prefix())
            operation["parameters"] =
                Json::array({{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
        paths[cat(route.path, route.is_prefix() ? "{id}" : "")]
             [route.method == std::string_view("GET") ? "get" : "post"] = std::move(operation);
    }
    call.send(200, Json{{"openapi", "3.1.0"},
                        {"info", {{"title", "unsloth-train serve"}, {"version", unsloth::version}}},
                        {"paths", std::move(paths)},
                        {"components",
                         {{"schemas", {{"Error", error_schema()}}},
                          {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}}}
                       .dump());
}

}  // namespace unsloth::serve
