// A data set of 500 rows with a cache.
#pragma once

#include "unsloth/data/cache.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/cache_file.h"
#include "data/cache_key.h"
#include "data/cache_use.h"
#include "data/seal_cache_file.h"
#include "data/toy.h"
#include "unsloth/config/option_table.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/data/loader.h"
#include "unsloth/data/prefetch.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/data/training_data.h"

namespace unsloth::data {

namespace fs = std::filesystem;

inline std::string text_rows(int count) {
    std::string text;
    for (int row = 0; row < count; ++row)
        text += cat("{\"text\": \"row ", row, std::string(static_cast<std::size_t>(row % 50), '.'), "\"}\n");
    return text;
}

struct Setting {
    toy::Folder folder;
    fs::path file = folder.write("a.jsonl", text_rows(500));
    CacheOptions cache{.folder = folder.path() / "cache", .encoder_fingerprint = "toy"};
    DatasetOptions options;
    toy::Encoder encoder;
    int encoders = 0;  ///< how often one was asked for: a hit needs none

    Dataset load() {
        return load_cached(
            {{.path = file.string()}}, options, [this](const std::string&) { return ++encoders, &encoder; }, cache);
    }
    std::vector<fs::path> files(const std::string& extension) const {
        std::vector<fs::path> found;
        if (fs::exists(cache.folder))
            for (const auto& entry : fs::directory_iterator(cache.folder))
                if (entry.path().string().find(extension) != std::string::npos) found.push_back(entry.path());
        return found;
    }
};

inline void expect_same(const Dataset& a, const Dataset& b) {
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(a.stats().trained_tokens, b.stats().trained_tokens);
    EXPECT_EQ(a.stats().bad_rows, b.stats().bad_rows);
    EXPECT_EQ(a.stats().format, b.stats().format);
    for (int64_t i = 0; i < a.size(); ++i) {
        const Sample x = a.sample(i), y = b.sample(i);
        EXPECT_TRUE(x.row == y.row && x.ids == y.ids && x.labels == y.labels && x.positions == y.positions &&
                    x.segments == y.segments)
            << "row " << i;
        EXPECT_EQ(a.segments(i), b.segments(i));
        EXPECT_EQ(a.longest_segment(i), b.longest_segment(i));
    }
}

}  // namespace unsloth::data
