// libunsloth_hub.so: a folder's files as one commit of a repository on the hub.
#include "hub/uploader.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>

#include "hub/download/digest.h"
#include "hub/upload/conversation.h"
#include "hub/upload/large_files.h"
#include "hub/upload/local_file.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/progress.h"
#include "unsloth/core/text.h"

namespace unsloth::hub {
namespace {

using Json = nlohmann::json;

constexpr std::size_t sample_bytes = 512, most_asked_files = 256, hashed_bytes = std::size_t{8} << 20;

std::string base64(std::string_view bytes) {
    static constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    text.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const std::size_t there = std::min<std::size_t>(3, bytes.size() - i);
        uint32_t word = 0;
        for (std::size_t k = 0; k < 3; ++k)
            word = word << 8 | (k < there ? static_cast<unsigned char>(bytes[i + k]) : 0U);
        for (std::size_t k = 0; k < 4; ++k) text += k <= there ? digits[word >> (18 - 6 * k) & 63U] : '=';
    }
    return text;
}

/// The account of the token.
struct Account {
    std::string name, role;  ///< role: read, write, fineGrained; empty: the hub does not say
    std::vector<std::string> organizations;

    bool knows(const std::string& owner) const {
        return owner == name || std::find(organizations.begin(), organizations.end(), owner) != organizations.end();
    }
};

Account ask_for_account(Conversation& hub, const std::string& repository) {
    const std::string what = "asking whose token it is";
    const Reply reply = hub.get("/api/whoami-v2", what);
    if (!reply.ok()) hub.refuse(reply, repository, what);
    const Json json = hub.parsed(reply, what);
    try {
        Account account{json.at("name"), "", {}};
        for (const Json& organization : json.value("orgs", Json::array()))
            account.organizations.push_back(organization.at("name"));
        const Json token = json.value("/auth/accessToken"_json_pointer, Json::object());
        account.role = token.value("role", std::string());
        return account;
    } catch (const Json::exception&) {
        throw hub.strange(what, "names no account");
    }
}

/// What the hub does with each file: whether it is large, ignored, and what the branch has under its name.
void ask_for_modes(Conversation& hub, const PushTarget& target, std::vector<LocalFile>& files) {
    const std::string what = cat("asking how ", target.repository, " takes files");
    const std::string path = cat("/api/models/", target.repository, "/preupload/", Http::escaped(target.branch));
    for (std::size_t begin = 0; begin < files.size(); begin += most_asked_files) {
        const auto part = std::span(files).subspan(begin, std::min(most_asked_files, files.size() - begin));
        Json asked = Json::array();
        for (const LocalFile& file : part)
            asked.push_back(
                {{"path", file.name}, {"sample", base64(file.text().substr(0, sample_bytes))}, {"size", file.size()}});
        const Json body = {{"files", asked}};
        const Reply reply = hub.post(path, body.dump(), what);
        if (!reply.ok()) hub.refuse(reply, target.repository, what);
        const Json answer = hub.parsed(reply, what);
        std::size_t answered = 0;
        try {
            for (const Json& entry : answer.at("files"))
                for (LocalFile& file : part) {
                    if (file.name != entry.at("path")) continue;
                    file.large = entry.at("uploadMode") == "lfs" && file.size() > 0;  // storage takes no empty files
                    file.ignored = entry.value("shouldIgnore", false);
                    if (entry.contains("oid") && entry["oid"].is_string()) file.remote_hash = entry["oid"];
                    ++answered;
                }
        } catch (const Json::exception&) {
            throw hub.strange(what, "has another form than is known");
        }
        if (answered != part.size()) throw hub.strange(what, "leaves files out");
    }
}

void hash_files(const std::string& repository, std::vector<LocalFile>& files) {
    int64_t total = 0;
    for (const LocalFile& file : files) total += file.size();
    Progress progress(cat("hashing ", repository), total);
    for (LocalFile& file : files) {
        Digest digest(file.large ? Digest::Kind::sha256 : Digest::Kind::git_sha1, file.size());
        for (std::string_view rest = file.text(); !rest.empty();) {
            stop_if_interrupted("stopped; nothing was uploaded");
            const std::string_view part = rest.substr(0, hashed_bytes);
            digest.add(part);
            progress.add(static_cast<int64_t>(part.size()));
            rest.remove_prefix(part.size());
        }
        file.hash = digest.hex();
    }
}

/// A line of JSON an operation.
std::string commit_text(const PushRequest& request, const std::vector<const LocalFile*>& files) {
    std::string text =
        Json{{"key", "header"}, {"value", {{"summary", request.message}, {"description", ""}}}}.dump() + "\n";
    for (const LocalFile* file : files) {
        const Json value =
            file->large ? Json{{"path", file->name}, {"algo", "sha256"}, {"oid", file->hash}, {"size", file->size()}}
                        : Json{{"path", file->name}, {"encoding", "base64"}, {"content", base64(file->text())}};
        text += Json{{"key", file->large ? "lfsFile" : "file"}, {"value", value}}.dump() + "\n";
    }
    return text;
}

class CurlUploader final : public Uploader {
  public:
    CurlUploader() { curl_global_init(CURL_GLOBAL_DEFAULT); }

    std::string require(const PushTarget& target, bool creates) override {
        Conversation hub(access());
        const Account account = ask_for_account(hub, target.repository);
        const std::size_t slash = target.repository.find('/');
        const std::string owner = slash == std::string::npos ? account.name : target.repository.substr(0, slash);
        const std::string name = slash == std::string::npos ? target.repository : target.repository.substr(slash + 1);
        if (account.role == "read")
            throw Error("hub.token-refused", cat("the token of ", account.name, " may only read"),
                        "Create a token with write access at the hub, and set HF_TOKEN to it.");
        // What a fine-grained token is for is known by trying alone.
        if (account.role != "fineGrained" && !account.knows(owner))
            throw Error("hub.token-refused",
                        cat(owner, "/", name, ": the token's account ", account.name, " is not in ", owner),
                        cat("Name a repository of ", account.name, " or of an organization that it belongs to."));
        const PushTarget full{cat(owner, "/", name), target.is_private, target.branch};
        if (creates) {
            create(hub, full, owner == account.name ? "" : owner, name);
            probe(hub, full);
        }
        return full.repository;
    }

    Pushed push(const PushRequest& request) override {
        Conversation hub(access());
        const std::string& repository = request.target.repository;
        std::vector<LocalFile> files;
        for (const std::string& name : request.files)
            files.push_back({.name = name, .content = MappedFile(request.folder / name)});
        ask_for_modes(hub, request.target, files);
        std::erase_if(files, [](const LocalFile& file) { return file.ignored; });
        hash_files(repository, files);
        Pushed pushed{cat(hub.access().endpoint, "/", repository), 0, 0, 0};
        std::vector<const LocalFile*> changed, large;
        for (const LocalFile& file : files) {
            if (file.is_unchanged()) ++pushed.unchanged_files;
            if (!file.is_unchanged()) changed.push_back(&file);
            if (!file.is_unchanged() && file.large) large.push_back(&file);
        }
        if (changed.empty()) return pushed;
        log::info("uploading ", changed.size(), changed.size() == 1 ? " file" : " files", " -> ", pushed.page);
        pushed.bytes = send_large_files(hub, repository, request.target.branch, large);
        commit(hub, request, changed);
        pushed.files = static_cast<int64_t>(changed.size());
        return pushed;
    }

  private:
    static Access access() {
        Access access = access_of_environment();
        if (access.token.empty())
            throw Error("hub.token-refused", "an upload needs a token of the hub, and there is none",
                        "Set HF_TOKEN to a token with write access, or run `hf auth login`.");
        return access;
    }

    static void create(Conversation& hub, const PushTarget& target, const std::string& organization,
                       const std::string& name) {
        Json body = {{"name", name}, {"type", "model"}, {"private", target.is_private}};
        if (!organization.empty()) body["organization"] = organization;
        const std::string what = cat("creating ", target.repository);
        const Reply reply = hub.post("/api/repos/create", body.dump(), what);
        if (reply.ok())
            log::info("created ", target.is_private ? "the private" : "the public", " repository ", target.repository,
                      " on ", hub.access().endpoint);
        // 409: it is there. Who may not create one may write to one that is.
        if (reply.ok() || reply.status == 409) return;
        if (reply.status == 403 && hub.get(cat("/api/models/", target.repository), what).ok()) return;
        hub.refuse(reply, target.repository, what);
    }

    /// Asks as an upload does, which needs the right to write; nothing is sent.
    static void probe(Conversation& hub, const PushTarget& target) {
        const Json readme = {{"path", "README.md"}, {"sample", ""}, {"size", 0}};
        const Json body = {{"files", Json::array({readme})}};
        const std::string what = cat("asking whether ", target.repository, " takes files");
        const Reply reply = hub.post(
            cat("/api/models/", target.repository, "/preupload/", Http::escaped(target.branch)), body.dump(), what);
        if (!reply.ok()) hub.refuse(reply, target.repository, what);
    }

    static void commit(Conversation& hub, const PushRequest& request, const std::vector<const LocalFile*>& files) {
        const std::string& repository = request.target.repository;
        const std::string what = cat("committing to ", repository);
        const std::string path = cat("/api/models/", repository, "/commit/", Http::escaped(request.target.branch));
        const Reply reply = hub.post(path, commit_text(request, files), what, "application/x-ndjson");
        if (!reply.ok()) hub.refuse(reply, repository, what);
    }
};

}  // namespace
}  // namespace unsloth::hub

unsloth::hub::Uploader* unsloth_create_uploader() {
    return new unsloth::hub::CurlUploader;
}
