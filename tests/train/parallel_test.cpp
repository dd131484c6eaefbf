// How ranks share training, by their number alone.
#include "unsloth/placement/parallel.h"

#include <gtest/gtest.h>

#include "unsloth/train/checkpoint.h"

namespace unsloth {
namespace {

std::vector<int> writers(const comm::MeshShape& mesh, weights::Share share, int begin, int end) {
    std::vector<int> ranks;
    for (int rank = begin; rank < end; ++rank)
        if (placement::writes_part(mesh, share, rank)) ranks.push_back(rank);
    return ranks;
}

TEST(PartsOfACheckpoint, AreWrittenByTheirFirstRank) {
    for (const comm::MeshShape& mesh : {comm::MeshShape{}, {.dp = 4}, {.dp = 4, .pp = 2}, {.cp = 2, .tp = 3, .pp = 2}})
        for (const int size : {1, mesh.size() / mesh.pp}) {  // alike, or a slice each
            const train::StatePart part{{0, mesh.pp, {}}, {0, size}};
            std::vector<int> ranks;
            for (int number = 0; number < part.count(); ++number)
                ranks.push_back(part.with_number(number).writer(mesh.size()));
            EXPECT_EQ(writers(mesh, part.share, 0, mesh.size()), ranks) << mesh.size() << " ranks, " << size;
        }
    const comm::MeshShape mesh{.dp = 4, .pp = 2};
    EXPECT_EQ(writers(mesh, {}, 0, 4), (std::vector<int>{0})) << "a machine with ranks of one stage alone";
    EXPECT_EQ(writers(mesh, {}, 4, 8), (std::vector<int>{4}));
}

}  // namespace
}  // namespace unsloth
