// One cache and several processes: who makes a file, and what killed ones leave.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/cache_support.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

TEST(Cache, SeveralProcessesMakeItOnce) {
    Setting setting;
    class Slow : public toy::Encoder {
      public:
        EncodedRow text(std::string_view text) const override {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            return toy::Encoder::text(text);
        }
    };
    const Slow slow;
    std::vector<pid_t> children;
    for (int child = 0; child < 4; ++child) {
        const pid_t pid = ::fork();
        if (pid == 0) {
            int made = 0;
            try {
                setting.options.workers = 1;
                const Dataset data = load_cached(
                    {{.path = setting.file.string()}}, setting.options,
                    [&](const std::string&) { return ++made, &slow; }, setting.cache);
                ::_exit(data.size() == 500 &&
                                data.sample(499).ids == toy::Encoder().text(cat("row 499", std::string(49, '.'))).ids
                            ? made
                            : 100);
            } catch (...) {
                ::_exit(101);
            }
        }
        children.push_back(pid);
    }
    int made = 0;
    for (const pid_t pid : children) {
        int status = 0;
        ASSERT_EQ(::waitpid(pid, &status, 0), pid);
        ASSERT_TRUE(WIFEXITED(status));
        made += WEXITSTATUS(status);
    }
    EXPECT_EQ(made, 1);
    EXPECT_EQ(setting.files(".tmp").size(), 0u);
}

TEST(Cache, WhatAKilledProcessLeftIsRemoved) {
    Setting setting;
    setting.load();
    fs::path file;
    for (const fs::path& path : setting.files(".rows"))
        if (path.extension() == ".rows") file = path;
    fs::remove(file);
    std::ofstream(file.string() + ".tmp-999999") << "half";
    const auto in_cache = [&](const std::string& name) { return setting.cache.folder / name; };
    // Of other keys: locks and half-written files that nobody holds, and both as a process at work holds them.
    for (const char* name :
         {"a.rows.lock", "a.rows.tmp-1", "b.rows.lock", "c.rows.tmp-2", "held.rows.lock", "held.rows.tmp-3"})
        std::ofstream(in_cache(name)) << "x";
    const Descriptor held[] = {Descriptor(::open(in_cache("held.rows.lock").c_str(), O_RDWR)),
                               Descriptor(::open(in_cache("held.rows.tmp-3").c_str(), O_RDWR))};
    for (const Descriptor& file : held) ASSERT_EQ(::flock(file.get(), LOCK_EX), 0);
    // Hashes of a file that is as it was, of one that has changed, of one that is gone, and one of an older version.
    const std::string hash(32, 'a'), present = setting.file.string();
    const auto memo = [&](const std::string& name, const std::string& identity, const std::string& path) {
        std::ofstream(in_cache(name)) << hash << "\n" << identity << "\n" << path;
    };
    memo("hash-1", file_identity(present), present);
    memo("hash-2", "1 2 3", present);
    memo("hash-3", "1 2 3", "/nonexistent/a.jsonl");
    std::ofstream(in_cache("hash-4")) << hash;
    setting.load();
    std::vector<std::string> names;
    for (const fs::path& path : setting.files("")) names.push_back(path.filename().string());
    std::sort(names.begin(), names.end());
    std::vector<std::string> expected{file.filename().string(), "hash-1", "held.rows.lock", "held.rows.tmp-3"};
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(names, expected);
}

// The lock, the rows and the remembered hash of a large file: what is planted there is neither followed nor used.
TEST(Cache, FollowsNoPlantedLink) {
    Setting setting;
    const fs::path precious = setting.folder.write("precious", "content");
    // Old enough, and large enough, for its hash to be remembered.
    setting.file = setting.folder.write("b.jsonl", text_rows(500) + std::string(std::size_t{9} << 20, ' ') + "\n");
    // ctime cannot be set.
    const auto an_hour_ago = std::chrono::hours(1);
    fs::last_write_time(setting.file, fs::file_time_type::clock::now() - an_hour_ago);
    struct stat status{};
    ASSERT_EQ(::stat(setting.file.c_str(), &status), 0);
    while (::time(nullptr) - status.st_ctim.tv_sec < 3) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    setting.load();
    std::vector<fs::path> names = setting.files("hash-");
    ASSERT_EQ(names.size(), 1u);
    for (const fs::path& path : setting.files(".rows")) names.push_back(path);
    ASSERT_EQ(names.size(), 2u) << "the rows";
    names.emplace_back(names.back().string() + ".lock");
    for (const fs::path& path : names) {
        for (const fs::path& each : names)
            if (each.extension() == ".rows") fs::remove(each);  // so that the lock is asked for
        fs::remove(path);
        fs::create_symlink(precious, path);
        toy::expect_contains(toy::message_of("disk.foreign-file", [&] { setting.load(); }),
                             {path.string(), "is a symbolic link"});
        EXPECT_EQ(read_file(precious), "content");
        fs::remove(path);
    }
    EXPECT_EQ(setting.load().size(), 500);
}

TEST(Cache, AFolderThatIsRemovedWhileItIsFilledIsMadeAgain) {
    Setting setting;
    class Removing : public toy::Encoder {
      public:
        explicit Removing(fs::path folder) : folder_(std::move(folder)) {}
        EncodedRow text(std::string_view text) const override {
            if (left_-- > 0) fs::remove_all(folder_);
            return toy::Encoder::text(text);
        }
        mutable int left_ = 1;

      private:
        fs::path folder_;
    };
    const Removing once(setting.cache.folder);
    setting.options.workers = 1;
    const auto load = [&](const toy::Encoder& encoder) {
        return load_cached(
            {{.path = setting.file.string()}}, setting.options, [&](const std::string&) { return &encoder; },
            setting.cache);
    };
    EXPECT_EQ(load(once).size(), 500);
    EXPECT_EQ(setting.files(".rows").size(), 1u);
    EXPECT_EQ(setting.load().size(), 500);
    EXPECT_EQ(setting.encoders, 0) << "a hit";
    fs::remove_all(setting.cache.folder);
    const Removing always(setting.cache.folder);
    always.left_ = 1 << 30;
    toy::expect_contains(toy::message_of("disk.cannot-write", [&] { load(always); }), {"cannot", "cache"});
}

TEST(Cache, ASignalEndsTheWaitForAFile) {
    Setting setting;
    setting.load();
    const fs::path rows = setting.files(".rows").front();
    for (const fs::path& held : {rows, fs::path(rows.string() + ".lock")}) {
        if (held != rows) fs::remove(rows);  // so that the lock is asked for
        const Descriptor holder(::open(held.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
        ASSERT_EQ(::flock(holder.get(), LOCK_EX), 0);
        const pid_t pid = ::fork();
        if (pid == 0) {
            install_interrupt_handlers();
            ::alarm(20);
            std::thread([] {
                std::this_thread::sleep_for(std::chrono::milliseconds(200));
                ::kill(::getpid(), SIGTERM);
            }).detach();
            try {
                setting.load();
            } catch (const Interrupted& stopped) {
                ::_exit(stopped.exit_code());
            } catch (...) {
            }
            ::_exit(1);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(WIFEXITED(status)) << held << " signal " << WTERMSIG(status);
        EXPECT_EQ(WEXITSTATUS(status), 143) << held;
    }
}

}  // namespace
}  // namespace unsloth::data
