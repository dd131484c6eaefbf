// Regions nest, and the table's lines add up to what was timed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::ops {
namespace {

TEST(Profiler, RecordsNestedRegionsInOrder) {
    Context ctx(at::kCPU);
    Profiler profiler(ctx);
    ctx.profiler = &profiler;
    {
        const Region outer(ctx, "forward");
        {
            const Region inner(ctx, "norm");
        }
        {
            const Region inner(ctx, "gemm");
        }
    }
    const std::vector<Span> spans = profiler.take();
    ASSERT_EQ(spans.size(), 3U);
    EXPECT_EQ(spans[0].name, "forward");
    EXPECT_EQ(spans[2].name, "gemm");
    EXPECT_EQ(spans[2].parent, 0);
    EXPECT_EQ(spans[2].depth, 1);
    EXPECT_LE(spans[0].begin_us, spans[1].begin_us);
    EXPECT_LE(spans[1].end_us, spans[2].begin_us);
    EXPECT_LE(spans[2].end_us, spans[0].end_us);
    EXPECT_TRUE(profiler.take().empty()) << "taken regions are gone";
    profiler.begin("open");
    EXPECT_THROW((void)profiler.take(), CheckError);
}

TEST(Profiler, WithoutOneARegionCostsNothing) {
    Context ctx(at::kCPU);
    const Region region(ctx, "forward");
    EXPECT_EQ(ctx.profiler, nullptr);
}

TEST(Profiler, TheTablesLinesAddUp) {
    // 100 us of which 70 lie in operators; the layer between them adds no line.
    const std::vector<Span> spans = {{"forward", -1, 0, 0, 100}, {"layer", 0, 1, 0, 90},  {"gemm", 1, 2, 0, 50},
                                     {"gemm", 1, 2, 60, 70},     {"norm", 0, 1, 90, 100}, {"update", -1, 0, 100, 140}};
    const std::string table = region_table(spans);
    const auto line = [&](const std::string& name) {
        const std::size_t at = table.find(name);
        return at == std::string::npos ? std::string() : table.substr(at, table.find('\n', at) - at);
    };
    EXPECT_NE(line("forward / gemm").find("2       0.060   42.9 %"), std::string::npos) << table;
    EXPECT_NE(line("forward / norm").find("0.010"), std::string::npos) << table;
    EXPECT_NE(line("forward / (between)").find("0.030"), std::string::npos) << table;
    EXPECT_NE(line("update").find("0.040"), std::string::npos) << table;
    EXPECT_NE(line("in all").find("0.140  100.0 %"), std::string::npos) << table;
    EXPECT_EQ(table.find("layer"), std::string::npos) << table;
}

TEST(Profiler, WritesATraceThatPerfettoReads) {
    const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "trace.json";
    write_chrome_trace(path, {{"forward", -1, 0, 0, 100}, {"gemm", 0, 1, 10, 60}});
    std::ifstream file(path);
    const nlohmann::json trace = nlohmann::json::parse(file);
    ASSERT_EQ(trace.at("traceEvents").size(), 2U);
    EXPECT_EQ(trace["traceEvents"][1]["name"], "gemm");
    EXPECT_EQ(trace["traceEvents"][1]["ph"], "X");
    EXPECT_EQ(trace["traceEvents"][1]["ts"], 10.0);
    EXPECT_EQ(trace["traceEvents"][1]["dur"], 50.0);
}

}  // namespace
}  // namespace unsloth::ops
