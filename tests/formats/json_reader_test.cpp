// Typed reading of JSON documents: what is taken, and what an error says.
#include "unsloth/core/json_reader.h"

#include "formats/support.h"

namespace unsloth::test {
namespace {

using Json = nlohmann::json;
using Reader = JsonReader<Json>;

const Json document = Json::parse(R"({
    "name": "x", "count": 3, "whole": 1e4, "half": 0.5, "huge": 9223372036854775808, "on": true, "none": null,
    "inner": {"list": [1, "two"], "far away": {"deep": []}}, "names": ["a", "b"], "ids": [1, 2]})");

const Reader root(document, "file.json");

TEST(JsonReader, TakesValuesOfTheirTypes) {
    EXPECT_EQ(root["name"].string(), "x");
    EXPECT_EQ(root["count"].integer(), 3);
    EXPECT_EQ(root["whole"].integer(), 10000);  // as Python writes it
    EXPECT_EQ(root["half"].number(), 0.5);
    EXPECT_TRUE(root["on"].boolean());
    EXPECT_EQ(root["inner"]["list"].at(0).id(), 1);
    EXPECT_EQ(root.strings("names"), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(root.integers("ids"), (std::vector<int64_t>{1, 2}));
    EXPECT_EQ(root.integers("count"), (std::vector<int64_t>{3}));
    EXPECT_TRUE(root.object("inner")->has("list"));
}

TEST(JsonReader, AMemberThatIsNullCountsAsAbsent) {
    for (const char* key : {"none", "missing"}) {
        EXPECT_FALSE(root.has(key));
        EXPECT_EQ(root.string(key), std::nullopt);
        EXPECT_EQ(root.integer(key), std::nullopt);
        EXPECT_TRUE(root.strings(key).empty());
        EXPECT_FALSE(root.object(key).has_value());
        expect_error("json.missing-key", {"file.json: '", key, "' is missing"}, [&] { root.at(key); });
        expect_error("json.wrong-value", {"file.json: key ", key, ": expected a string, found nothing"},
                     [&] { root[key].string(); });
    }
    const Json nothing;
    EXPECT_FALSE(Reader(nothing, "absent.json").has("name"));  // the document of a file that is not there
}

TEST(JsonReader, ErrorsNameTheKeyAndWhatWasExpected) {
    const auto refuses = [](const std::string& message, auto read) { expect_input_error({message}, read); };
    refuses("file.json: key name: expected true or false, found \"x\"", [] { root["name"].boolean(); });
    refuses("file.json: key half: expected an integer below 2^63, found 0.5", [] { root["half"].integer(); });
    refuses("key huge: expected an integer below 2^63, found 9223372036854775808", [] { root["huge"].integer(); });
    refuses("key count: expected a list, found 3", [] { root["count"].elements(); });
    refuses("key inner.list[1]: expected an integer from 0 to 2147483646", [] { root["inner"]["list"].at(1).id(); });
    refuses("key inner['far away'].deep: expected a string, found a list of 0",
            [] { root["inner"]["far away"]["deep"].string(); });
    refuses("key name: expected an object, found \"x\"", [] { root["name"]["inner"]; });
    refuses("key inner: this program does not know the key 'far away'", [] { root["inner"].only_keys({"list"}); });
}

}  // namespace
}  // namespace unsloth::test
