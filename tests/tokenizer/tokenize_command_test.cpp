#include "unsloth/tokenizer/tokenize_command.h"

#include "tokenizer/support.h"
#include "unsloth/tokenizer/chat.h"

namespace unsloth::test {
namespace {

class TokenizeCommand : public testing::Test {
  protected:
    std::vector<json> run(const tokenizer::TokenizeOptions& options, const std::string& input) const {
        std::istringstream in(input);
        std::ostringstream out;
        tokenizer::tokenize_stream(tokenizer, options, in, out);
        std::vector<json> rows;
        std::istringstream lines(out.str());
        for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
        return rows;
    }
    tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(golden("tokenizer/llama3_small"));
};

TEST_F(TokenizeCommand, Text) {
    const std::vector<json> rows = run({}, "{\"text\": \"the caf\\u00e9\"}\n\n{\"text\": \"\"}\r\n");
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0]["ids"], json(tokenizer.encode("the café", true)));
    EXPECT_EQ(rows[0]["text"], "the café");
    EXPECT_EQ(rows[0]["trained"], json::array());
    EXPECT_EQ(rows[1]["ids"], json::array({*tokenizer.bos_id()}));
    tokenizer::TokenizeOptions options;
    options.no_special = true;
    EXPECT_EQ(run(options, "{\"text\": \"the\"}")[0]["ids"], json(tokenizer.encode("the", false)));
}

TEST_F(TokenizeCommand, Messages) {
    const std::string input =
        R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}],
        "add_generation_prompt": true, "enable_thinking": false})";
    std::string line = input;
    std::replace(line.begin(), line.end(), '\n', ' ');
    const json row = run({}, line)[0];
    const std::vector<tokenizer::Message> messages = {{"user", "Q"}, {"assistant", "A"}};
    const tokenizer::Rendered rendered = tokenizer::ChatTemplate::choose("llama-3", tokenizer).render(messages, true);
    const tokenizer::EncodedTurns turns = tokenizer::encode_rendered(tokenizer, rendered);
    EXPECT_EQ(row["text"], rendered.text);
    EXPECT_EQ(row["ids"], json(turns.ids));
    EXPECT_EQ(row["trained"], json(turns.trained));
    ASSERT_EQ(row["trained"].size(), 1u);
    const std::string system =
        R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]})";
    EXPECT_EQ(run({}, R"({"system": "S", "messages": [{"role": "user", "content": "Q"}]})")[0], run({}, system)[0])
        << "as training has it";
    tokenizer::TokenizeOptions options;
    options.chat_template = "alpaca";
    EXPECT_NE(run(options, line)[0]["text"].get<std::string>().find("### Response:\nA<|eot_id|>"), std::string::npos);
}

TEST_F(TokenizeCommand, Decode) {
    tokenizer::TokenizeOptions options;
    options.decode = true;
    const json ids = tokenizer.encode("the café", true);
    EXPECT_EQ(run(options, json{{"ids", ids}}.dump())[0]["text"], "<|begin_of_text|>the café");
    options.no_special = true;
    const json row = run(options, json{{"ids", ids}}.dump())[0];
    EXPECT_EQ(row["text"], "the café");
    EXPECT_EQ(row["ids"], ids);
    EXPECT_EQ(row["trained"], json::array());
}

TEST_F(TokenizeCommand, RowsBeyondAllBoundsAreRefused) {
    const auto message = [&](const std::string& row) { return error_of(ErrorKind::input, [&] { run({}, row); }); };
    EXPECT_NE(message(R"({"text": "a", "n": 1e999})").find("line 1: not valid JSON"), std::string::npos);
    constexpr int deep = 200'000;  // whatever recurses on it runs off the stack
    const std::string nested = std::string(deep, '[') + std::string(deep, ']');
    EXPECT_NE(message(nested).find("found a list of 1"), std::string::npos);
    EXPECT_NE(message(R"({"text": )" + nested + "}").find("expected a string, found a list of 1"), std::string::npos);
    EXPECT_EQ(run({}, R"({"text": "a", "other": )" + nested + "}").size(), 1u);
    EXPECT_NE(
        message(R"({"messages": [], "other": )" + nested + R"(, "more": 1})").find("nests deeper than 1000 levels"),
        std::string::npos);
    const std::string within = std::string(900, '[') + std::string(900, ']');
    EXPECT_NE(message(R"({"messages": [)" + within + "]}").find("messages[0]: expected an object, found a list of 1"),
              std::string::npos);
    EXPECT_NE(
        message(R"({"messages": {"a": )" + within + "}}").find("messages: expected an array, found an object of 1"),
        std::string::npos);
    EXPECT_NE(message(R"({"messages": [{"role": "user", "content": "a", "x": )" + within + "}]}").find("deeper"),
              std::string::npos);
    json many = {{"messages", json::array()}};
    for (int i = 0; i < 30'000; ++i) many[cat("key ", i)] = i;
    EXPECT_NE(message(many.dump()).find("more than 10000 keys"), std::string::npos);
}

TEST_F(TokenizeCommand, MalformedLinesAreNamed) {
    const auto message = [&](const std::string& bad) {
        return error_of(ErrorKind::input, [&] { run({}, "{\"text\": \"fine\"}\n" + bad + "\n"); });
    };
    for (const char* bad :
         {"{\"text\": ", "[]", "{}", "{\"ids\": [1]}", "{\"text\": 5}", "{\"messages\": []}", "{\"messages\": 1}",
          "{\"messages\": [{\"role\": 5}]}", "{\"messages\": [{\"content\": \"x\"}]}", "{\"text\": \"\xff\"}",
          "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"add_generation_prompt\": 1}"}) {
        const std::string text = message(bad);
        EXPECT_EQ(text.rfind("line 2: ", 0), 0u) << text;
    }
    EXPECT_NE(message("{\"messages\": [{\"content\": \"x\"}]}").find("messages[0]: 'role' is missing"),
              std::string::npos);
    EXPECT_NE(message(std::string(10000, '[') + "\n").find("line 2"), std::string::npos);
}

TEST_F(TokenizeCommand, RowsBeforeABadLineAreWritten) {
    std::istringstream in("{\"text\": \"one\"}\n{\"text\": 2}\n");
    std::ostringstream out;
    error_of("json.wrong-value", [&] { tokenizer::tokenize_stream(tokenizer, {}, in, out); });
    EXPECT_EQ(json::parse(out.str())["text"], "one");
}

TEST_F(TokenizeCommand, UnknownTemplateIsAUsageError) {
    tokenizer::TokenizeOptions options;
    options.chat_template = "vicuna";
    EXPECT_NE(error_of("template.unknown", [&] { run(options, ""); }).find("vicuna"), std::string::npos);
}

TEST(MeasureCommand, ReportsRoundsOfEncoding) {
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(golden("tokenizer/llama2_small"));
    std::istringstream in("{\"text\": \"Hello\"}\n\n{\"text\": \"\u00e9\"}\n");
    std::ostringstream out;
    tokenizer::measure_encoding(tokenizer, true, 3, in, out);
    const json result = json::parse(out.str());
    EXPECT_EQ(result["rows"], 2);
    EXPECT_EQ(result["bytes"], 7);
    EXPECT_EQ(result["tokens"], tokenizer.encode("Hello", true).size() + tokenizer.encode("\u00e9", true).size());
    EXPECT_EQ(result["seconds"].size(), 3u);
    for (const std::string bad : {"{", "{\"ids\": []}", "[]"}) {
        std::istringstream rows("{\"text\": \"a\"}\n" + bad);
        const std::string message =
            error_of(ErrorKind::input, [&] { tokenizer::measure_encoding(tokenizer, true, 1, rows, out); });
        EXPECT_NE(message.find("line 2"), std::string::npos) << message;
    }
}

}  // namespace
}  // namespace unsloth::test
