// Rows of decisions: the prompt of a service, the options' tokens, and what is refused.
#include <nlohmann/json.hpp>

#include "data/toy.h"
#include "unsloth/data/format.h"
#include "unsloth/data/reader.h"
#include "unsloth/openai/decision.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

const char* const choice_row =
    R"({"input": "The tenant shall pay.", "question": {"type": "choice", "instructions": "What is this?",
        "choices": [{"value": "lease"}, {"value": "loan"}, {"value": "will"}]}, "answer": "loan"})";
const char* const soft_row =
    R"({"input": "The tenant shall pay.", "question": {"type": "predicate", "instructions": "It is short."},
        "probabilities": [0.25, 0.75]})";

class DecisionRows : public ::testing::Test {
  protected:
    static DatasetOptions options() {
        DatasetOptions options;
        options.objective = config::Objective::decision;
        options.max_seq_length = 512;
        options.vocab_size = 1 << 20;
        return options;
    }
    FormattedRow formatted(const std::string& row, const RowOptions& options) const {
        return RowFormatter(config::DataFormat::decision, options, encoder_.get()).format(parse_row(row));
    }
    std::filesystem::path write(const std::vector<std::string>& rows) const {
        std::string text;
        for (const std::string& row : rows) text += Json::parse(row).dump() + "\n";
        return folder_.write("rows.jsonl", text);
    }

    toy::Folder folder_;
    tokenizer::Tokenizer tokenizer_ = tokenizer::Tokenizer::load(toy::golden("tokenizer") / "llama3_small");
    std::unique_ptr<RowEncoder> encoder_ = make_row_encoder(tokenizer_, "auto");
};

TEST_F(DecisionRows, ArePromptsWithOneTarget) {
    EXPECT_EQ(detect_format(parse_row(choice_row)), config::DataFormat::decision);
    RowOptions all = options();
    all.train_on_prompt = true;
    const FormattedRow row = formatted(choice_row, all);
    const openai::DecisionExample example = openai::parse_decision_example(Json::parse(choice_row));
    const openai::DecisionPrompt prompt = openai::decision_prompt(
        tokenizer_, tokenizer::ChatTemplate::choose("auto", tokenizer_), *example.messages, example.question, "q");
    ASSERT_EQ(row.ids.size(), prompt.ids.size() + 1);
    EXPECT_TRUE(std::equal(prompt.ids.begin(), prompt.ids.end(), row.ids.begin()));
    EXPECT_EQ(row.ids.back(), prompt.labels[1].ids.front());
    EXPECT_EQ(std::count(row.labels.begin(), row.labels.end(), ignore_label), std::ssize(prompt.ids));
    EXPECT_EQ(row.targets, 1);
    std::vector<int32_t> ids;
    std::vector<float> shares;
    for (std::size_t i = 0; i < 3; ++i)
        for (const int32_t id : prompt.labels[i].ids) {
            shares.push_back(id == prompt.labels[i].ids.front() ? (i == 1 ? 1.F : 0.F) : -1.F);
            ids.push_back(id);
        }
    EXPECT_EQ(row.options, (OptionTokens{ids, shares}));
    EXPECT_GT(ids.size(), 3U) << "with a space in front, too";
}

TEST_F(DecisionRows, KeepTheirOptionsInStoresAndBatches) {
    const Dataset rows = Dataset::load(write({choice_row, soft_row, choice_row}), options(), encoder_.get());
    ASSERT_EQ(rows.size(), 3);
    const std::vector<Sample> samples{rows.sample(0), rows.sample(1)};
    EXPECT_EQ(samples[0].options, formatted(choice_row, options()).options);
    EXPECT_EQ(samples[1].options, formatted(soft_row, options()).options);
    const Batch batch = make_batch(samples);
    EXPECT_EQ(batch.labels, 2);
    EXPECT_EQ(batch.options, (std::vector{samples[0].options, samples[1].options}));
    EXPECT_EQ(rows.without_duplicates().size(), 2);
    EXPECT_EQ(Dataset::from_samples(samples).sample(1).options, samples[1].options);
    std::vector<Sample> other = samples;
    other[1].options.shares[0] = 0.5F;
    EXPECT_NE(Dataset::from_samples(other).fingerprint(), Dataset::from_samples(samples).fingerprint());
}

TEST_F(DecisionRows, AreRefusedByTheirLine) {
    const auto refused = [&](const std::string& row, DatasetOptions options) {
        return toy::message_of("data.decision-shape",
                               [&] { Dataset::load(write({choice_row, row}), options, encoder_.get()); });
    };
    Json bad = Json::parse(choice_row);
    bad["answer"] = "gift";
    toy::expect_contains(refused(bad.dump(), options()), {"rows.jsonl:2: ", "answer", "lease", "gift"});
    bad = Json::parse(choice_row);
    bad["question"]["choices"][2]["value"] = "loan";
    toy::expect_contains(refused(bad.dump(), options()), {"rows.jsonl:2: ", "question.choices[2]", "twice"});
    bad = Json::parse(choice_row);
    for (int i = 0; i < 200; ++i) bad["question"]["choices"].push_back({{"value", std::to_string(i)}});
    toy::expect_contains(refused(bad.dump(), options()), {"rows.jsonl:2: ", "203", "labels of one token"});
    bad = Json::parse(choice_row);
    bad["question"]["kind"] = 1;
    toy::expect_contains(refused(bad.dump(), options()), {"rows.jsonl:2: ", "question.kind"});
}

TEST_F(DecisionRows, AreNotCut) {
    DatasetOptions few = options();
    few.max_seq_length = 20;
    toy::expect_contains(
        toy::message_of("data.row-too-long", [&] { Dataset::load(write({choice_row}), few, encoder_.get()); }),
        {"rows.jsonl:1: ", "max_seq_length is 20", "cut"});
    few.long_rows = config::LongRows::drop;
    few.max_seq_length = std::ssize(formatted(choice_row, options()).ids);
    EXPECT_EQ(Dataset::load(write({choice_row, soft_row}), few, encoder_.get()).size(), 1);
}

TEST_F(DecisionRows, AreOfTheirObjectiveAlone) {
    RowOptions sft = options();
    sft.objective = config::Objective::sft;
    toy::expect_contains(toy::message_of("data.wrong-objective", [&] { formatted(choice_row, sft); }),
                         {"objective is sft", "format decision"});
    toy::expect_contains(toy::message_of("data.wrong-objective",
                                         [&] { RowFormatter(config::DataFormat::text, options(), encoder_.get()); }),
                         {"objective is decision", "format text", "probabilities"});
}

}  // namespace
}  // namespace unsloth::data
