// A cached file that is damaged, forged or cut off.
#include <gtest/gtest.h>

#include "data/cache_support.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

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
    refused(records + offsetof(RowRecord, start), 8, "is outside");
    refused(records + offsetof(RowRecord, start), -1, "is outside");
    refused(records + offsetof(RowRecord, length), 2000000000, "is outside");
    refused(records + offsetof(RowRecord, length), -4, "is outside");
    refused(records + offsetof(RowRecord, length), 0, "is outside");
    refused(records + offsetof(RowRecord, targets), 5, "is outside");
    refused(records + offsetof(RowRecord, longest), 5, "is outside");
    refused(records + offsetof(RowRecord, segments), 1, "is outside");
    refused(records + sizeof(RowRecord) + offsetof(RowRecord, segments), 2, "is outside");
    refused(records + sizeof(RowRecord) + offsetof(RowRecord, flags), RowRecord::given_labels, "is outside");
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

}  // namespace
}  // namespace unsloth::data
