#include "hub/cache.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"

namespace unsloth::hub {
namespace {

namespace fs = std::filesystem;

constexpr int tree_version = 1;

fs::path from_home(const std::string& path) {
    const auto home = environment("HOME");
    return home && path.starts_with("~/") ? fs::path(*home) / path.substr(2) : fs::path(path);
}

Tree parse_tree(const nlohmann::json& json) {
    Tree tree;
    for (const auto& item : json.at("files").items()) {
        const nlohmann::json& entry = item.value();
        RemoteFile file{entry.at("size").get<int64_t>(), entry.at("blob_id").get<std::string>(),
                        entry.value("lfs_sha256", std::string()), entry.value("xet_hash", std::string())};
        if (file.size >= 0 && is_safe_path(item.key())) tree.emplace(item.key(), std::move(file));
    }
    return tree;
}

}  // namespace

std::optional<std::string> environment(const char* name) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
}

bool environment_says(const char* name) {
    std::string value = environment(name).value_or("");
    std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
    return value == "1" || value == "on" || value == "yes" || value == "true";
}

bool is_offline() {
    return environment_says("HF_HUB_OFFLINE") || environment_says("TRANSFORMERS_OFFLINE");
}

std::vector<std::string> names_of(const Tree& tree) {
    std::vector<std::string> names;
    for (const auto& [name, file] : tree) names.push_back(name);
    return names;
}

bool is_hash(const std::string& text, std::size_t digits) {
    return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool is_safe_path(const std::string& path) {
    if (path.empty() || path.size() > 1024 || path.front() == '/' || path.back() == '/') return false;
    if (std::any_of(path.begin(), path.end(),
                    [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\'; }))
        return false;
    const fs::path parts(path);
    return std::all_of(parts.begin(), parts.end(),
                       [](const fs::path& part) { return part != "." && part != ".." && !part.empty(); });
}

fs::path cache_folder() {
    if (const auto cache = environment("HF_HUB_CACHE")) return from_home(*cache);
    if (const auto cache = environment("HUGGINGFACE_HUB_CACHE")) return from_home(*cache);
    if (const auto home = environment("HF_HOME")) return from_home(*home) / "hub";
    if (const auto cache = environment("XDG_CACHE_HOME")) return fs::path(*cache) / "huggingface" / "hub";
    if (const auto home = environment("HOME")) return fs::path(*home) / ".cache" / "huggingface" / "hub";
    throw Error("hub.no-cache", "there is no folder for the Hugging Face cache", "Set HF_HOME or HOME.");
}

CachedRepository::CachedRepository(const fs::path& cache, const Repository& repository) : cache_(cache) {
    std::string name = (repository.kind == Kind::dataset ? "datasets--" : "models--") + repository.id;
    name.replace(name.find('/'), 1, "--");
    name_ = name;
    folder_ = cache_ / name_;
}

Folder CachedRepository::in_cache(const fs::path& names) const {
    const Folder cache = Folder::made(cache_);
    return cache.open() ? cache.made_below(names, Owner::anyone) : cache;
}

Folder CachedRepository::made(const fs::path& names) const {
    return in_cache(name_ / names).require();
}

FileLock CachedRepository::lock(const std::string& name, const std::string& what) const {
    return FileLock(in_cache(".locks" / name_), name + ".lock", Owner::anyone, FileLock::After::stays, what);
}

std::optional<std::string> CachedRepository::commit(const std::string& revision) const {
    if (is_hash(revision, 40)) return revision;
    const fs::path reference = folder_ / "refs" / revision;
    std::error_code ignored;
    if (!fs::is_regular_file(reference, ignored)) return std::nullopt;
    std::string commit = trimmed(read_file(reference));
    if (!is_safe_path(commit) || commit.find('/') != std::string::npos)
        throw Error("hub.no-revision", cat(reference.string(), ": names no revision"));
    return commit;
}

void CachedRepository::write_commit(const std::string& revision, const std::string& commit) const {
    if (revision == commit) return;
    const fs::path reference = fs::path("refs") / revision;
    write_file_atomically(made(reference.parent_path()), reference.filename(), commit);
}

std::optional<Tree> CachedRepository::tree(const std::string& commit) const {
    const fs::path path = folder_ / "trees" / (commit + ".json");
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return std::nullopt;
    try {
        const std::string text = read_file(path);
        const auto json = try_parse_json<nlohmann::json>(text);
        if (json.at("format_version") != tree_version) return std::nullopt;
        return parse_tree(json);
    } catch (const nlohmann::json::exception&) {
        log::warning(path.string(), " cannot be read as a list of files; it is asked for again");
        return std::nullopt;
    }
}

void CachedRepository::write_tree(const std::string& commit, const Tree& tree) const {
    nlohmann::json files = nlohmann::json::object();
    for (const auto& [name, file] : tree) {
        auto& entry = files[name];
        entry = {{"size", file.size}, {"blob_id", file.git_sha1}};
        if (!file.sha256.empty()) entry["lfs_sha256"] = file.sha256, entry["lfs_size"] = file.size;
        if (!file.xet_hash.empty()) entry["xet_hash"] = file.xet_hash;
    }
    const nlohmann::json json = {{"format_version", tree_version}, {"files", files}};
    write_file_atomically(made("trees"), commit + ".json", json.dump(1));
}

}  // namespace unsloth::hub
