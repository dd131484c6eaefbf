#include "hub/download/asking.h"

#include <thread>

#include "hub/cache.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"

namespace unsloth::hub {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr int most_attempts = 5;
constexpr milliseconds first_wait{500};
constexpr int64_t longest_asked_wait = 600;  // seconds; the hub's windows are of 300

std::string stored_token() {
    fs::path file = environment("HF_TOKEN_PATH").value_or("");
    if (file.empty()) file = environment("HF_HOME") ? fs::path(*environment("HF_HOME")) / "token" : fs::path();
    if (file.empty()) {
        const auto cache = environment("XDG_CACHE_HOME");
        const auto home = environment("HOME");
        if (!cache && !home) return {};
        file = (cache ? fs::path(*cache) : fs::path(*home) / ".cache") / "huggingface" / "token";
    }
    std::error_code ignored;
    return fs::is_regular_file(file, ignored) ? read_file(file) : "";
}

/// HTTP status and the hub's own words.
std::string answer_of(const Reply& reply) {
    return cat("HTTP ", reply.status, reply.error_message.empty() ? "" : ": " + reply.error_message);
}

}  // namespace

Access access_of_environment() {
    Access access{environment("HF_ENDPOINT").value_or("https://huggingface.co"), ""};
    while (access.endpoint.ends_with('/')) access.endpoint.pop_back();
    if (!access.endpoint.starts_with("https://") && !access.endpoint.starts_with("http://"))
        throw Error("hub.bad-setting", cat("HF_ENDPOINT is '", access.endpoint, "'"), "Expected https://HOST.");
    if (const auto token = environment("HF_TOKEN"))
        access.token = *token;
    else if (const auto older = environment("HUGGING_FACE_HUB_TOKEN"))
        access.token = *older;
    else if (!environment_says("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        access.token = stored_token();
    access.token = trimmed(access.token);
    if (access.token.find_first_of("\r\n \t") != std::string::npos)
        throw Error("hub.bad-setting", "HF_TOKEN, or the file of hf auth login, holds no token",
                    "A token is one word: hf_…");
    return access;
}

bool Patience::wait(const Reply& reply, const std::string& what, const std::function<bool()>& stopped) {
    if (++attempts_ >= most_attempts || reply.retry_after > longest_asked_wait) return false;
    milliseconds pause = first_wait * (1 << (attempts_ - 1));
    if (reply.retry_after >= 0) pause = std::chrono::seconds(reply.retry_after);
    const std::string why = !reply.failure.empty() ? reply.failure : answer_of(reply);
    log::warning(what, ": ", why, "; again in ", static_cast<double>(pause.count()) / 1000, " s");
    for (const auto end = std::chrono::steady_clock::now() + pause; std::chrono::steady_clock::now() < end;) {
        if (stopped()) return false;
        std::this_thread::sleep_for(std::min(pause, milliseconds(50)));
    }
    return !stopped();
}

bool is_passing(const Reply& reply) {
    if (!reply.failure.empty()) return true;
    return reply.status == 408 || reply.status == 429 || reply.status >= 500;
}

void refuse(const Reply& reply, const Repository& repository, const Access& access, const std::string& what) {
    const std::string name = repository.id;
    const std::string page = cat(access.endpoint, repository.kind == Kind::dataset ? "/datasets/" : "/", repository.id);
    if (!reply.connected) throw Unreachable(cat(access.endpoint, " cannot be reached: ", reply.failure));
    if (reply.error_code == "GatedRepo" || (reply.status == 403 && reply.error_code.empty()))
        throw Error(
            "hub.gated",
            cat(name, " is gated, and ", access.token.empty() ? "there is no HF_TOKEN" : "HF_TOKEN does not open it",
                " (", answer_of(reply), ")"),
            cat("Accept its conditions at ", page, ", and set HF_TOKEN to a token of that account."));
    if (reply.error_code == "RevisionNotFound")
        throw Error("hub.no-revision",
                    cat(name, " has no revision '", repository.revision, "' (", answer_of(reply), ")"),
                    cat("Its branches and tags: ", page, "/tree/main"));
    if (reply.status == 401 && !access.token.empty() && reply.error_code != "RepoNotFound")
        throw Error("hub.token-refused",
                    cat(name, ": ", access.endpoint, " does not accept the token (", answer_of(reply), ")"),
                    "Set HF_TOKEN to a valid one, or unset it: public repositories need none.");
    if (reply.status == 401 || reply.status == 403 || reply.status == 404)
        throw Error(
            "hub.not-found",
            cat(name, ": no such folder, and ", access.endpoint, " has no such ",
                repository.kind == Kind::dataset ? "data set" : "model", ", or it is private (", answer_of(reply), ")"),
            access.token.empty() ? "Look for a typing error; for a private one set HF_TOKEN."
                                 : "Look for a typing error, or whether HF_TOKEN may read it.");
    if (is_passing(reply))
        throw Unreachable(cat(what, " failed again and again, at last with ",
                              reply.failure.empty() ? answer_of(reply) : reply.failure));
    throw Error("hub.request-failed", cat(name, ": ", what, " failed: ", answer_of(reply)),
                "HF_ENDPOINT names the hub that is asked.");
}

}  // namespace unsloth::hub
