#include "http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::http {
namespace {

/// The first of OpenSSL's waiting errors; the queue is empty afterwards.
std::string openssl_reason() {
    const unsigned long code = ::ERR_get_error();
    ::ERR_clear_error();
    std::array<char, 256> text{};
    ::ERR_error_string_n(code, text.data(), text.size());
    return text.data();
}

/// ALPN (RFC 7301): HTTP/2 where the client has it, else HTTP/1.1.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* size, const unsigned char* in, unsigned int length,
                    void*) {
    static constexpr unsigned char ours[] = "\x02h2\x08http/1.1";
    unsigned char* chosen = nullptr;
    if (::SSL_select_next_proto(&chosen, size, ours, sizeof ours - 1, in, length) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

int as_int(size_t size) {
    return static_cast<int>(std::min<size_t>(size, size_t{1} << 30));
}

}  // namespace

TlsSession::TlsSession(ssl_ctx_st* context) : ssl_(::SSL_new(context)) {
    if (ssl_ == nullptr) throw Error("library.failed", cat("no TLS connection: ", openssl_reason()));
    BIO* in = ::BIO_new(::BIO_s_mem());
    BIO* out = ::BIO_new(::BIO_s_mem());
    ::SSL_set_bio(ssl_, in, out);
    ::SSL_set_accept_state(ssl_);
}
TlsSession::~TlsSession() {
    ::SSL_free(ssl_);
}

bool TlsSession::receive(std::string_view arrived, std::string& plain, std::string& wire) {
    ::ERR_clear_error();
    if (!arrived.empty() && ::BIO_write(::SSL_get_rbio(ssl_), arrived.data(), as_int(arrived.size())) <= 0)
        return false;
    std::array<char, 16384> piece;
    int got = 0;
    while ((got = ::SSL_read(ssl_, piece.data(), static_cast<int>(piece.size()))) > 0)
        plain.append(piece.data(), static_cast<size_t>(got));
    const bool alive = ::SSL_get_error(ssl_, got) == SSL_ERROR_WANT_READ;
    ::ERR_clear_error();
    collect(wire);
    return alive;
}

bool TlsSession::send(std::string_view plain, std::string& wire) {
    ::ERR_clear_error();
    const bool sent = plain.empty() || ::SSL_write(ssl_, plain.data(), as_int(plain.size())) == as_int(plain.size());
    ::ERR_clear_error();
    collect(wire);
    return sent;
}

void TlsSession::shut_down(std::string& wire) {
    ::ERR_clear_error();
    if (established()) ::SSL_shutdown(ssl_);
    ::ERR_clear_error();
    collect(wire);
}

bool TlsSession::established() const {
    return ::SSL_is_init_finished(ssl_) == 1;
}

bool TlsSession::http2() const {
    const unsigned char* name = nullptr;
    unsigned int size = 0;
    ::SSL_get0_alpn_selected(ssl_, &name, &size);
    return std::string_view(reinterpret_cast<const char*>(name), size) == "h2";
}

void TlsSession::collect(std::string& wire) {
    BIO* out = ::SSL_get_wbio(ssl_);
    std::array<char, 16384> piece;
    int got = 0;
    while (::BIO_ctrl_pending(out) > 0 && (got = ::BIO_read(out, piece.data(), static_cast<int>(piece.size()))) > 0)
        wire.append(piece.data(), static_cast<size_t>(got));
}

TlsFiles::TlsFiles(const ServerOptions& options)
    : certificate_(options.certificate),
      key_(options.key),
      client_ca_(options.client_ca),
      stamp_(stamp()),
      context_(load()) {}

void TlsFiles::refresh() {
    std::string now = stamp();
    if (now == stamp_) return;
    stamp_ = std::move(now);
    try {
        context_ = load();
        log::info("http: read the certificate ", certificate_.string(), " again");
    } catch (const Error& error) {
        log::warning("http: the certificate before remains in use: ", error.what());
    }
}

std::string TlsFiles::stamp() const {
    std::string text;
    for (const auto* path : {&certificate_, &key_, &client_ca_}) {
        struct stat file{};
        if (path->empty() || ::stat(path->c_str(), &file) != 0)
            text += "-;";
        else
            text += cat(file.st_dev, ' ', file.st_ino, ' ', file.st_size, ' ', file.st_mtim.tv_sec, ' ',
                        file.st_mtim.tv_nsec, ';');
    }
    return text;
}

std::shared_ptr<ssl_ctx_st> TlsFiles::load() const {
    ::ERR_clear_error();
    std::shared_ptr<SSL_CTX> context(::SSL_CTX_new(::TLS_server_method()), ::SSL_CTX_free);
    const auto require = [](bool ok, const char* what, const std::filesystem::path& file) {
        if (!ok)
            throw Error("network.bad-certificate", cat(what, " ", file.string(), " is unusable: ", openssl_reason()),
                        "Give a PEM file.");
    };
    UNSLOTH_CHECK(context != nullptr, openssl_reason());
    ::SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
    ::SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                             SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
    ::SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
    ::SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
    // A key with a pass phrase is unusable: nothing may ask for one at the terminal.
    ::SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return 0; });
    static constexpr unsigned char id[] = "unsloth";
    ::SSL_CTX_set_session_id_context(context.get(), id, sizeof id - 1);
    ::SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
    require(::SSL_CTX_use_certificate_chain_file(context.get(), certificate_.c_str()) == 1, "the certificate",
            certificate_);
    require(::SSL_CTX_use_PrivateKey_file(context.get(), key_.c_str(), SSL_FILETYPE_PEM) == 1 &&
                ::SSL_CTX_check_private_key(context.get()) == 1,
            "the certificate's key", key_);
    if (!client_ca_.empty()) {
        require(::SSL_CTX_load_verify_locations(context.get(), client_ca_.c_str(), nullptr) == 1,
                "the clients' authority", client_ca_);
        ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    }
    return context;
}

}  // namespace unsloth::http
