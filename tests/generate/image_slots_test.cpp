// Slots of images' keys: who shares them, what stays, and what has to go.
#include "unsloth/generate/image_slots.h"

#include <gtest/gtest.h>

#include "unsloth/core/error.h"

namespace unsloth::generate {
namespace {

TEST(ImageSlots, EqualImagesShareThem) {
    ImageSlots slots(4);
    EXPECT_EQ(slots.acquire({1}, 2), 0);
    EXPECT_EQ(slots.acquire({1}, 2), 0);
    EXPECT_EQ(slots.acquire({2}, 2), 2);
    EXPECT_FALSE(slots.acquire({3}, 1)) << "all are held";
    slots.release(0);
    EXPECT_FALSE(slots.acquire({3}, 1)) << "one of two let go";
    EXPECT_EQ(slots.acquire({2}, 2), 2) << "no slot is needed";
}

TEST(ImageSlots, KeysStayUntilOthersNeedTheRoom) {
    ImageSlots slots(3);
    for (int32_t image = 0; image < 3; ++image) {
        const int64_t slot = slots.acquire({image}, 1).value();
        EXPECT_FALSE(slots.has_keys(slot));
        slots.note_keys(slot);
        slots.release(slot);
    }
    const int64_t first = slots.acquire({0}, 1).value();
    EXPECT_TRUE(slots.has_keys(first));
    // Two adjacent ones beside it, of which neither is left.
    const int64_t both = slots.acquire({7}, 2).value();
    EXPECT_EQ(both, 1);
    EXPECT_FALSE(slots.has_keys(both));
    EXPECT_FALSE(slots.acquire({1}, 1));
}

TEST(ImageSlots, WhatWasUsedLongestAgoGoesFirst) {
    ImageSlots slots(3);
    const auto use = [&](int32_t image) {
        const int64_t slot = slots.acquire({image}, 1).value();
        slots.note_keys(slot);
        slots.release(slot);
        return slot;
    };
    const int64_t a = use(1), b = use(2), c = use(3);
    EXPECT_EQ(use(1), a);
    EXPECT_EQ(use(4), b);
    EXPECT_EQ(use(3), c);
}

TEST(ImageSlots, WhatWasNeverMadeIsForgotten) {
    ImageSlots slots(1);
    const int64_t slot = slots.acquire({1}, 1).value();
    slots.release(slot);
    EXPECT_THROW((void)slots.has_keys(slot), CheckError);
    EXPECT_FALSE(slots.has_keys(slots.acquire({1}, 1).value()));
    EXPECT_THROW((void)slots.acquire({2}, 2), CheckError);
}

}  // namespace
}  // namespace unsloth::generate
