// libunsloth_hub.so: a repository from the hub, several files at once.
#include "hub/downloader.h"

#include <curl/curl.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "hub/download/file_download.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/json.h"
#include "unsloth/core/log.h"
#include "unsloth/core/progress.h"
#include "unsloth/core/text.h"

namespace unsloth::hub {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t most_threads = 8;
constexpr std::size_t most_files = 1'000'000;

struct Wanted {
    std::string name;
    RemoteFile file;
};

/// What the hub says of a repository.
class Api {
  public:
    Api(const Repository& repository, const Access& access)
        : repository_(repository), access_(access), http_(access.endpoint, access.token, asked_to_stop) {}

    static bool asked_to_stop() { return interrupt_requested() != 0; }

    std::string commit() {
        const Reply reply = ask(cat(base(), "/revision/", Http::escaped(repository_.revision)));
        const Json json = parse(reply.body);
        const auto found = json.is_object() ? json.find("sha") : json.end();
        if (!json.is_object() || found == json.end() || !found->is_string() || !is_hash(found->get<std::string>(), 40))
            throw strange("names no commit");
        return found->get<std::string>();
    }

    Tree tree(const std::string& commit) {
        Tree tree;
        std::string url = cat(base(), "/tree/", commit, "?recursive=true&expand=false");
        while (!url.empty()) {
            const Reply reply = ask(url);
            const Json page = parse(reply.body);
            if (!page.is_array()) throw strange("lists no files");
            for (const Json& entry : page) add(entry, tree);
            if (tree.size() > most_files || reply.link == url) throw strange("has no end of files");
            url = reply.link;
        }
        return tree;
    }

  private:
    std::string base() const {
        return cat(access_.endpoint, repository_.kind == Kind::dataset ? "/api/datasets/" : "/api/models/",
                   repository_.id);
    }
    Error strange(const std::string& what) const {
        return Error("hub.request-failed", cat(repository_.id, ": what ", access_.endpoint, " answers ", what),
                     "HF_ENDPOINT names the hub that is asked; a proxy may answer in its place.");
    }
    Reply ask(const std::string& url) {
        const std::string what = cat("asking for ", repository_.id);
        Patience patience;
        while (true) {
            Reply reply = http_.get(url);
            heard_ = heard_ || reply.connected;
            stop_if_interrupted();
            if (reply.ok()) return reply;
            // Who is not there at all need not be asked five times.
            if (!heard_ || !is_passing(reply) || !patience.wait(reply, what, asked_to_stop)) {
                stop_if_interrupted();
                refuse(reply, repository_, access_, what);
            }
        }
    }
    Json parse(const std::string& text) const {
        const Json json = try_parse_json<Json>(text);
        if (json.is_discarded()) throw strange("is no JSON");
        return json;
    }
    void add(const Json& entry, Tree& tree) const {
        try {
            if (entry.at("type") != "file") return;
            const auto name = entry.at("path").get<std::string>();
            RemoteFile file{entry.at("size").get<int64_t>(), entry.at("oid").get<std::string>(), "",
                            entry.value("xetHash", std::string())};
            if (const auto large = entry.find("lfs"); large != entry.end() && large->is_object()) {
                file.sha256 = large->at("oid").get<std::string>();
                file.size = large->at("size").get<int64_t>();
            }
            if (!is_hash(file.xet_hash, 64)) file.xet_hash.clear();
            if (!is_safe_path(name) || file.size < 0 || !is_hash(file.git_sha1, 40) ||
                !(file.sha256.empty() || is_hash(file.sha256, 64)))
                throw strange(cat("lists a file '", name.substr(0, 100), "' that cannot be"));
            tree.emplace(name, std::move(file));
        } catch (const Json::exception&) {
            throw strange("lists files in another form than is known");
        }
    }

    const Repository& repository_;
    const Access& access_;
    Http http_;
    bool heard_ = false;
};

/// Downloads with several threads; the calling one shows how far it is.
class Workers {
  public:
    Workers(const Repository& repository, const Access& access, const CachedRepository& cached, std::string commit,
            std::vector<Wanted> files)
        : job_{repository, access, cached, std::move(commit), [this] { return stopped(); }, arrived_}, files_(std::move(files)) {}

    void run(int64_t total) {
        std::vector<std::jthread> threads;
        running_ = std::min(files_.size(), most_threads);
        for (std::size_t i = 0, count = running_; i < count; ++i) threads.emplace_back([this] { work(); });
        Progress progress(cat("downloading ", job_.repository.id), total);
        int64_t shown = 0;
        std::unique_lock lock(mutex_);
        while (running_ > 0) {
            changed_.wait_for(lock, std::chrono::milliseconds(100));
            const int64_t arrived = arrived_;
            if (arrived > shown) progress.add(arrived - shown);
            shown = std::max(shown, arrived);
        }
        lock.unlock();
        threads.clear();
        stop_if_interrupted(cat("stopped; what was downloaded of ", job_.repository.id,
                                " is kept, and the next call continues from there"));
        if (failure_) std::rethrow_exception(failure_);
    }

  private:
    bool stopped() const { return failed_ || interrupt_requested() != 0; }

    void work() {
        try {
            Http http(job_.access.endpoint, job_.access.token, job_.stopped);
            for (std::size_t i = next_++; i < files_.size() && !stopped(); i = next_++)
                download_file(http, job_, files_[i].name, files_[i].file);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!failure_) failure_ = std::current_exception();
            failed_ = true;
        }
        const std::lock_guard lock(mutex_);
        --running_;
        changed_.notify_one();
    }

    std::atomic<int64_t> arrived_ = 0;
    Job job_;
    std::vector<Wanted> files_;
    std::atomic<std::size_t> next_ = 0;
    std::atomic<bool> failed_ = false;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t running_ = 0;
    std::exception_ptr failure_;
};

void require_room(const fs::path& folder, const CachedRepository& cached, const std::vector<Wanted>& files,
                  const Repository& repository) {
    int64_t missing = 0;
    for (const Wanted& wanted : files) missing += std::max<int64_t>(0, wanted.file.size - left_of(cached, wanted.file));
    std::error_code unknown;
    const fs::space_info space = fs::space(folder, unknown);
    if (!unknown && static_cast<uintmax_t>(missing) > space.available)
        throw Error("disk.full",
                    cat(repository.id, " needs ", human_size(missing), " more in ", folder.string(), ", where ",
                        human_size(static_cast<int64_t>(space.available)), " are free"),
                    "Make room, or set HF_HOME to a folder on a larger disk.");
}

class CurlDownloader final : public Downloader {
  public:
    CurlDownloader() { curl_global_init(CURL_GLOBAL_DEFAULT); }

    fs::path download(const Request& request, const fs::path& cache) override {
        const Repository& repository = request.repository;
        const Access access = access_of_environment();
        const CachedRepository cached(cache, repository);
        Api api(repository, access);
        const std::string commit = is_hash(repository.revision, 40) ? repository.revision : api.commit();
        Tree tree;
        if (auto known = cached.tree(commit))
            tree = std::move(*known);
        else
            tree = api.tree(commit);
        const std::vector<Wanted> wanted = choose(request, tree, access);
        cached.made("blobs");
        cached.made(fs::path("snapshots") / commit);
        cached.write_tree(commit, tree);
        cached.write_commit(repository.revision, commit);
        fetch(repository, access, cached, commit, wanted);
        return cached.snapshot(commit);
    }

  private:
    static std::vector<Wanted> choose(const Request& request, const Tree& tree, const Access& access) {
        const Repository& repository = request.repository;
        std::vector<Wanted> wanted;
        for (const std::string& name : request.choose(names_of(tree))) wanted.push_back({name, tree.at(name)});
        if (wanted.empty())
            throw Error(
                "hub.no-useful-files",
                cat(repository.id, ": none of its ", tree.size(), " files on ", access.endpoint, " is of use here"),
                repository.kind == Kind::dataset
                    ? "Expected files of rows (.jsonl, .json, .csv, .parquet, ...), of the split and folder that were "
                      "named."
                    : "Expected safetensors, config.json and the tokenizer's files; pickle files are not read.");
        // Large files first: none is left alone at the end.
        std::sort(wanted.begin(), wanted.end(),
                  [](const Wanted& a, const Wanted& b) { return a.file.size > b.file.size; });
        return wanted;
    }

    static void fetch(const Repository& repository, const Access& access, const CachedRepository& cached,
                      const std::string& commit, std::vector<Wanted> wanted) {
        const fs::path folder = cached.snapshot(commit);
        std::erase_if(wanted, [&](const Wanted& one) { return fs::exists(folder / one.name); });
        int64_t total = 0, left = 0;
        for (const Wanted& one : wanted) {
            total += one.file.size;
            left += fs::exists(cached.blob(one.file)) ? one.file.size : left_of(cached, one.file);
        }
        std::vector<Wanted> missing = wanted;
        std::erase_if(missing, [&](const Wanted& one) { return fs::exists(cached.blob(one.file)); });
        require_room(cached.folder(), cached, missing, repository);
        log::info("downloading ", repository.id, " (", wanted.size(), wanted.size() == 1 ? " file, " : " files, ",
                  human_size(total), left > 0 ? cat(", ", human_size(left), " of them here already") : "", ") -> ",
                  folder.string());
        Workers(repository, access, cached, commit, std::move(wanted)).run(total);
    }
};

}  // namespace
}  // namespace unsloth::hub

unsloth::hub::Downloader* unsloth_create_downloader() {
    return new unsloth::hub::CurlDownloader;
}
