// data.datasets: a list of objects whose keys are options of their own.
#include <gtest/gtest.h>

#include "config/support.h"

namespace unsloth::testing {
namespace {

TEST(Datasets, ObjectsAndPaths) {
    const config::Config config =
        load_text(R"({"data": {"datasets": ["a.jsonl", {"path": "b/*.csv", "format": "alpaca", "split": "train",
        "columns": {"instruction": "question"}}]}})")
            .config;
    ASSERT_EQ(config.data.datasets.size(), 2u);
    EXPECT_EQ(config.data.datasets[0].path, "a.jsonl");
    EXPECT_EQ(config.data.datasets[0].format, config::DataFormat::automatic);
    EXPECT_FALSE(config.data.datasets[0].weight.has_value());
    const config::DataSource& second = config.data.datasets[1];
    EXPECT_EQ(second.path, "b/*.csv");
    EXPECT_EQ(second.format, config::DataFormat::alpaca);
    EXPECT_EQ(second.split, "train");
    EXPECT_EQ(second.columns, (std::vector<std::pair<std::string, std::string>>{{"instruction", "question"}}));
    const config::Config flags =
        config::load_config({}, {"--datasets", R"([{"path": "a", "weight": 3}, {"path": "b", "weight": 0.5}])"}).config;
    EXPECT_EQ(flags.data.datasets.at(0).weight, 3);
    EXPECT_EQ(flags.data.datasets.at(1).weight, 0.5);
}

TEST(Datasets, ThePrintedConfigurationReadsBack) {
    const config::Config config =
        load_text(
            R"({"data": {"datasets": [{"path": "a", "weight": 2}, {"path": "b", "weight": 1, "format": "text"}]}})")
            .config;
    const Json printed = Json::parse(config::config_to_json(config));
    EXPECT_EQ(printed["data"]["datasets"],
              Json::parse(R"([{"path": "a", "weight": 2}, {"path": "b", "format": "text", "weight": 1}])"));
    const config::Config again = load_text(config::config_to_json(config)).config;
    EXPECT_EQ(config::config_to_json(again), config::config_to_json(config));
}

TEST(Datasets, MistakesAreNamedWithTheirPlace) {
    const auto refused = [](const std::string& data, const std::vector<std::string>& parts) {
        const std::string what = usage_message([&] { load_text(R"({"data": {)" + data + "}}"); });
        for (const std::string& part : parts) EXPECT_NE(what.find(part), std::string::npos) << part << " in " << what;
    };
    refused(R"("datasets": {"path": "a"})", {"data.datasets", "a list of objects"});
    refused(R"("datasets": [{"path": "a"}, 3])", {"data.datasets[1]", "expected an object"});
    refused(R"("datasets": [{"weight": 1}])", {"data.datasets[0]", "path is missing"});
    refused(R"("datasets": [{"path": "a", "wight": 1}])", {"data.datasets[0]", "unknown key wight", "weight"});
    refused(R"("datasets": [{"path": "a", "weight": 0}])", {"data.datasets[0].weight", "> 0"});
    refused(R"("datasets": [{"path": "a", "format": "alpca"}])", {"data.datasets[0].format", "alpaca"});
    refused(R"("datasets": [{"path": "a", "weight": 1}, {"path": "b"}])", {"some sources have a weight"});
    refused(R"("datasets": ["a"], "train_file": "b")", {"data.datasets cannot be combined with data.train_file"});
    refused(R"("train_on_prompt": true, "train_on_last_turn_only": true)",
            {"cannot be combined with data.train_on_last_turn_only"});
}

TEST(Datasets, TheSchemaKnowsTheKeys) {
    const Json schema = Json::parse(config::config_schema())["properties"]["data"]["properties"]["datasets"];
    EXPECT_EQ(schema["type"], "array");
    const Json& object = schema["items"]["anyOf"][0];
    EXPECT_EQ(object["required"], Json::array({"path"}));
    EXPECT_EQ(object["properties"]["weight"]["exclusiveMinimum"], 0);
    EXPECT_EQ(object["additionalProperties"], false);
}

}  // namespace
}  // namespace unsloth::testing
