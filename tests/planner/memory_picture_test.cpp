#include "unsloth/planner/memory_picture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <sstream>

#include "unsloth/core/error.h"

namespace unsloth::planner {
namespace {

constexpr int64_t gib = int64_t{1} << 30;

TEST(MemoryPicture, StacksBandsOverTime) {
    MemoryOverTime memory{
        {10, 30}, {"forward", "backward"}, {{"weights", {2 * gib, 2 * gib}}, {"kept", {0, gib}}}, 4 * gib};
    EXPECT_EQ(memory.most(), 3 * gib);
    const std::string svg = memory_svg(memory, "a < b");
    const auto has = [&](const std::string& part) { return svg.find(part) != std::string::npos; };
    EXPECT_TRUE(has("a &lt; b"));
    EXPECT_TRUE(has("weights, 2.00") && has("kept, 1.00") && has("planned 4.00 GiB"));
    EXPECT_TRUE(has("forward") && has("backward") && has("40 ms"));
    // 4.2 GiB are 300 high; the forward pass is the first quarter of 620.
    EXPECT_TRUE(has("<polygon fill=\"#4e79a7\" points=\"60.0,201.1 215.0,201.1 215.0,201.1 680.0,201.1 680.0,344.0 "))
        << svg;
    EXPECT_TRUE(has("<polygon fill=\"#f28e2b\" points=\"60.0,201.1 215.0,201.1 215.0,129.7 680.0,129.7 680.0,201.1 "))
        << svg;
}

TEST(MemoryPicture, StaysWithinItsFrameWhateverTheTimesAndBytes) {
    constexpr int64_t most = int64_t{1} << 60;
    const std::vector<double> times[] = {{0}, {0, 0}, {5e-324}, {5e-324, 1e300}, {1e300, 1e300}, {1, 1 + 1e-15}};
    for (const std::vector<double>& ms : times)
        for (const int64_t planned : {int64_t{0}, int64_t{1}, most})
            for (const int64_t bytes : {int64_t{0}, int64_t{1}, most}) {
                const std::vector<int64_t> band(ms.size(), bytes);
                const std::string svg =
                    memory_svg({ms, std::vector<std::string>(ms.size(), "head"), {{"a", band}}, planned}, "x");
                EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
                EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
                EXPECT_LT(svg.size(), 8192U);
                const std::size_t begin = svg.find("points=\"") + 8;
                std::istringstream points(svg.substr(begin, svg.find('"', begin) - begin));
                char comma = 0;
                for (double x = 0, y = 0; points >> x >> comma >> y;)
                    EXPECT_TRUE(x >= 60 && x <= 680 && y >= 44 && y <= 344) << x << " " << y;
            }
    for (const double none : {-1.0, double{NAN}, double{INFINITY}})
        EXPECT_THROW(memory_svg({{none}, {"head"}, {{"a", {1}}}, 1}, "x"), CheckError) << none;
}

TEST(MemoryPicture, EveryBandHasAColourOfItsOwn) {
    MemoryOverTime memory{{10}, {"forward"}, {}, 10 * gib};
    for (std::size_t i = 0; i < most_bands; ++i) memory.bands.push_back({cat("band ", i), {gib}});
    const std::string svg = memory_svg(memory, "many");
    std::set<std::string> colours;
    for (std::size_t at = 0; (at = svg.find("<polygon fill=", at)) != std::string::npos; ++at)
        colours.insert(svg.substr(at + 15, 7));
    EXPECT_EQ(colours.size(), most_bands);
    memory.bands.push_back({"one more", {gib}});  // had the first one's colour
    EXPECT_THROW(memory_svg(memory, "too many"), CheckError);
}

}  // namespace
}  // namespace unsloth::planner
