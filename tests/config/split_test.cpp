// Splits and slices as datasets' ReadInstruction.from_spec reads and rounds them.
#include "unsloth/config/split.h"

#include <gtest/gtest.h>

#include "config/support.h"

namespace unsloth::testing {
namespace {

using Range = std::pair<int64_t, int64_t>;

Range range(const std::string& text, int64_t rows) {
    const auto parts = config::parse_split(text, "split");
    EXPECT_EQ(parts.size(), 1u) << text;
    return parts.at(0).range(rows);
}

TEST(Split, SlicesAreThoseOfDatasets) {
    EXPECT_EQ(range("train", 10), Range(0, 10));
    EXPECT_EQ(range("train[:20%]", 10), Range(0, 2));
    EXPECT_EQ(range("train[100:500]", 1000), Range(100, 500));
    EXPECT_EQ(range("[100:500]", 300), Range(100, 300));
    EXPECT_EQ(range("train[400:500]", 300), Range(300, 300));
    EXPECT_EQ(range("train[-10%:]", 95), Range(85, 95));  // -9.5 becomes -10
    EXPECT_EQ(range("train[-5:]", 95), Range(90, 95));
    EXPECT_EQ(range("train[:-5]", 95), Range(0, 90));
    EXPECT_EQ(range("train[-500:]", 95), Range(0, 95));
    // Boundaries are rounded to the nearest row, halves to the even one: neighbours meet.
    EXPECT_EQ(range("train[:50%]", 5), Range(0, 2));
    EXPECT_EQ(range("train[50%:]", 5), Range(2, 5));
    EXPECT_EQ(range("train[:33%]", 999), Range(0, 330));
    EXPECT_EQ(range("train[33%:66%]", 999), Range(330, 659));
    EXPECT_EQ(range("train[:1_0]", 999), Range(0, 10));
    EXPECT_EQ(range("train[10:20%]", 200), Range(20, 40));  // one % makes both percent
}

TEST(Split, PartsAreJoined) {
    const auto parts = config::parse_split("train[:10%]+test+[5:]", "split");
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[0].name, "train");
    EXPECT_FALSE(parts[0].whole());
    EXPECT_EQ(parts[1].name, "test");
    EXPECT_TRUE(parts[1].whole());
    EXPECT_EQ(parts[2].name, "");
    EXPECT_EQ(parts[2].range(8), Range(5, 8));
    EXPECT_EQ(config::parse_split("", "split").size(), 1u);
}

TEST(Split, OtherTextsAreRefused) {
    for (const char* text : {"train[", "train[:20%", "train]", "train[20%]", "train[a:b]", "train[:120%]", "train+",
                             "+train", "train[:1.5%]", "train[:5](closest)", "train:5"})
        EXPECT_CONTAINS(usage_message([&] { config::parse_split(text, "data.train_split"); }),
                        "data.train_split: '" + std::string(text) + "' is no split");
    EXPECT_CONTAINS(file_error(R"({"data": {"train_file": "a", "train_split": "train[:"}})"), "data.train_split");
    EXPECT_CONTAINS(file_error(R"({"data": {"train_file": "a", "eval_split": "[5]"}})"), "data.eval_split");
    EXPECT_CONTAINS(file_error(R"({"data": {"datasets": [{"path": "a"}, {"path": "b", "split": "x["}]}})"),
                    "data.datasets[1].split");
    EXPECT_CONTAINS(file_error(R"({"data": {"train_split": "test"}})"), "only applies with data.train_file");
    EXPECT_CONTAINS(file_error(R"({"data": {"train_file": "a", "eval_split": "test", "val_size": 3}})"),
                    "data.eval_split cannot be combined with data.val_size");
    EXPECT_EQ(load_text(R"({"data": {"train_file": "a", "eval_split": "test"}, "training": {"eval_steps": 3}})")
                  .config.data.eval_split,
              "test");
}

}  // namespace
}  // namespace unsloth::testing
