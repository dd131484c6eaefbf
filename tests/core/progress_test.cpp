#include "unsloth/core/progress.h"

#include <gtest/gtest.h>

#include <cmath>

namespace unsloth {
namespace {

const std::vector<ProgressField> step{{"1200/50000", 6},      {"loss 1.2345", 5}, {"lr 2.00e-04", 2},
                                      {"grad norm 0.512", 1}, {"17521 tok/s", 3}, {"left 1:23:45", 4}};

TEST(ProgressLine, FitsTheTerminal) {
    EXPECT_EQ(progress_line(0.25, step, 40), "1200/50000  loss 1.2345  left 1:23:45");
    EXPECT_EQ(progress_line(0.25, step, 60), "[####...............] 1200/50000  loss 1.2345  left 1:23:45");
    EXPECT_EQ(progress_line(0.25, step, 80),
              "[###..........] 1200/50000  loss 1.2345  lr 2.00e-04  17521 tok/s  left 1:23:45");
    EXPECT_EQ(
        progress_line(0.25, step, 120),
        "[#########...........................] 1200/50000  loss 1.2345  lr 2.00e-04  grad norm 0.512  17521 tok/s  "
        "left 1:23:45");
}

TEST(ProgressLine, NeverFillsALineAndHasABarFrom60Columns) {
    for (int columns = 1; columns <= 300; ++columns) {
        const std::string line = progress_line(0.5, step, columns);
        EXPECT_LT(line.size(), static_cast<std::size_t>(columns));
        if (columns >= 60) {
            EXPECT_EQ(line.front(), '[') << line;
        }
    }
}

TEST(ProgressLine, TheBarIsTheShare) {
    const std::vector<ProgressField> none{{"x", 0}};
    EXPECT_EQ(progress_line(0, none, 14), "[.........] x");
    EXPECT_EQ(progress_line(0.5, none, 15), "[#####.....] x");
    EXPECT_EQ(progress_line(1, none, 15), "[##########] x");
    EXPECT_EQ(progress_line(1.5, none, 15), "[##########] x");
    EXPECT_EQ(progress_line(-1, none, 15), "x");
}

TEST(DurationText, HasHoursWhereThereAreSome) {
    EXPECT_EQ(duration_text(0), "00:00");
    EXPECT_EQ(duration_text(59.6), "01:00");
    EXPECT_EQ(duration_text(3599), "59:59");
    EXPECT_EQ(duration_text(7325), "2:02:05");
    for (const double none : {-1.0, 1e300, double{NAN}, double{INFINITY}}) EXPECT_EQ(duration_text(none), "?") << none;
}

}  // namespace
}  // namespace unsloth
