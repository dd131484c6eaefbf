#include "hub/upload/large_files.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/progress.h"
#include "unsloth/core/text.h"

namespace unsloth::hub {
namespace {

using Json = nlohmann::json;

constexpr const char* lfs_type = "application/vnd.git-lfs+json";
constexpr std::size_t most_objects = 100;  // of one request
constexpr const char* public_hub = "https://huggingface.co";

/// Whole numbers from 1; 0 for anything else.
int64_t number_in(const Json& value) {
    if (value.is_number_integer()) return std::max<int64_t>(0, value.get<int64_t>());
    if (!value.is_string()) return 0;
    const auto text = value.get<std::string>();
    int64_t number = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), number).ptr;
    return end == text.data() + text.size() ? std::max<int64_t>(0, number) : 0;
}

/// Sends one file as an object of the batch's answer says.
class Sending {
  public:
    Sending(Conversation& hub, const std::string& repository, const LocalFile& file, Progress& progress)
        : hub_(hub), repository_(repository), file_(file), progress_(progress) {}

    void run(const Json& actions) {
        const Json& upload = actions.at("upload");
        const Json header = upload.value("header", Json::object());
        const std::string address = at_endpoint(upload.at("href"));
        if (header.contains("chunk_size"))
            send_parts(address, header);
        else
            send(address, file_.bytes());
        if (!actions.contains("verify")) return;
        const Json body = {{"oid", file_.hash}, {"size", file_.size()}};
        require(hub_.post(at_endpoint(actions["verify"].at("href")), body.dump(), what(), lfs_type, /*accept=*/true));
    }

  private:
    std::string what() const { return cat("uploading ", repository_, "/", file_.name); }

    /// A mirror answers with the hub's own addresses.
    std::string at_endpoint(const std::string& url) const {
        const std::string_view rest =
            std::string_view(url).substr(std::min(url.size(), std::string(public_hub).size()));
        return url.starts_with(public_hub) && rest.starts_with('/') ? cat(hub_.access().endpoint, rest) : url;
    }

    /// Addresses of storage carry signatures: they are in no message.
    void require(const Reply& reply) const {
        if (reply.ok()) return;
        throw Error("hub.request-failed", cat(what(), ": storage answers HTTP ", reply.status),
                    "Run the upload again: what the hub has already is not sent again.");
    }

    /// The answer's ETag.
    std::string send(const std::string& address, std::span<const std::byte> bytes) {
        int64_t sent = 0;
        const Reply reply = hub_.persist(what(), [&] {
            progress_.add(-sent);
            sent = 0;
            return hub_.http().put(address, bytes, [&](int64_t count) {
                sent += count;
                progress_.add(count);
            });
        });
        require(reply);
        return reply.etag;
    }

    void send_parts(const std::string& completion, const Json& header) {
        std::map<int64_t, std::string> addresses;
        for (const auto& item : header.items())
            if (const int64_t number = number_in(Json(item.key())); number > 0) addresses[number] = item.value();
        const int64_t chunk = number_in(header["chunk_size"]);
        const auto count = static_cast<int64_t>(addresses.size());
        const bool dense = !addresses.empty() && addresses.begin()->first == 1 && addresses.rbegin()->first == count;
        if (chunk == 0 || !dense || count != (file_.size() + chunk - 1) / chunk)
            throw hub_.strange(what(), "names no addresses for all parts");
        Json parts = Json::array();
        for (const auto& [number, address] : addresses) {
            const int64_t begin = (number - 1) * chunk, length = std::min(chunk, file_.size() - begin);
            const std::string etag =
                send(address, file_.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(length)));
            if (etag.empty()) throw hub_.strange(what(), "has no ETag of a part");
            parts.push_back({{"partNumber", number}, {"etag", etag}});
        }
        const Json body = {{"oid", file_.hash}, {"parts", parts}};
        require(hub_.post(completion, body.dump(), what(), lfs_type, /*accept=*/true));
    }

    Conversation& hub_;
    const std::string& repository_;
    const LocalFile& file_;
    Progress& progress_;
};

Json ask_for_addresses(Conversation& hub, const std::string& repository, const std::string& branch,
                       std::span<const LocalFile* const> files) {
    Json objects = Json::array();
    for (const LocalFile* file : files) objects.push_back({{"oid", file->hash}, {"size", file->size()}});
    const Json body = {{"operation", "upload"},
                       {"transfers", {"basic", "multipart"}},
                       {"objects", objects},
                       {"hash_algo", "sha256"},
                       {"ref", {{"name", branch}}}};
    const std::string what = cat("asking where ", repository, " takes large files");
    const Reply reply =
        hub.post(cat("/", repository, ".git/info/lfs/objects/batch"), body.dump(), what, lfs_type, /*accept=*/true);
    if (!reply.ok()) hub.refuse(reply, repository, what);
    Json answer = hub.parsed(reply, what);
    if (!answer["objects"].is_array()) throw hub.strange(what, "has no objects");
    return answer["objects"];
}

/// What the batch's answer says of one file, done; the bytes that were sent.
int64_t send_object(Conversation& hub, const std::string& repository, const Json& object,
                    const std::map<std::string, const LocalFile*>& by_hash, Progress& progress) {
    try {
        const auto found = by_hash.find(object.at("oid").get<std::string>());
        if (found == by_hash.end())
            throw hub.strange(cat("uploading ", repository), "names a file that was not asked for");
        const LocalFile& file = *found->second;
        if (object.contains("error"))
            throw Error("hub.request-failed",
                        cat(repository, "/", file.name, ": the hub refuses it: ",
                            object["error"].value("message", std::string("it does not say why"))),
                        "The account may have no room left, or the file may be too large for the hub.");
        if (!object.contains("actions") || !object["actions"].contains("upload")) {
            log::info(file.name, ": the hub has it already");
            progress.add(file.size());
            return 0;
        }
        Sending(hub, repository, file, progress).run(object["actions"]);
        return file.size();
    } catch (const Json::exception&) {
        throw hub.strange(cat("uploading ", repository), "has another form than is known");
    }
}

}  // namespace

int64_t send_large_files(Conversation& hub, const std::string& repository, const std::string& branch,
                         const std::vector<const LocalFile*>& files) {
    std::map<std::string, const LocalFile*> by_hash;  // files may be alike
    for (const LocalFile* file : files) by_hash.emplace(file->hash, file);
    std::vector<const LocalFile*> distinct;
    int64_t total = 0, sent = 0;
    for (const auto& [hash, file] : by_hash) distinct.push_back(file), total += file->size();
    Progress progress(cat("uploading ", repository), total);
    for (std::size_t begin = 0; begin < distinct.size(); begin += most_objects) {
        const std::span<const LocalFile* const> part =
            std::span(distinct).subspan(begin, std::min(most_objects, distinct.size() - begin));
        const Json objects = ask_for_addresses(hub, repository, branch, part);
        for (const Json& object : objects) sent += send_object(hub, repository, object, by_hash, progress);
        if (objects.size() < part.size()) throw hub.strange(cat("uploading ", repository), "leaves files out");
    }
    return sent;
}

}  // namespace unsloth::hub
