// HTTP/1.1 requests as the server reads them.
// parser: src/http/request_parser.cpp src/http/request_parser.h
// options: -max_len=4096
#include "http/request_parser.h"

#include <algorithm>
#include <vector>

#include "fuzz/support.h"

namespace {

struct Read {
    std::vector<unsloth::http::Request> requests;
    int status = 0;
};

/// The requests of a connection whose bytes arrive in pieces of `step`.
Read read_all(std::string_view bytes, size_t step) {
    Read read;
    unsloth::http::RequestParser parser(1024, 512);
    for (size_t at = 0; at < bytes.size() && !parser.refused();) {
        const auto piece = bytes.substr(at, step);
        const size_t used = parser.feed(piece);
        unsloth::fuzz::require(used > 0 && used <= piece.size(), "the parser takes no bytes, or too many");
        at += used;
        if (!parser.done()) continue;
        read.requests.push_back(parser.take());
        parser = unsloth::http::RequestParser(1024, 512);
    }
    read.status = parser.refusal().status;
    return read;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    const std::string_view bytes = fuzz::text_of(data, size);
    const Read whole = read_all(bytes, bytes.size());
    for (const size_t step : {size_t{1}, size_t{7}}) {
        const Read split = read_all(bytes, step);
        fuzz::require(split.status == whole.status && split.requests.size() == whole.requests.size(),
                      "the same bytes in other pieces are other requests");
        for (size_t i = 0; i < split.requests.size(); ++i)
            fuzz::require(split.requests[i].body == whole.requests[i].body &&
                              split.requests[i].headers == whole.requests[i].headers &&
                              split.requests[i].path == whole.requests[i].path,
                          "the same bytes in other pieces are another request");
    }
    for (const auto& request : whole.requests) {
        fuzz::require(request.body.size() <= 512 && !request.path.empty(), "a request exceeds its limits");
        for (const auto& [name, value] : request.headers)
            fuzz::require(http::is_token(name) && http::is_field_value(value), "a field is malformed");
    }
    return 0;
}
