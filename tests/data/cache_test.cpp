#include "unsloth/data/cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "data/cache_file.h"
#include "data/cache_key.h"
#include "data/cache_use.h"
#include "data/seal_cache_file.h"
#include "data/toy.h"
#include "unsloth/config/option_table.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/data/loader.h"
#include "unsloth/data/prefetch.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/data/training_data.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

std::string text_rows(int count) {
    std::string text;
    for (int row = 0; row < count; ++row)
        text += cat("{\"text\": \"row ", row, std::string(static_cast<std::size_t>(row % 50), '.'), "\"}\n");
    return text;
}

struct Setting {
    toy::Folder folder;
    fs::path file = folder.write("a.jsonl", text_rows(500));
    CacheOptions cache{.folder = folder.path() / "cache", .encoder_fingerprint = "toy"};
    DatasetOptions options;
    toy::Encoder encoder;
    int encoders = 0;  ///< how often one was asked for: a hit needs none

    Dataset load() {
        return load_cached(
            {{.path = file.string()}}, options, [this](const std::string&) { return ++encoders, &encoder; }, cache);
    }
    std::vector<fs::path> files(const std::string& extension) const {
        std::vector<fs::path> found;
        if (fs::exists(cache.folder))
            for (const auto& entry : fs::directory_iterator(cache.folder))
                if (entry.path().string().find(extension) != std::string::npos) found.push_back(entry.path());
        return found;
    }
};

void expect_same(const Dataset& a, const Dataset& b) {
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(a.stats().trained_tokens, b.stats().trained_tokens);
    EXPECT_EQ(a.stats().bad_rows, b.stats().bad_rows);
    EXPECT_EQ(a.stats().format, b.stats().format);
    for (int64_t i = 0; i < a.size(); ++i) {
        const Sample x = a.sample(i), y = b.sample(i);
        EXPECT_TRUE(x.row == y.row && x.ids == y.ids && x.labels == y.labels && x.positions == y.positions &&
                    x.segments == y.segments)
            << "row " << i;
        EXPECT_EQ(a.segments(i), b.segments(i));
        EXPECT_EQ(a.longest_segment(i), b.longest_segment(i));
    }
}

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

TEST(Cache, WhateverChangesTheRowsChangesTheFile) {
    Setting setting;
    int expected = 0;
    const auto made_anew = [&](const char* what) {
        setting.load();
        EXPECT_EQ(setting.encoders, ++expected) << what;
        setting.load();
        EXPECT_EQ(setting.encoders, expected) << what;
    };
    made_anew("first");
    setting.folder.write("a.jsonl", text_rows(500).replace(10, 3, "RoW"));
    made_anew("content of the same length");
    setting.options.max_seq_length = 8;
    made_anew("max_seq_length");
    setting.options.train_on_prompt = true;
    made_anew("train_on_prompt");
    setting.cache.encoder_fingerprint = "another tokenizer";
    made_anew("tokenizer");
    setting.options.format = config::DataFormat::text;
    setting.options.vocab_size = 1000;
    made_anew("vocabulary");
    fs::last_write_time(setting.file, fs::file_time_type::clock::now());
    setting.load();
    EXPECT_EQ(setting.encoders, expected) << "a time says nothing";
}

struct Options {
    toy::Folder folder;
    config::Config config;
    config::OptionSet options;
    std::string rows = folder.write("a.jsonl", text_rows(3)).string(),
                others = folder.write("b.jsonl", text_rows(4)).string(),
                other_model = folder.write("other/tokenizer.json", "{\"b\": 1}").parent_path().string();
    config::Config base;

    Options() {
        config::declare_options(options, config);
        config.model.path =
            folder
                .write("model/tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})")
                .parent_path()
                .string();
        config.data.train_file = rows;
        base = config;
    }

    /// The names of all files in the cache that a run with `config` reads or makes.
    std::vector<std::string> keys() const {
        const CacheOptions cache{.folder = folder.path() / "cache",
                                 .encoder_fingerprint = run_encoder_fingerprint(
                                     run_tokenizer_folder(config, config.model.path), config.data)};
        std::vector<std::string> keys;
        for (const auto& sources : {training_sources(config.data), evaluation_sources(config.data)}) {
            std::vector<SourceFiles> files;
            for (const config::DataSource& source : sources) files.push_back(with_files(source));
            if (!files.empty()) keys.push_back(cache_key(files, dataset_options(config, {}), cache));
        }
        return keys;
    }

    /// Values other than the option's own; empty: it is a text or a list.
    static std::vector<config::Json> other_values(const config::Option& option) {
        const config::Json own = option.get();
        std::vector<config::Json> values;
        if (option.type == config::OptionType::boolean) values = {own.is_null() || !own.get<bool>()};
        if (option.type == config::OptionType::integer || option.type == config::OptionType::number)
            values = {own.is_null() ? config::Json(1) : config::Json(own.get<double>() + 1)};
        if (option.type == config::OptionType::choice)
            for (const std::string& choice : option.choices)
                if (choice != own) values.emplace_back(choice);
        return values;
    }
};

TEST(Cache, KeysDependOnEveryOptionThatChangesExamplesAndOnNoOther) {
    Options setting;
    const config::Json source{{"path", setting.rows}};
    const auto with = [&](const char* key, config::Json value) {
        config::Json changed = source;
        changed[key] = std::move(value);
        return config::Json::array({changed});
    };
    const std::map<std::string, std::vector<config::Json>> texts = {
        {"model.path", {setting.other_model}},
        {"model.adapter_name_or_path", {setting.other_model}},
        {"data.train_file", {setting.others}},
        {"data.train_split", {"[:2]", "[1:2]", "[:2%]"}},
        {"data.eval_split", {"[:2]", "[:1]+[2:]"}},
        {"data.datasets",
         {with("path", setting.others), with("format", "text"), with("columns", {{"text", "t"}}),
          with("template", "chatml"), with("max_samples", 2), with("split", "[:2]"),
          config::Json::array({source, source})}},
        {"data.eval_file", {setting.rows, setting.others}},
        {"data.eval_files", {{{"one", setting.rows}}, {{"one", setting.rows}, {"two", setting.others}}}},
        {"data.image_root", {setting.other_model}},
        {"model.special_tokens", {{{"eos_token", "a"}}, {{"eos_token", "b"}}}},
        {"data.columns", {{{"text", "t"}}, {{"text", "u"}}}},
        {"data.template", {"chatml", "zephyr"}},
        {"data.chat_template_kwargs", {{{"enable_thinking", false}}}}};
    const std::vector<std::string> before = setting.keys();
    ASSERT_EQ(before, setting.keys());
    for (const config::Option& option : setting.options.options()) {
        const std::string name = option.full_name();
        ASSERT_TRUE(option.changes_examples || option.section != "data")
            << name << ": say in src/config/options/examples.cpp whether encoded rows depend on it";
        const bool depends = option.changes_examples.value_or(false);
        const auto found = texts.find(name);
        const auto values = found == texts.end() ? Options::other_values(option) : found->second;
        ASSERT_TRUE(!depends || !values.empty()) << name << ": give this test other values of it";
        std::set<std::vector<std::string>> seen{before};
        for (const config::Json& value : values) {
            option.set(value);
            const std::vector<std::string> after = setting.keys();
            setting.config = setting.base;
            EXPECT_EQ(depends, seen.insert(after).second) << name << " " << value;
        }
    }
}

// What fuzzing begins with must be a file that is read, or the target sees refusals alone.
TEST(Cache, TheSeedOfTheFuzzTargetIsAccepted) {
    const auto rows = open_cache_file(test::source_folder() / "tests/fuzz/corpus/row_cache/three.rows");
    ASSERT_TRUE(rows.has_value());
    EXPECT_EQ(rows->store->rows(), 3);
    EXPECT_EQ(rows->store->sample(0).ids, (std::vector<int32_t>{1, 2, 3, 4}));
    EXPECT_EQ(rows->store->sample(2).segments, (Segments{{0, 2}, {2, 2}}));
}

TEST(Cache, DamagedFilesAreFoundAndMadeAgain) {
    Setting setting;
    const Dataset direct = setting.load();
    fs::path file;
    for (const fs::path& path : setting.files(".rows"))
        if (path.extension() == ".rows") file = path;
    const std::string whole = read_file(file);
    const auto spoil = [&](std::string content) {
        fs::remove(file);  // the map of `direct` keeps the old one
        std::ofstream(file, std::ios::binary) << content;
        const int before = setting.encoders;
        testing::internal::CaptureStderr();
        expect_same(setting.load(), direct);
        toy::expect_contains(testing::internal::GetCapturedStderr(), {"is damaged"});
        EXPECT_EQ(setting.encoders, before + 1);
        EXPECT_EQ(read_file(file), whole);
    };
    for (const std::size_t at : {std::size_t{0}, std::size_t{9}, std::size_t{50}, std::size_t{64}, whole.size() / 2,
                                 whole.size() - 300, whole.size() - 1}) {
        std::string content = whole;
        content[at] ^= 0x10;
        spoil(content);
    }
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{63}, std::size_t{64}, whole.size() / 2, whole.size() - 1})
        spoil(whole.substr(0, size));
    spoil(whole + "x");
}

// Checksums keep accidents out, not intent: a file of a shared folder may be anyone's.
TEST(Cache, NothingOutsideOfAFileIsRead) {
    const toy::Folder folder;
    const fs::path path = folder.path() / "a.rows";
    {
        CacheWriter writer(path);
        StorePart part;
        part.append({{1, 2, 3, 4}, {-100, 2, -100, 4}, {5, 6, 0, 1}, {{0, 2}, {2, 2}}, false, 2}, 0, 0);
        part.append({{1, 2, 3}, {1, 2, 3}, {}, {}, false, 2}, 1, 0);
        writer.append(std::move(part));
        writer.finish({.rows = 2, .format = config::DataFormat::tokenized});
    }
    const std::string whole = read_file(path);
    ASSERT_EQ(open_cache_file(path)->store->rows(), 2);
    constexpr std::size_t words = sizeof(CacheHeader);
    // 4 ids, 2 runs in 5 words, 4 positions, 2 segments in 6 words; 3 ids
    const std::size_t records = words + (22 * 4 + 7) / 8 * 8;
    const auto changed = [&](std::size_t at, int32_t value) {
        std::string content = whole;
        std::memcpy(content.data() + at, &value, sizeof value);
        seal_cache_file({reinterpret_cast<uint8_t*>(content.data()), content.size()});
        fs::remove(path);
        std::ofstream(path, std::ios::binary) << content;
    };
    const auto refused = [&](std::size_t at, int32_t value, const char* why) {
        changed(at, value);
        testing::internal::CaptureStderr();
        EXPECT_FALSE(open_cache_file(path)) << at;
        toy::expect_contains(testing::internal::GetCapturedStderr(), {"is damaged", why});
    };
    refused(records + offsetof(RowRecord, start), 8, "lies outside");
    refused(records + offsetof(RowRecord, start), -1, "lies outside");
    refused(records + offsetof(RowRecord, length), 2000000000, "lies outside");
    refused(records + offsetof(RowRecord, length), -4, "lies outside");
    refused(records + offsetof(RowRecord, length), 0, "lies outside");
    refused(records + offsetof(RowRecord, targets), 5, "lies outside");
    refused(records + offsetof(RowRecord, longest), 5, "lies outside");
    refused(records + offsetof(RowRecord, segments), 1, "lies outside");
    refused(records + sizeof(RowRecord) + offsetof(RowRecord, segments), 2, "lies outside");
    refused(records + sizeof(RowRecord) + offsetof(RowRecord, flags), RowRecord::given_labels, "lies outside");
    refused(records + 2 * sizeof(RowRecord), 0, "report");
    for (const auto& [word, value] : {std::pair{4, 1000000},
                                      {4, -1},
                                      {4, 7},
                                      {5, -1},
                                      {6, 5},
                                      {6, -2000000000},
                                      {8, 5},
                                      {13, 3},
                                      {13, -1},
                                      {13, 2000000000},
                                      {14, 0},
                                      {15, 1},
                                      {16, 0},
                                      {17, 0},
                                      {17, 1},
                                      {18, -1}}) {
        changed(words + static_cast<std::size_t>(word) * sizeof(int32_t), value);
        const auto rows = open_cache_file(path);
        ASSERT_TRUE(rows) << word;
        toy::expect_contains(toy::message_of("data.damaged-file", [&] { rows->store->sample(0); }),
                             {"a.rows", "is damaged"});
        EXPECT_EQ(rows->store->sample(1).ids, (std::vector<int32_t>{1, 2, 3}));
    }
}

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
    const auto an_hour_ago = std::chrono::hours(1);
    fs::last_write_time(setting.file, fs::file_time_type::clock::now() - an_hour_ago);
    std::this_thread::sleep_for(std::chrono::seconds(4));  // ctime cannot be set
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
