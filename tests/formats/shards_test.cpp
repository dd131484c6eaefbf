#include "unsloth/formats/shards.h"

#include "formats/support.h"

namespace unsloth::formats {
namespace {

using Shards = std::vector<std::vector<std::size_t>>;

TEST(Shards, AreFilledInOrder) {
    EXPECT_EQ(split_into_shards({4, 4, 4, 4}, 8), (Shards{{0, 1}, {2, 3}}));
    EXPECT_EQ(split_into_shards({4, 4, 1}, 8), (Shards{{0, 1}, {2}}));
    EXPECT_EQ(split_into_shards({1, 100, 1, 1}, 8), (Shards{{0}, {1}, {2, 3}}))
        << "what is larger than a shard has one alone";
    EXPECT_EQ(split_into_shards({100}, 8), (Shards{{0}}));
    EXPECT_EQ(split_into_shards({0, 0, 8}, 8), (Shards{{0, 1, 2}}));
    EXPECT_EQ(split_into_shards({}, 8), (Shards{{}}));
}

TEST(Shards, HaveTransformersNames) {
    EXPECT_EQ(shard_file_name(0, 1), "model.safetensors");
    EXPECT_EQ(shard_file_name(1, 12), "model-00002-of-00012.safetensors");
}

TEST(Shards, AreListedInTheIndex) {
    const auto index = nlohmann::json::parse(shard_index_json({{"a", "one"}, {"b", "two"}}, 7));
    EXPECT_EQ(index.at("metadata").at("total_size"), 7);
    EXPECT_EQ(index.at("weight_map"), (nlohmann::json{{"a", "one"}, {"b", "two"}}));
}

}  // namespace
}  // namespace unsloth::formats
