#include "unsloth/data/cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "data/cache_support.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

TEST(Cache, ASecondStartReadsNoRowAndNeedsNoEncoder) {
    Setting setting;
    const Dataset direct = Dataset::load(setting.file, setting.options, &setting.encoder);
    expect_same(setting.load(), direct);
    EXPECT_EQ(setting.encoders, 1);
    EXPECT_EQ(setting.files("").size(), 1u);  // its lock is gone
    expect_same(setting.load(), direct);
    EXPECT_EQ(setting.encoders, 1);
    const auto [train, validation] = setting.load().split(0.1, 3);
    EXPECT_EQ(validation.size(), 50);
}

TEST(Cache, KeepsLabelsPositionsAndWarnings) {
    Setting setting;
    setting.file = setting.folder.write("tokens.jsonl", R"({"input_ids": [1, 2, 3, 4], "labels": [-100, 2, -100, 4]}
{"input_ids": [1, 2, 3], "labels": [9, 8, 7]}
nonsense
{"input_ids": [1, 2, 3, 4], "position_ids": [5, 6, 0, 1]}
)");
    setting.cache.encoder_fingerprint.clear();  // tokens need none
    setting.options.skip_bad_rows = true;
    const Dataset direct = Dataset::load(setting.file, setting.options, nullptr);
    expect_same(setting.load(), direct);
    testing::internal::CaptureStderr();
    expect_same(setting.load(), direct);
    toy::expect_contains(testing::internal::GetCapturedStderr(),
                         {"from the cache", "skipped 1 bad of 4 rows", "tokens.jsonl:3"});
    EXPECT_EQ(direct.sample(1).labels, (std::vector<int32_t>{9, 8, 7}));
    EXPECT_EQ(direct.sample(2).segments, (Segments{{0, 2}, {2, 2}}));
}

// What fuzzing begins with must be a file that is read, or the target sees refusals alone.

TEST(Cache, NothingStaysOfARunThatFails) {
    Setting setting;
    setting.folder.write("a.jsonl", text_rows(300) + "{\"text\": 5}\n" + text_rows(10));
    toy::expect_contains(toy::message_of("data.column-type", [&] { setting.load(); }), {"a.jsonl:301"});
    EXPECT_EQ(setting.files(".tmp").size(), 0u);
    EXPECT_EQ(setting.files("").size(), 0u);
}

TEST(Cache, AFullDiskIsSaidAndLeavesNothing) {
    Setting setting;
    setting.load();  // the folder is there
    setting.options.max_seq_length = 40;
    setting.options.long_rows = config::LongRows::truncate;
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    for (const rlim_t limit : {rlim_t{0}, rlim_t{20}, rlim_t{30000}}) {  // the header, within it, among the tokens
        const rlimit small{limit, before.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &small);
        std::string what;
        try {
            setting.load();
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::runtime);
            what = error.what();
        }
        ::setrlimit(RLIMIT_FSIZE, &before);
        toy::expect_contains(what, {"cannot write", "File too large", "data.cache_dir"});
        EXPECT_EQ(setting.files(".tmp").size(), 0u);
    }
    std::signal(SIGXFSZ, old_handler);
    EXPECT_EQ(setting.load().size(), 500);
}

/// Files of rows for several settings of one data set, so that each is a file of its own.
struct BoundedCache : Setting {
    fs::path made_with(int64_t max_seq_length) {
        const std::vector<fs::path> before = rows();
        options.max_seq_length = max_seq_length;
        load();
        for (const fs::path& path : rows())
            if (std::find(before.begin(), before.end(), path) == before.end()) return path;
        ADD_FAILURE() << "no new file";
        return {};
    }
    std::vector<fs::path> rows() const {
        std::vector<fs::path> found;
        for (const fs::path& path : files(".rows"))
            if (path.extension() == ".rows") found.push_back(path);
        return found;
    }
    static void set_age(const fs::path& path, int hours) {
        fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(hours));
    }
};

TEST(Cache, ANewFileDrivesOutTheOnesUnusedForLongest) {
    BoundedCache setting;
    const fs::path first = setting.made_with(1000), second = setting.made_with(1001), third = setting.made_with(1002);
    BoundedCache::set_age(first, 3);
    BoundedCache::set_age(second, 2);
    BoundedCache::set_age(third, 1);
    setting.options.max_seq_length = 1000;
    setting.load();  // used: now the second is the oldest
    setting.cache.max_bytes = static_cast<int64_t>(3.5 * static_cast<double>(fs::file_size(first)));
    const fs::path fourth = setting.made_with(1003);
    EXPECT_TRUE(fs::exists(first) && !fs::exists(second) && fs::exists(third) && fs::exists(fourth));
    setting.cache.max_bytes = 1;  // less than one file: what was just made is in use, and stays
    const fs::path fifth = setting.made_with(1004);
    EXPECT_EQ(setting.rows(), std::vector<fs::path>{fifth});
    EXPECT_EQ(setting.load().size(), 500);
    setting.cache.max_bytes = 0;
    setting.made_with(1005);
    EXPECT_EQ(setting.rows().size(), 2u) << "no bound";
}

TEST(Cache, KeepsValuesByTheirKey) {
    BoundedCache setting;
    const std::vector<float> values{1, 2, -0.5F};
    EXPECT_EQ(kept_values(setting.cache, "key", 3), std::nullopt);
    keep_values(setting.cache, "key", values);
    EXPECT_EQ(kept_values(setting.cache, "key", 3), values);
    EXPECT_EQ(kept_values(setting.cache, "key", 2), std::nullopt);
    EXPECT_EQ(kept_values(setting.cache, "other", 3), std::nullopt);
    const fs::path file = setting.cache.folder / "key.values";
    BoundedCache::set_age(file, 3);
    setting.cache.max_bytes = 1;
    setting.made_with(1000);
    EXPECT_FALSE(fs::exists(file)) << "counts for the cache's bound";
    setting.cache.max_bytes = 0;
    keep_values(setting.cache, "key", values);
    std::string content = read_file(file);
    content.back() ^= 1;
    write_file_atomically(file, content);
    EXPECT_EQ(kept_values(setting.cache, "key", 3), std::nullopt) << "damaged";
    const CacheOptions none;
    keep_values(none, "key", values);
    EXPECT_EQ(kept_values(none, "key", 3), std::nullopt);
}

TEST(Cache, AFileInUseByAnotherProcessStays) {
    BoundedCache setting;
    const fs::path used = setting.made_with(1000), unused = setting.made_with(1001);
    BoundedCache::set_age(unused, 1);
    int ready[2], done[2];
    ASSERT_TRUE(::pipe(ready) == 0 && ::pipe(done) == 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
        char byte = 0;
        ::close(done[1]);
        setting.options.max_seq_length = 1000;
        const Dataset data = setting.load();
        if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
        (void)!::read(done[0], &byte, 1);  // until the parent is through
        ::_exit(data.size() == 500 && data.sample(499).row == 499 ? 0 : 2);
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    BoundedCache::set_age(used, 5);
    setting.cache.max_bytes = 1;
    const fs::path made = setting.made_with(1002);
    EXPECT_TRUE(fs::exists(used) && !fs::exists(unused) && fs::exists(made));
    ::close(done[1]);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    setting.made_with(1003);
    EXPECT_FALSE(fs::exists(used)) << "the process is gone";
    for (const int fd : {ready[0], ready[1], done[0]}) ::close(fd);
}

TEST(Cache, TheLoaderKeepsAheadOfTheFastestStep) {
    Setting setting;
    setting.file = setting.folder.write("long.jsonl", [] {
        std::string text;
        for (int row = 0; row < 4000; ++row)
            text += cat("{\"text\": \"", std::string(static_cast<std::size_t>(200 + row * 7919 % 1800), 'x'), "\"}\n");
        return text;
    }());
    setting.load();
    LoaderOptions options;
    options.per_device_train_batch_size = 8;
    options.gradient_accumulation_steps = 2;
    options.order_tokens = true;
    StepLoader loader(setting.load(), options);
    EXPECT_EQ(setting.encoders, 1);
    const auto begin = std::chrono::steady_clock::now();
    Prefetcher steps([&](int64_t step) { return loader.step(step); }, 0, 2 * loader.steps_per_epoch());
    int64_t tokens = 0;
    while (const auto step = steps.next()) tokens += step->tokens;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_EQ(tokens, 2 * loader.dataset().stats().tokens);
    const double rate = static_cast<double>(tokens) / seconds;
    std::printf("%.1f M tokens/s from the cache\n", rate / 1e6);  // not asserted: machines are shared
}

TEST(Cache, WhereItIsAndWhenThereIsNone) {
    Setting setting;
    setting.cache.encoder_fingerprint.clear();
    setting.load();
    EXPECT_EQ(setting.files(".rows").size(), 0u) << "text without a fingerprint";
    setting.cache.encoder_fingerprint = "toy";
    setting.cache.least_bytes = 1 << 20;
    setting.load();
    EXPECT_EQ(setting.files(".rows").size(), 0u) << "small";

    EXPECT_TRUE(cache_options("").folder.empty());
    EXPECT_EQ(cache_options("/x/y").folder, "/x/y");
    EXPECT_EQ(cache_options("/x/y").least_bytes, 0);
    const char* const before = std::getenv("XDG_CACHE_HOME");
    const std::string kept = before != nullptr ? before : "";
    ::setenv("XDG_CACHE_HOME", "/caches", 1);
    EXPECT_EQ(cache_options("auto").folder, "/caches/unsloth-train");
    ::unsetenv("XDG_CACHE_HOME");
    EXPECT_EQ(cache_options("auto").folder, fs::path(std::getenv("HOME")) / ".cache/unsloth-train");
    if (before != nullptr) ::setenv("XDG_CACHE_HOME", kept.c_str(), 1);

    setting.cache.least_bytes = 0;
    setting.cache.folder = setting.file / "below a file";
    toy::expect_contains(toy::message_of("disk.cannot-write", [&] { setting.load(); }),
                         {"data.cache_dir", "below a file"});
    setting.cache.must_work = false;
    EXPECT_EQ(setting.load().size(), 500);
}

}  // namespace
}  // namespace unsloth::data
