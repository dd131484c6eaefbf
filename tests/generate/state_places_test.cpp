#include "unsloth/generate/state_places.h"

#include <gtest/gtest.h>

#include "unsloth/core/error.h"

namespace unsloth::generate {
namespace {

TEST(StatePlaces, SequencesHaveTheirOwn) {
    StatePlaces places(2, 1);
    EXPECT_EQ(places.take(), 0);
    EXPECT_EQ(places.take(), 1);
    EXPECT_THROW(places.take(), CheckError);
    places.give_back(0);
    EXPECT_EQ(places.take(), 0);
    EXPECT_FALSE(StatePlaces(2, 0).keeps_snapshots());
    EXPECT_EQ(StatePlaces(2, 0).allocate(), std::nullopt);
}

TEST(StatePlaces, TheSnapshotNotUsedForLongestMakesRoom) {
    StatePlaces places(3, 2);
    const auto keep = [&](StatePlaces::PrefixHash text) {
        const int32_t place = places.allocate().value();
        EXPECT_FALSE(places.has(text)) << "it is not there yet";
        places.commit(place, text);
        return place;
    };
    EXPECT_EQ(keep(7), 3);
    EXPECT_EQ(keep(8), 4);
    places.release(places.hold(7));
    EXPECT_EQ(keep(9), 4);
    EXPECT_TRUE(places.has(7) && places.has(9) && !places.has(8));
}

TEST(StatePlaces, WhatIsHeldOrWrittenStays) {
    StatePlaces places(1, 2);
    const int32_t written = places.allocate().value();
    const int32_t held = places.allocate().value();
    EXPECT_EQ(places.allocate(), std::nullopt);
    places.commit(held, 5);
    EXPECT_EQ(places.hold(5), held);
    EXPECT_EQ(places.allocate(), std::nullopt);
    places.commit(written, 5);
    EXPECT_EQ(places.hold(5), held) << "the first one of a text is kept";
    EXPECT_EQ(places.allocate(), written);
}

}  // namespace
}  // namespace unsloth::generate
