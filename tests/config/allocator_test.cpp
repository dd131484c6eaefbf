// hardware.allocator.
#include "unsloth/config/allocator.h"

#include "tests/config/support.h"

namespace unsloth::testing {
namespace {

std::string settings_of(const std::string& value) {
    return config::allocator_settings(config::load_config({}, {"--allocator", value}).config.hardware);
}

TEST(Allocator, SettingsAreSpelledAsLibTorchReadsThem) {
    EXPECT_EQ(config::allocator_settings({}), "");
    EXPECT_EQ(settings_of("{}"), "");
    EXPECT_EQ(settings_of(R"({"backend": "cudaMallocAsync"})"), "backend:cudaMallocAsync");
    EXPECT_EQ(settings_of(R"({"max_split_size_mb": 512, "expandable_segments": false, "roundup_power2_divisions": 4,
                              "garbage_collection_threshold": 0.8})"),
              "max_split_size_mb:512,expandable_segments:False,roundup_power2_divisions:4,"
              "garbage_collection_threshold:0.8");
    EXPECT_EQ(load_text(R"({"hardware": {"allocator": null}})").config.hardware.allocator, "{}");
}

TEST(Allocator, PresetsAreSettings) {
    EXPECT_EQ(settings_of("throughput"), "backend:native,expandable_segments:False");
    EXPECT_EQ(settings_of("low_memory"), "expandable_segments:True");
    EXPECT_EQ(settings_of("long_context"), "expandable_segments:True,roundup_power2_divisions:8");
}

TEST(Allocator, WhatItRefuses) {
    const auto mistake = [](const std::string& value) { return flag_error({"--allocator", value}); };
    EXPECT_CONTAINS(mistake("fastest"), "expected one of throughput");
    EXPECT_CONTAINS(mistake(R"({"backend": "jemalloc"})"), "backend: expected native or cudaMallocAsync");
    EXPECT_CONTAINS(mistake(R"({"backend": 3})"), "backend: expected native or cudaMallocAsync");
    EXPECT_CONTAINS(mistake(R"({"max_split_size_mb": 20})"), "above 20");
    EXPECT_CONTAINS(mistake(R"({"expandable_segments": 1})"), "true or false");
    EXPECT_CONTAINS(mistake(R"({"roundup_power2_divisions": 6})"), "power of two");
    EXPECT_CONTAINS(mistake(R"({"garbage_collection_threshold": 1.0})"), "between 0 and 1");
    EXPECT_CONTAINS(mistake(R"({"max_split_size": 512})"), "no setting 'max_split_size'");
    EXPECT_CONTAINS(mistake(R"({"backend": "cudaMallocAsync", "max_split_size_mb": 512})"), "heeds no other setting");
}

}  // namespace
}  // namespace unsloth::testing
