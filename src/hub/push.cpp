#include "unsloth/hub/push.h"

#include <memory>

#include "hub/cache.h"
#include "hub/downloader.h"
#include "hub/library.h"
#include "hub/uploader.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::hub {
namespace {

Uploader& uploader() {
    static const std::unique_ptr<Uploader> made(
        library_function<decltype(unsloth_create_uploader)>("unsloth_create_uploader", "uploads")());
    return *made;
}

/// Whether the name is NAME or ORG/NAME of the characters that the hub allows.
void require_name(const std::string& name) {
    const bool alone = name.find('/') == std::string::npos;
    if (name.find('@') == std::string::npos && parse_repository(Kind::model, alone ? "me/" + name : name)) return;
    throw Error("option.invalid-value", cat("'", name, "' is no name of a repository on the hub"),
                "A name is ORG/NAME, or NAME of your account, of letters, digits, '-', '_' and '.'.");
}

void require_online() {
    if (is_offline())
        throw Error("hub.bad-setting", "HF_HUB_OFFLINE is set, and an upload needs the hub",
                    "Unset it, or train without training.push_to_hub and run `unsloth-train push` where there is a "
                    "network.");
}

}  // namespace

std::string require_pushable(const PushTarget& target, bool creates) {
    require_name(target.repository);
    require_online();
    try {
        return uploader().require(target, creates);
    } catch (const Unreachable& reason) {
        log::warning(reason.what(), "; whether ", target.repository, " takes an upload is not known");
        return target.repository;
    }
}

std::optional<Repository> used_repository(Kind kind, const std::string& name) {
    const auto repository = parse_repository(kind, name);
    std::error_code ignored;
    if (!repository || std::filesystem::exists(name, ignored)) return std::nullopt;
    const CachedRepository cached(cache_folder(), *repository);
    return std::filesystem::is_directory(cached.folder(), ignored) ? repository : std::nullopt;
}

Pushed push(const PushRequest& request) {
    require_online();
    try {
        return uploader().push(request);
    } catch (const Unreachable& reason) {
        throw Error("hub.request-failed", cat(request.target.repository, " was not uploaded: ", reason.what()),
                    "Run the upload again: what the hub has already is not sent again.");
    }
}

}  // namespace unsloth::hub
