// Questions of /v1/decisions, and the form of their answers.
#include "unsloth/openai/decision.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "unsloth/openai/error.h"

namespace unsloth::openai {
namespace {

using Json = nlohmann::ordered_json;

constexpr ParseOptions strictly{.vocab_size = 100};

DecisionRequest asked(const std::string& questions, const std::string& input = R"("The text.")") {
    return parse_decision(R"({"model": "m", "input": )" + input + R"(, "questions": )" + questions + "}", strictly);
}

TEST(OpenaiDecision, ReadsEachKindOfQuestion) {
    const DecisionRequest request = asked(
        R"([{"type": "predicate", "instructions": "It is short.", "name": "short"},
            {"type": "choice", "instructions": [{"type": "input_text", "text": "Which?"}],
             "choices": [{"value": "true", "description": "d"}, {"value": true}]},
            {"type": "score", "instructions": "How good?", "levels": [{"label": "bad"}, {"label": "good"}]}])");
    ASSERT_EQ(request.questions.size(), 3U);
    EXPECT_EQ(request.questions[0].options.size(), 2U);
    EXPECT_EQ(request.questions[1].instructions, "Which?");
    EXPECT_FALSE(request.questions[1].options[0].is_boolean);
    EXPECT_TRUE(request.questions[1].options[1].is_boolean) << "\"true\" is not true";
    const Json row = decision_row(*request.messages, request.questions[1], {"A", "B"});
    ASSERT_EQ(row["messages"].size(), 1U) << "templates want users and assistants in turn";
    const std::string content = row["messages"][0]["content"];
    EXPECT_TRUE(content.starts_with("The text.\n\nWhich?\nA. true: d\nB. true\n")) << content;
    const DecisionRequest chat = asked(R"([{"type": "predicate", "instructions": "x"}])",
                                       R"([{"role": "user", "content": "a"}, {"role": "assistant", "content":
                                           [{"type": "output_text", "text": "b"}]}])");
    EXPECT_EQ(decision_row(*chat.messages, chat.questions[0], {"A", "B"})["messages"].size(), 3U);
}

TEST(OpenaiDecision, RefusesByTheFieldsName) {
    const auto param = [](const auto& parse) -> std::string {
        try {
            parse();
        } catch (const ApiError& error) {
            return error.param();
        }
        return "taken";
    };
    const std::pair<const char*, const char*> wrong[] = {
        {"[]", "questions"},
        {R"([{"type": "maybe", "instructions": "x"}])", "questions[0].type"},
        {R"([{"type": "predicate"}])", "questions[0].instructions"},
        {R"([{"type": "predicate", "instructions": "x", "choices": []}])", "questions[0].choices"},
        {R"([{"type": "choice", "instructions": "x", "choices": [{"value": "a"}]}])", "questions[0].choices"},
        {R"([{"type": "choice", "instructions": "x", "choices": [{"value": "a"}, {"value": "a"}]}])",
         "questions[0].choices[1]"},
        {R"([{"type": "choice", "instructions": "x", "choices": [{"value": "a"}, {"value": 3}]}])",
         "questions[0].choices[1].value"},
        {R"([{"type": "score", "instructions": "x", "levels": [{"label": "a"}, {}]}])", "questions[0].levels[1].label"},
    };
    for (const auto& [questions, name] : wrong) EXPECT_EQ(param([&] { asked(questions); }), name);
    const std::string one = R"([{"type": "predicate", "instructions": "x"}])";
    EXPECT_EQ(param([&] { asked(one, "3"); }), "input");
    EXPECT_EQ(param([&] { asked(one, R"([{"type": "function_call"}])"); }), "input[0].type");
    EXPECT_EQ(param([&] { asked(one, R"([{"role": "user", "content": [{"type": "input_image"}]}])"); }),
              "input[0].content[0].type");
    EXPECT_EQ(param([&] { parse_decision(R"({"input": "x", "questions": )" + one + R"(, "extra": 1})", strictly); }),
              "extra");
}

TEST(OpenaiDecision, AnswersHaveOpenaisForm) {
    const DecisionRequest request = asked(
        R"([{"type": "predicate", "instructions": "x", "name": "p"},
            {"type": "choice", "instructions": "x", "choices": [{"value": "a"}, {"value": false}]},
            {"type": "score", "instructions": "x", "levels": [{"label": "l"}, {"label": "m"}, {"label": "h"}]}])");
    const Json answer =
        Json::parse(decision_text(request, "m", {{0.3, 0.1}, {0.2, 0.6}, {0.1, 0.1, 0.2}}, {30, 20, 3}));
    const Json& answers = answer["answers"];
    EXPECT_EQ(answers[0]["name"], "p");
    EXPECT_NEAR(answers[0]["probability"].get<double>(), 0.75, 1e-12);
    EXPECT_TRUE(answers[1]["name"].is_null());
    EXPECT_EQ(answers[1]["choice"], false);
    EXPECT_NEAR(answers[1]["confidence"].get<double>(), 0.75 * 0.8, 1e-12) << "of the labels' mass";
    EXPECT_EQ(answers[1]["probabilities"][0]["value"], "a");
    EXPECT_NEAR(answers[2]["score"].get<double>(), 1 * 0.25 + 2 * 0.5, 1e-12);
    EXPECT_EQ(answers[2]["probabilities"][2]["label"], "h");
    EXPECT_EQ(answer["usage"]["total_tokens"], 33);
    EXPECT_EQ(answer["usage"]["input_tokens_details"]["cached_tokens"], 20);
}

std::vector<float> shares_of(const std::string& question, const std::string& answer) {
    return parse_decision_example(
               Json::parse(R"({"input": "The text.", "question": )" + question + ", " + answer + "}"))
        .shares;
}

const std::string
    score_question = R"({"type": "score", "instructions": "How good?", "levels": [{"label": "a"}, {"label": "b"}]})",
    choice_question =
        R"({"type": "choice", "instructions": "Which?", "choices": [{"value": "true"}, {"value": true}]})",
    predicate_question = R"({"type": "predicate", "instructions": "It is short."})";

TEST(OpenaiDecision, ARowsAnswerIsAnOptionOrProbabilities) {
    using Shares = std::vector<float>;
    EXPECT_EQ(shares_of(predicate_question, R"("answer": false)"), (Shares{0, 1}));
    EXPECT_EQ(shares_of(choice_question, R"("answer": "true")"), (Shares{1, 0}));
    EXPECT_EQ(shares_of(choice_question, R"("answer": true, "other": 1)"), (Shares{0, 1}));
    EXPECT_EQ(shares_of(score_question, R"("answer": 1)"), (Shares{0, 1}));
    EXPECT_EQ(shares_of(score_question, R"("answer": "a")"), (Shares{1, 0}));
    EXPECT_EQ(shares_of(score_question, R"("probabilities": [0.25, 0.75], "answer": null)"), (Shares{0.25F, 0.75F}));
}

TEST(OpenaiDecision, RefusesARowByItsColumnsName) {
    const auto param = [](const std::string& question, const std::string& answer) -> std::string {
        try {
            shares_of(question, answer);
        } catch (const ApiError& refused) {
            return refused.param();
        }
        return "nothing";
    };
    EXPECT_EQ(param(predicate_question, R"("answer": "maybe")"), "answer");
    EXPECT_EQ(param(predicate_question, R"("answer": 1)"), "answer");
    EXPECT_EQ(param(score_question, R"("answer": 2)"), "answer");
    EXPECT_EQ(param(score_question, R"("answer": -1)"), "answer");
    EXPECT_EQ(param(score_question, R"("x": 1)"), "answer");
    EXPECT_EQ(param(score_question, R"("answer": 1, "probabilities": [0, 1])"), "answer");
    EXPECT_EQ(param(score_question, R"("probabilities": [0.5, 0.4])"), "probabilities");
    EXPECT_EQ(param(score_question, R"("probabilities": [1.5, -0.5])"), "probabilities");
    EXPECT_EQ(param(score_question, R"("probabilities": [1])"), "probabilities");
    EXPECT_EQ(param(R"({"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "a"}]})",
                    R"("answer": "a")"),
              "question.choices[1]");
    EXPECT_EQ(param(R"({"type": "choice", "instructions": "?"})", R"("answer": "a")"), "question.choices");
}

TEST(OpenaiDecision, ATemperatureDividesTheOptionsLogits) {
    std::vector<double> weights{0.4, 0.1, 0};
    scale_weights(weights, 2);
    EXPECT_NEAR(weights[0], 0.5 * 2 / 3, 1e-12);
    EXPECT_NEAR(weights[1], 0.5 / 3, 1e-12);
    EXPECT_EQ(weights[2], 0);
    std::vector<double> none{0, 0};
    scale_weights(none, 2);
    EXPECT_EQ(none[0], 0);
}

}  // namespace
}  // namespace unsloth::openai
