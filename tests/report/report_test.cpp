// Runs' folders read, and shown as a page, on a terminal and as TensorBoard's events.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/report_support.h"

namespace unsloth::report {
namespace {

TEST(RunReader, ReadsRowsAsTheyComeAndNoHalfOnes) {
    const RunFolder folder;
    folder.append(step_line(1, 3) + step_line(2, 2).substr(0, 30));
    RunReader reader(folder.path());
    ASSERT_EQ(reader.run().steps.size(), 1u);
    EXPECT_FALSE(reader.update());
    folder.append(step_line(2, 2).substr(30) + "not json\n{\"step\": 3, \"loss\": null}\n");
    EXPECT_TRUE(reader.update());
    ASSERT_EQ(reader.run().steps.size(), 3u);
    EXPECT_EQ(reader.run().steps[1].loss, 2);
    EXPECT_TRUE(std::isnan(reader.run().steps[2].loss));
    folder.append(R"({"event": "summary", "exit_reason": "finished", "seconds": 61.5})"
                  "\n");
    reader.update();
    ASSERT_TRUE(reader.run().ending);
    EXPECT_EQ(reader.run().ending->exit_reason, "finished");
}

TEST(RunReader, ARunThatGoesOnFromACheckpointIsReadAnew) {
    const RunFolder folder;
    folder.append(step_line(1, 3) + step_line(2, 2) + step_line(3, 1));
    RunReader reader(folder.path());
    ASSERT_EQ(reader.run().steps.size(), 3u);
    folder.write("other", step_line(1, 3) + step_line(2, 7));
    std::filesystem::rename(folder.path() / "other", folder.path() / "metrics.jsonl");
    reader.update();
    ASSERT_EQ(reader.run().steps.size(), 2u);
    EXPECT_EQ(reader.run().steps[1].loss, 7);
}

TEST(RunReader, WhatIsNoRunIsRefused) {
    const RunFolder folder;
    EXPECT_THROW(RunReader(folder.path()), Error);
    EXPECT_THROW(RunReader(folder.path() / "absent"), Error);
}

TEST(RunReader, KnowsHowMuchIsLeft) {
    RunFolder folder;
    const FolderLock running(folder.path());
    report::Run run = read_run(example_run(folder).path());
    EXPECT_EQ(run.total_steps, 200);
    EXPECT_DOUBLE_EQ(run.share(), 0.5);
    EXPECT_DOUBLE_EQ(run.seconds_left(), 50);
    EXPECT_DOUBLE_EQ(run.planned_gib, 12);
    EXPECT_EQ(run.row_tokens, (std::vector<int64_t>{1, 1, 1, 0, 0, 0, 0, 0, 0, 2, 1}));
    run.total_steps = 0;
    EXPECT_DOUBLE_EQ(run.share(), 0.5);  // by max_steps
    run.config = R"({"training": {"max_steps": -1, "num_train_epochs": 40}})";
    EXPECT_DOUBLE_EQ(run.share(), 0.25);
    run.config.clear();
    EXPECT_TRUE(std::isnan(run.share()));
}

TEST(Series, ThinningKeepsSpikes) {
    Points points;
    for (int i = 0; i < 10000; ++i) points.emplace_back(i, i == 5000 ? 9.0 : i == 5001 ? -3.0 : 1.0);
    const Points few = thinned(points, 100);
    EXPECT_LE(few.size(), 100u);
    EXPECT_NE(std::find(few.begin(), few.end(), std::pair(5000.0, 9.0)), few.end());
    EXPECT_NE(std::find(few.begin(), few.end(), std::pair(5001.0, -3.0)), few.end());
    EXPECT_TRUE(std::is_sorted(few.begin(), few.end(), [](auto& a, auto& b) { return a.first < b.first; }));
}

TEST(Series, SmoothingIsAMeanThatBeginsAtTheFirstValue) {
    EXPECT_EQ(smoothed({{1, 4}, {2, 4}, {3, 4}}).back(), std::pair(3.0, 4.0));
    Points points;
    for (int i = 0; i < 1000; ++i) points.emplace_back(i, i % 2);
    EXPECT_NEAR(smoothed(points).back().second, 0.5, 0.02);
}

TEST(Series, TicksAreRound) {
    EXPECT_EQ(ticks({0, 10}, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
    EXPECT_EQ(ticks({0.12, 0.31}, 4).size(), 4u);  // 0.15, 0.2, 0.25, 0.3
    EXPECT_EQ(ticks({3, 3}, 4), std::vector<double>{3});
    EXPECT_EQ(short_number(12345), "12.3k");
    EXPECT_EQ(short_number(2e-4), "0.0002");
}

TEST(HardwareRate, OfCardsByTheDriversNames) {
    EXPECT_EQ(dense_bf16_rate("NVIDIA H200"), 989e12);
    EXPECT_EQ(dense_bf16_rate("NVIDIA H100 80GB HBM3"), 989e12);
    EXPECT_EQ(dense_bf16_rate("NVIDIA H100 PCIe"), 756e12);
    EXPECT_EQ(dense_bf16_rate("NVIDIA A100-SXM4-80GB"), 312e12);
    EXPECT_EQ(dense_bf16_rate("NVIDIA A10G"), 70e12);
    EXPECT_EQ(dense_bf16_rate("NVIDIA GeForce RTX 4090"), 165.2e12);
    for (const char* unknown :
         {"", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce GTX 1080"})
        EXPECT_EQ(dense_bf16_rate(unknown), 0) << unknown;
}

TEST(Plot, ShowsThePlanAndSamplesWhereThereIsRoom) {
    RunFolder folder;
    const FolderLock running(folder.path());
    example_on_gpu(folder).write(
        samples_file,
        R"({"step": 50, "prompt": "old", "answer": "gone"})"
        "\n"
        R"({"step": 100, "prompt": "What kind\nof clause is this? Say it in a word.", "answer": "說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說說"})"
        "\n");
    const report::Run run = read_run(folder.path());
    for (const int columns : {40, 60, 80, 200})
        for (const int rows : {23, 40, 60}) {
            const std::string view = run_view(run, columns, rows, false);
            EXPECT_LE(std::count(view.begin(), view.end(), '\n'), rows) << view;
            std::istringstream lines(view);
            for (std::string line; std::getline(lines, line);) {
                int taken = 0;
                for (const char c : line)
                    taken += (c & 0xC0) == 0x80 ? 0 : static_cast<unsigned char>(c) == 0xE8 ? 2 : 1;
                EXPECT_LE(taken, columns) << line;
            }
            EXPECT_CONTAINS(view, "2100 tok/s (plan 2500)");
            EXPECT_TRUE(rows == 23 || contains(view, "memory: peak 10.5 GiB, planned 12 GiB")) << view;
            EXPECT_CONTAINS(view, "What kind of ");
            EXPECT_FALSE(contains(view, "gone"));
        }
    EXPECT_CONTAINS(run_view(run, 80, 40, false), "12 GiB  base weights 9.00 GiB\n  layer inputs 4.00 GiB\n");
}

TEST(Plot, DrawsWithinItsFrame) {
    RunFolder folder;
    const FolderLock running(folder.path());
    const report::Run run = read_run(example_run(folder).path());
    const std::string view = run_view(run, 80, 40, false);
    EXPECT_CONTAINS(view, "step 100/200  loss 2.01  eval loss 1.75  2100 tok/s  10.5 GiB  left 00:50");
    EXPECT_CONTAINS(view, "step 100");
    EXPECT_FALSE(contains(view, "\033"));
    EXPECT_CONTAINS(run_view(run, 80, 40, true), "\033[36m");
    std::size_t lines = 0, start = 0;
    for (std::size_t end; (end = view.find('\n', start)) != std::string::npos; start = end + 1, ++lines) {
        const std::string line = view.substr(start, end - start);
        const auto letters = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
        EXPECT_LE(letters, 80) << line;
    }
    EXPECT_LE(lines, 40u);
    EXPECT_CONTAINS(plot("x", {}, 40, 8, false), "no values");
    EXPECT_CONTAINS(plot("x", {{{{1, 2}}}}, 40, 8, false), "step 2");
}

TEST(Comparison, TellsFiguresAndTheOptionsThatDiffer) {
    RunFolder one, two;
    example_run(one), example_run(two);
    two.write("run_config.json", R"({"model": {"path": "<base> & co"}, "training": {"max_steps": 200, "seed": 1}})");
    const std::string text = comparison({read_run(one.path()), read_run(two.path())}, 100, false);
    EXPECT_CONTAINS(text, "training.seed: - | 1");
    EXPECT_FALSE(contains(text, "model.path"));
    EXPECT_CONTAINS(text, one.path().filename().string());
    EXPECT_CONTAINS(text, "1.75");
}

TEST(EventFile, ChecksumsAreCastagnolis) {
    EXPECT_EQ(crc32c("123456789"), 0xE3069283u);  // RFC 3720, B.4
    EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
    EXPECT_EQ(crc32c(""), 0u);
}

std::string hex(const std::string& bytes) {
    std::string text;
    char two[3];
    for (const char byte : bytes) {
        std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
        text += two;
    }
    return text;
}

// The bytes that TensorFlow's protocol buffers have for these values.
TEST(EventFile, EventsAreTensorFlows) {
    EXPECT_EQ(hex(version_event(1.0)), "09000000000000f03f1a0d627261696e2e4576656e743a32");
    EXPECT_EQ(hex(scalars_event(1.0, 300, {{"a", 0.5}})), "09000000000000f03f10ac022a0a0a080a0161150000003f");
    const std::string frame = framed_record("x");
    EXPECT_EQ(frame.size(), 8u + 4 + 1 + 4);
    EXPECT_EQ(hex(frame.substr(0, 8)), "0100000000000000");
}

}  // namespace
}  // namespace unsloth::report
