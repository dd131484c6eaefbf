#include "unsloth/core/most_used.h"

#include <gtest/gtest.h>

#include <set>

namespace unsloth {
namespace {

TEST(MostUsed, AKeyHasAPlaceFromItsSecondUseOn) {
    MostUsed<int, int> held(2);
    EXPECT_EQ(held.use(1), nullptr);
    int* value = held.use(1);
    ASSERT_NE(value, nullptr);
    *value = 7;
    EXPECT_EQ(held.use(2), nullptr);
    ASSERT_NE(held.use(2), nullptr);
    EXPECT_EQ(*held.use(1), 7);
    EXPECT_EQ(held.size(), 2U);
}

// Not those that came first.
TEST(MostUsed, KeepsTheKeysThatComeMostOften) {
    MostUsed<int, int> held(3);
    for (int key = 0; key < 10; ++key) held.use(key), held.use(key);
    for (int key = 0; key < 3; ++key) EXPECT_NE(held.use(key), nullptr) << key;
    EXPECT_EQ(held.use(9), nullptr) << "three uses are not more than twice three";
    for (int i = 0; i < 8; ++i)
        for (const int key : {7, 8, 9}) held.use(key);
    for (const int key : {7, 8, 9}) EXPECT_NE(held.use(key), nullptr) << key;
    EXPECT_EQ(held.use(0), nullptr);
    EXPECT_EQ(held.size(), 3U);
}

TEST(MostUsed, AKeyThatTakesAPlaceHasAFreshValue) {
    MostUsed<int, int> held(1);
    held.use(1);
    *held.use(1) = 7;
    int uses = 0;
    while (held.use(2) == nullptr && uses < 100) ++uses;
    EXPECT_EQ(*held.use(2), 0);
    EXPECT_EQ(uses + 1, 5) << "more than twice the two uses of key 1";
}

TEST(MostUsed, KeysThatComeEquallyOftenDoNotDriveEachOtherOut) {
    MostUsed<int, std::set<int>> held(4);
    int changes = 0;
    for (int round = 0; round < 2000; ++round)
        for (int key = 0; key < 100; ++key)
            if (std::set<int>* value = held.use(key); value != nullptr && value->insert(key).second) ++changes;
    EXPECT_LE(changes, 8);
}

TEST(MostUsed, WhatCameLongAgoMakesWay) {
    MostUsed<int, int> held(1);
    for (int i = 0; i < 1000; ++i) held.use(1);
    int uses = 0;
    while (held.use(2) == nullptr && uses < 5000) ++uses;
    EXPECT_LT(uses, 1000);
}

TEST(MostUsed, WhatItRemembersIsBounded) {
    MostUsed<int, int> held(8);
    for (int key = 0; key < 100000; ++key) held.use(key);
    EXPECT_LE(held.known_keys(), 2U * 256 * 8);
    EXPECT_EQ(held.size(), 0U);
}

}  // namespace
}  // namespace unsloth
