#include "serve/page.h"

#include <openssl/evp.h>

#include <array>
#include <string_view>

#include "serve/digest.h"
#include "serve/page.inc"
#include "unsloth/core/error.h"

namespace unsloth::serve {
namespace {

/// A source of a content security policy: the hash of what an element of the page contains.
std::string hash_of(std::string_view element) {
    const std::string_view page = page_html;
    const std::string begin = cat("<", element, ">"), end = cat("</", element, ">");
    const std::size_t from = page.find(begin), to = page.find(end, from);
    UNSLOTH_CHECK(from != std::string_view::npos && to != std::string_view::npos, "the page has no ", element);
    const std::string_view text = page.substr(from + begin.size(), to - from - begin.size());
    const std::array<std::byte, 32> digest = sha256(text);
    std::array<unsigned char, 45> base64{};
    ::EVP_EncodeBlock(base64.data(), reinterpret_cast<const unsigned char*>(digest.data()),
                      static_cast<int>(digest.size()));
    return cat("'sha256-", reinterpret_cast<const char*>(base64.data()), "'");
}

}  // namespace

const char* page_text() {
    return page_html;
}

http::Headers page_headers() {
    static const std::string policy =
        cat("default-src 'none'; script-src ", hash_of("script"), "; style-src ", hash_of("style"),
            "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'");
    return {{"content-type", "text/html; charset=utf-8"},
            {"content-security-policy", policy},
            {"cross-origin-opener-policy", "same-origin"},
            {"referrer-policy", "no-referrer"},
            {"cache-control", "no-cache"}};
}

}  // namespace unsloth::serve
