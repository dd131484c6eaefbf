#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <fstream>

#include "http/client.h"
#include "http/service.h"

namespace unsloth::http {
namespace {

/// A folder with a certificate that signs itself.
class Certificate {
  public:
    explicit Certificate(const std::string& name) {
        std::string folder = (std::filesystem::temp_directory_path() / "unsloth-http-XXXXXX").string();
        if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no temporary folder");
        folder_ = folder;
        write(name);
    }
    ~Certificate() {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }
    std::filesystem::path certificate() const { return folder_ / "cert.pem"; }
    std::filesystem::path key() const { return folder_ / "key.pem"; }
    ServerOptions options() const {
        ServerOptions options;
        options.certificate = certificate();
        options.key = key();
        return options;
    }
    void write(const std::string& name) const {
        EVP_PKEY* pair = ::EVP_EC_gen("P-256");
        X509* made = ::X509_new();
        ::X509_set_version(made, 2);
        ::ASN1_INTEGER_set(::X509_get_serialNumber(made), 1);
        ::X509_gmtime_adj(::X509_getm_notBefore(made), -3600);
        ::X509_gmtime_adj(::X509_getm_notAfter(made), 3600);
        ::X509_set_pubkey(made, pair);
        X509_NAME* subject = ::X509_get_subject_name(made);
        ::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()),
                                     -1, -1, 0);
        ::X509_set_issuer_name(made, subject);
        ::X509_sign(made, pair, ::EVP_sha256());
        std::FILE* file = std::fopen(certificate().c_str(), "w");
        ::PEM_write_X509(file, made);
        std::fclose(file);
        file = std::fopen(key().c_str(), "w");
        ::PEM_write_PrivateKey(file, pair, nullptr, nullptr, 0, nullptr, nullptr);
        std::fclose(file);
        ::X509_free(made);
        ::EVP_PKEY_free(pair);
    }

  private:
    std::filesystem::path folder_;
};

class TlsClient {
  public:
    /// `offered`: protocols as ALPN has them; `own`: the client's certificate, where it presents one.
    explicit TlsClient(int port, const std::string& offered = "", const Certificate* own = nullptr,
                       int version = TLS1_3_VERSION)
        : context_(::SSL_CTX_new(::TLS_client_method())) {
        ::SSL_CTX_set_max_proto_version(context_, version);
        ::SSL_CTX_set_security_level(context_, 0);  // so that the server is the one who refuses
        if (own != nullptr) {
            ::SSL_CTX_use_certificate_file(context_, own->certificate().c_str(), SSL_FILETYPE_PEM);
            ::SSL_CTX_use_PrivateKey_file(context_, own->key().c_str(), SSL_FILETYPE_PEM);
        }
        ssl_ = ::SSL_new(context_);
        if (!offered.empty())
            ::SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(offered.data()),
                                  static_cast<unsigned>(offered.size()));
        fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<uint16_t>(port));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        const timeval limit{20, 0};
        ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        ok = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
             ::SSL_set_fd(ssl_, fd_) == 1 && ::SSL_connect(ssl_) == 1;
        ::ERR_clear_error();
    }
    ~TlsClient() {
        ::SSL_free(ssl_);
        ::SSL_CTX_free(context_);
        ::close(fd_);
    }
    TlsClient(const TlsClient&) = delete;

    void send(std::string_view bytes) { ::SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())); }
    std::string rest() {
        std::string all;
        char piece[4096];
        for (int got = 0; (got = ::SSL_read(ssl_, piece, sizeof piece)) > 0;)
            all.append(piece, static_cast<size_t>(got));
        ::ERR_clear_error();
        return all;
    }
    std::string some(size_t count) {
        std::string out(count, '\0');
        size_t at = 0;
        for (int got = 0; at < count && (got = ::SSL_read(ssl_, out.data() + at, static_cast<int>(count - at))) > 0;)
            at += static_cast<size_t>(got);
        out.resize(at);
        return out;
    }
    std::string name() const {
        X509* certificate = ::SSL_get1_peer_certificate(ssl_);
        char text[64] = "";
        if (certificate != nullptr)
            ::X509_NAME_get_text_by_NID(::X509_get_subject_name(certificate), NID_commonName, text, sizeof text);
        ::X509_free(certificate);
        return text;
    }
    std::string protocol() const {
        const unsigned char* chosen = nullptr;
        unsigned size = 0;
        ::SSL_get0_alpn_selected(ssl_, &chosen, &size);
        return {reinterpret_cast<const char*>(chosen), size};
    }
    bool ok = false;

  private:
    SSL_CTX* context_;
    SSL* ssl_ = nullptr;
    int fd_ = -1;
};

constexpr std::string_view get_and_close = "GET /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

TEST(Tls, ServesBothProtocolsByAlpn) {
    const Certificate certificate("one");
    Service service(certificate.options());
    TlsClient plain(service.server.port());
    ASSERT_TRUE(plain.ok);
    plain.send(get_and_close);
    EXPECT_TRUE(plain.rest().ends_with("grpc-status: 0\r\n\r\n"));
    TlsClient one(service.server.port(), "\x08http/1.1");
    ASSERT_TRUE(one.ok);
    EXPECT_EQ(one.protocol(), "http/1.1");
    TlsClient two(service.server.port(), "\x08http/1.1\x02h2");
    ASSERT_TRUE(two.ok);
    EXPECT_EQ(two.protocol(), "h2");
    two.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Client2::bytes_of(4, 0, 0, "") +
             Client2::bytes_of(1, 5, 1, Client2::fields("GET", "/echo")));
    EXPECT_EQ(two.some(9)[3], 4);  // the server's SETTINGS
    EXPECT_FALSE(TlsClient(service.server.port(), "\x05other").ok);
    EXPECT_FALSE(TlsClient(service.server.port(), "", nullptr, TLS1_1_VERSION).ok);
    EXPECT_TRUE(TlsClient(service.server.port(), "", nullptr, TLS1_2_VERSION).ok);
    Client cleartext(service.server.port());
    cleartext.send(get_and_close);
    EXPECT_EQ(cleartext.rest().find("HTTP/"), std::string::npos);
}

TEST(Tls, TakesAChangedCertificateForNewConnections) {
    const Certificate certificate("one");
    Service service(certificate.options());
    TlsClient before(service.server.port());
    EXPECT_EQ(before.name(), "one");
    certificate.write("two");
    EXPECT_EQ(TlsClient(service.server.port()).name(), "two");
    before.send(get_and_close);
    EXPECT_TRUE(before.rest().ends_with("grpc-status: 0\r\n\r\n"));
    std::ofstream(certificate.certificate()) << "no certificate";
    EXPECT_EQ(TlsClient(service.server.port()).name(), "two");  // the one before remains
}

TEST(Tls, AsksForTheClientsCertificate) {
    const Certificate certificate("server"), client("client"), stranger("stranger");
    ServerOptions options = certificate.options();
    options.client_ca = client.certificate();
    Service service(options);
    TlsClient known(service.server.port(), "", &client);
    ASSERT_TRUE(known.ok);
    known.send(get_and_close);
    EXPECT_TRUE(known.rest().starts_with("HTTP/1.1 200"));
    for (const Certificate* own : {&stranger, static_cast<const Certificate*>(nullptr)}) {
        TlsClient refused(service.server.port(), "", own);  // TLS 1.3 tells the client at its first read
        refused.send(get_and_close);
        EXPECT_EQ(refused.rest(), "");
    }
    EXPECT_EQ(service.handled(), 1);
}

TEST(Tls, RefusesUnusableFilesAndAddresses) {
    const Certificate one("one"), two("two");
    ServerOptions options = one.options();
    options.key = two.key();
    EXPECT_THROW(Service{options}, Error);
    options.key = one.certificate().parent_path() / "none.pem";
    EXPECT_THROW(Service{options}, Error);
    ServerOptions nowhere;
    nowhere.host = "192.0.2.1";
    EXPECT_THROW(Service{nowhere}, Error);
    Service service;
    ServerOptions taken;
    taken.port = service.server.port();
    EXPECT_THROW(Service{taken}, Error);
}

TEST(Tls, EndsHandshakesThatStall) {
    const Certificate certificate("one");
    ServerOptions options = certificate.options();
    options.header_time = std::chrono::milliseconds(50);
    Service service(options);
    Client silent(service.server.port());
    EXPECT_EQ(silent.rest(), "");
}

}  // namespace
}  // namespace unsloth::http
