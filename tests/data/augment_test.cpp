#include "unsloth/data/augment.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "data/toy.h"
#include "unsloth/core/files.h"
#include "unsloth/data/training_data.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<std::string> lines_of(const fs::path& path) {
    std::vector<std::string> lines;
    std::istringstream text(read_file(path));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
}

bool is_copy(const Json& row) {
    return row.contains(provenance_column);
}

/// 40 rows of alpaca, with synonyms for a word of each.
struct AugmentSetting {
    toy::Folder folder;
    config::Config config;
    data::AugmentRequest request;
    std::vector<std::string> rows;

    AugmentSetting() {
        for (int row = 0; row < 40; ++row)
            rows.push_back(cat(
                R"({"id": "r)", row, R"(", "instruction": "Give a quick answer to question number )", row,
                R"(.", "input": "It is a quick one", "output": "a quick answer ", "score": 1.50, "system": "Be quick."})"));
        write();
        request.in = (folder.path() / "rows.jsonl").string();
        request.out = (folder.path() / "out.jsonl").string();
        request.thesaurus =
            folder.write("thesaurus.json", R"({"quick": ["fast", "brief"], "answer": ["reply"]})").string();
        request.synonym_rate = 0.7;
        request.copies = 2;
    }
    void write() { write(rows); }
    void write(const std::vector<std::string>& lines) {
        std::string text;
        for (const std::string& line : lines) text += line + "\n";
        folder.write("rows.jsonl", text);
    }
    void hold_out(double val_size) {
        config.data.val_size = val_size;
        request.eval_out = (folder.path() / "eval.jsonl").string();
    }
    AugmentResult run() { return augment_rows(config, request); }
    std::vector<Json> out() const {
        std::vector<Json> read;
        for (const std::string& line : lines_of(request.out)) read.push_back(Json::parse(line));
        return read;
    }
    std::string refusal(test::Expected expected) {
        std::string message = toy::message_of(expected, [&] { run(); });
        for (const auto& entry : fs::directory_iterator(folder.path()))
            EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << "left behind: " << entry.path();
        return message;
    }
};

TEST(Augment, CopiesChangePromptsAloneAndSayWhatTheyAre) {
    AugmentSetting setting;
    setting.request.swap_rate = 0.3;
    setting.request.delete_rate = 0.3;
    const AugmentResult result = setting.run();
    EXPECT_EQ(result.read, 40);
    EXPECT_EQ(result.kept, 40);
    ASSERT_EQ(result.copies.size(), 3u);
    std::map<std::string, int64_t> made;
    std::size_t original = 0;
    std::set<std::string> texts;
    for (const std::string& line : lines_of(setting.request.out)) {
        const Json row = Json::parse(line);
        if (!is_copy(row)) {
            ASSERT_LT(original, 40u);
            EXPECT_EQ(line, setting.rows[original++]) << "byte for byte";
            texts = {row["instruction"].get<std::string>() + row["input"].get<std::string>()};
            continue;
        }
        const Json source = Json::parse(setting.rows[original - 1]), &of = row[provenance_column];
        EXPECT_EQ(of["of"], source["id"]);
        EXPECT_EQ(of["seed"], 3407);
        EXPECT_LT(of["copy"], 2);
        ++made[of["by"]];
        for (const char* column : {"id", "output", "score", "system"}) EXPECT_EQ(row[column], source[column]);
        EXPECT_TRUE(texts.insert(row["instruction"].get<std::string>() + row["input"].get<std::string>()).second)
            << "a repetition: " << line;
    }
    EXPECT_EQ(original, 40u);
    for (const AugmentCounts& copies : result.copies) {
        EXPECT_EQ(copies.made, made[copies.by]) << copies.by;
        EXPECT_EQ(copies.made + copies.unchanged, 80) << copies.by;
        EXPECT_GT(copies.made, 40) << copies.by;
    }
}

TEST(Augment, TheOrderOfRowsWithIdsMakesNoDifference) {
    AugmentSetting setting;
    setting.request.swap_rate = 0.5;
    setting.run();
    auto first = lines_of(setting.request.out);
    setting.run();
    EXPECT_EQ(lines_of(setting.request.out), first) << "the same again";
    auto reversed = setting.rows;
    std::reverse(reversed.begin(), reversed.end());
    setting.write(reversed);
    setting.run();
    auto second = lines_of(setting.request.out);
    EXPECT_NE(first, second);
    std::sort(first.begin(), first.end());
    std::sort(second.begin(), second.end());
    EXPECT_EQ(first, second);
    setting.config.training.seed = 5;
    setting.run();
    auto other = lines_of(setting.request.out);
    std::sort(other.begin(), other.end());
    EXPECT_NE(first, other);
}

TEST(Augment, HeldOutRowsAreThoseOfARunAndGetNoCopies) {
    for (const double val_size : {0.2, 7.0}) {
        AugmentSetting setting;
        setting.hold_out(val_size);
        setting.config.training.seed = 12;
        const AugmentResult result = setting.run();
        std::set<std::string> held_out;
        for (const std::string& line : lines_of(setting.request.eval_out)) {
            EXPECT_FALSE(is_copy(Json::parse(line)));
            held_out.insert(line);
        }
        EXPECT_EQ(result.held_out, val_size < 1 ? 8 : 7);
        EXPECT_EQ(static_cast<int64_t>(held_out.size()), result.held_out);

        // What a run with this val_size over the same file evaluates on.
        config::Config run = setting.config;
        run.data.train_file = setting.request.in;
        const TrainingData data =
            load_training_data(run, {}, [](const std::string&) { return std::make_unique<toy::Encoder>(); });
        for (int64_t i = 0; i < data.eval->size(); ++i)
            EXPECT_TRUE(held_out.contains(setting.rows[static_cast<std::size_t>(data.eval->row(i))]));

        std::set<std::string> held_ids;
        for (const std::string& line : held_out) held_ids.insert(Json::parse(line)["id"]);
        for (const Json& row : setting.out()) {
            EXPECT_FALSE(held_ids.contains(row["id"])) << row;
            if (is_copy(row)) {
                EXPECT_FALSE(held_ids.contains(row[provenance_column]["of"]));
            }
        }
        // And the result cannot be split again by a run.
        run.data.train_file = setting.request.out;
        toy::expect_contains(toy::message_of("data.held-out-copies",
                                             [&] {
                                                 load_training_data(run, {}, [](const std::string&) {
                                                     return std::make_unique<toy::Encoder>();
                                                 });
                                             }),
                             {"augmented copies"});
        run.data.val_size = 0;
        run.data.eval_file = setting.request.eval_out;
        EXPECT_EQ(load_training_data(run, {}, [](const std::string&) { return std::make_unique<toy::Encoder>(); })
                      .eval->size(),
                  result.held_out);
    }
}

TEST(Augment, BackTranslationsJoinTheirRows) {
    AugmentSetting setting;
    setting.hold_out(10);
    setting.request.thesaurus.clear();
    std::string rows;
    for (int row = 0; row < 40; ++row)
        rows += cat(R"({"id": "r)", row, R"(", "instruction": "Provide a reply to )", row,
                    R"(", "output": "not taken"})", "\n");
    rows += "{\"id\": \"r0\", \"input\": \"another one\"}\n{\"id\": \"unknown\", \"instruction\": \"x\"}\n";
    setting.request.back_translations = setting.folder.write("back.jsonl", rows).string();
    const AugmentResult result = setting.run();
    EXPECT_EQ(result.back_translations_unknown, 1);
    EXPECT_GE(result.back_translations_held_out, 10);
    EXPECT_EQ(result.copies.at(0).made + result.back_translations_held_out, 41);
    int64_t copies = 0;
    for (const Json& row : setting.out()) {
        if (!is_copy(row)) continue;
        ++copies;
        EXPECT_EQ(row["output"], "a quick answer ");
        EXPECT_EQ(row[provenance_column]["by"], "back_translation");
        EXPECT_EQ(row[provenance_column]["of"], row["id"]);
        const bool second = row[provenance_column]["copy"] == 1;
        EXPECT_EQ(row["input"], second ? "another one" : "It is a quick one");
        EXPECT_EQ(row["instruction"].get<std::string>().starts_with("Provide"), !second);
    }
    EXPECT_EQ(copies, result.copies.at(0).made);

    setting.request.back_translations =
        setting.folder.write("none.jsonl", "{\"id\": \"zzz\", \"instruction\": \"x\"}\n").string();
    toy::expect_contains(setting.refusal("data.row-ids"), {"none.jsonl:1", "no row of the input has id zzz"});
    setting.request.back_translations = setting.folder.write("noid.jsonl", "{\"instruction\": \"x\"}\n").string();
    toy::expect_contains(setting.refusal("data.missing-column"), {"noid.jsonl:1", "\"id\" is missing"});
}

TEST(Augment, ConversationsChangeWhatTheUserSays) {
    AugmentSetting setting;
    setting.write(
        {R"({"messages": [{"role": "system", "content": "quick"}, {"role": "user", "content": "quick"}, {"role": "assistant", "content": "quick"}, {"role": "user", "content": [{"type": "text", "text": "quick"}]}, {"role": "assistant", "content": null, "tool_calls": []}]})"});
    setting.request.synonym_rate = 1;
    setting.request.copies = 1;
    setting.run();
    Json copy = setting.out().at(1);
    EXPECT_EQ(copy[provenance_column]["of"], 0) << "without ids rows go by their number";
    EXPECT_EQ(copy["messages"][0]["content"], "quick");
    EXPECT_NE(copy["messages"][1]["content"], "quick");
    EXPECT_EQ(copy["messages"][2]["content"], "quick");
    EXPECT_NE(copy["messages"][3]["content"][0]["text"], "quick");
    setting.request.fields = {"system", "assistant"};
    setting.run();
    copy = setting.out().at(1);
    EXPECT_NE(copy["messages"][0]["content"], "quick");
    EXPECT_EQ(copy["messages"][1]["content"], "quick");
    EXPECT_NE(copy["messages"][2]["content"], "quick");

    setting.write({R"({"system": "quick", "messages": [{"role": "user", "content": "quick"}]})"});
    setting.run();
    EXPECT_NE(setting.out().at(1)["system"], "quick");
    EXPECT_EQ(setting.out().at(1)["messages"][0]["content"], "quick");

    setting.request.fields.clear();
    setting.write(
        {R"({"conversations": [{"from": "human", "value": "quick"}, {"from": "gpt", "value": "quick"}]})",
         R"({"conversations": "[{\"from\": \"human\", \"value\": \"quick\"}, {\"from\": \"gpt\", \"value\": \"quick\"}]"})"});
    setting.run();
    EXPECT_NE(setting.out().at(1)["conversations"][0]["value"], "quick");
    EXPECT_EQ(setting.out().at(1)["conversations"][1]["value"], "quick");
    const Json packed =
        Json::parse(setting.out().at(3)["conversations"].get<std::string>());  // as a table's cell holds it
    EXPECT_NE(packed[0]["value"], "quick");
    EXPECT_EQ(packed[1]["value"], "quick");

    setting.write(
        {R"({"prompt": [{"role": "user", "content": "quick"}], "completion": [{"role": "assistant", "content": "quick"}]})",
         R"({"prompt": "quick", "completion": "quick"})"});
    setting.run();
    EXPECT_NE(setting.out().at(1)["prompt"][0]["content"], "quick");
    EXPECT_EQ(setting.out().at(1)["completion"][0]["content"], "quick");
    EXPECT_NE(setting.out().at(3)["prompt"], "quick");
    EXPECT_EQ(setting.out().at(3)["completion"], "quick");
}

TEST(Augment, TablesAndRenamedColumnsKeepTheirNames) {
    AugmentSetting setting;
    setting.request.in =
        setting.folder.write("rows.csv", "question,answer\nA quick one,quick\n\"quick, please\",quick\n").string();
    setting.config.data.columns = {{"instruction", "question"}, {"output", "answer"}};
    setting.request.synonym_rate = 1;
    setting.request.copies = 1;
    setting.run();
    const std::vector<Json> rows = setting.out();
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_EQ(rows[0], (Json{{"question", "A quick one"}, {"answer", "quick"}}));
    EXPECT_NE(rows[1]["question"], rows[0]["question"]);
    EXPECT_EQ(rows[1]["answer"], "quick");
}

TEST(Augment, TextsOfArraysMayNotNestWithoutEnd) {
    AugmentSetting setting;
    constexpr int endless = 1'000'000;  // whatever copies it runs off the stack
    setting.write({cat(R"({"messages": "[{\"role\": \"user\", \"content\": \"quick\", \"x\": )",
                       std::string(endless, '['), std::string(endless, ']'), R"(}]"})")});
    setting.config.data.format = config::DataFormat::messages;
    toy::expect_contains(setting.refusal(ErrorKind::input),
                         {"rows.jsonl:1", "column \"messages\": expected an array of messages"});
}

TEST(Augment, RowsOfTextOnlyWhenAskedFor) {
    AugmentSetting setting;
    setting.write({R"({"text": "a quick text"})"});
    toy::expect_contains(setting.refusal("option.missing"), {"have no prompt", "--fields text"});
    setting.request.fields = {"text"};
    setting.run();
    EXPECT_GE(setting.out().size(), 2u);
    setting.request.fields = {"instruction"};
    toy::expect_contains(setting.refusal("option.invalid-value"), {"have no 'instruction'"});
    setting.write({R"({"input_ids": [1, 2]})"});
    toy::expect_contains(setting.refusal("data.not-augmentable"), {"tokenized"});
}

TEST(Augment, RefusesWhatWouldLeakOrMakeNoSense) {
    AugmentSetting setting;
    setting.config.data.val_size = 4;
    toy::expect_contains(setting.refusal("option.missing"), {"--eval_out"});
    setting.config.data.val_size = 0;
    setting.request.eval_out = (setting.folder.path() / "e.jsonl").string();
    toy::expect_contains(setting.refusal("option.no-effect"), {"--eval_out", "--val_size"});
    setting.config.data.val_size = 4;
    setting.request.eval_out = setting.request.out;
    toy::expect_contains(setting.refusal("output.same-file"), {"same file"});
    setting.hold_out(40);
    toy::expect_contains(setting.refusal("data.too-few-rows"), {"leaves none of the 40 rows"});
    setting.hold_out(4);
    setting.request.out = setting.request.in;
    toy::expect_contains(setting.refusal("output.same-file"), {"is the input itself"});
    EXPECT_EQ(lines_of(setting.request.in), setting.rows);
    setting.request.out = (setting.folder.path() / "out.jsonl").string();
    const std::string thesaurus = std::exchange(setting.request.thesaurus, "");
    toy::expect_contains(setting.refusal("option.nothing-to-do"), {"nothing to do"});
    setting.request.thesaurus = thesaurus;

    auto rows = setting.rows;
    rows.push_back(rows[3]);
    setting.write(rows);
    toy::expect_contains(setting.refusal("data.row-ids"), {"rows.jsonl:41", "id r3 is that of row 3"});
    rows.back() = R"({"instruction": "a", "output": "b"})";
    setting.write(rows);
    toy::expect_contains(setting.refusal("data.row-ids"), {"rows.jsonl:41", "\"id\" is missing"});
    rows.back() = R"({"id": "new", "instruction": "a", "output": "b", "augmentation": {"of": 1}})";
    setting.write(rows);
    toy::expect_contains(setting.refusal("data.not-augmentable"), {"rows.jsonl:41", "copy"});
    rows.back() = R"({"id": "new", "instruction": 5, "output": "b"})";
    setting.write(rows);
    toy::expect_contains(setting.refusal("data.column-type"), {"rows.jsonl:41", "expected a string"});
    EXPECT_FALSE(fs::exists(setting.request.out));

    setting.config.data.skip_bad_rows = true;
    rows.push_back("no JSON");
    setting.write(rows);
    const AugmentResult result = setting.run();
    EXPECT_EQ(result.bad, 2);
    EXPECT_EQ(result.read, 42);
    EXPECT_EQ(result.kept, 36);
}

}  // namespace
}  // namespace unsloth::data
