// What the service answers: one table, from which its OpenAPI document is made, too.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "unsloth/serve/service.h"

namespace unsloth::serve {

struct Service::Route {
    const char* method;
    const char* path;  ///< one that ends with '/', but for "/" itself, is what longer ones begin with
    const char* summary;
    void (Service::*answer)(const Call& call);
    bool is_free = false;                           ///< no key is asked for
    bool is_quick = false;                          ///< answers on the server's thread
    nlohmann::ordered_json (*body)() = nullptr;     ///< JSON Schema of the request's; nullptr: it has none
    const char* content_type = "application/json";  ///< of what it answers
    bool may_stream = false;                        ///< also events

    bool is_prefix() const { return std::string_view(path).ends_with('/') && std::string_view(path).size() > 1; }
    bool matches(const std::string& asked) const {
        return is_prefix() ? asked.starts_with(path) && asked.size() > std::string_view(path).size() : asked == path;
    }
};

}  // namespace unsloth::serve
