// Distillation: a student comes nearer to its teacher, whether that is a model or a file of what it said.
#include <random>

#include "train/support.h"
#include "unsloth/commands/commands.h"

namespace unsloth {
namespace {

using namespace test;

/// Rows whose answers are of other tokens than their prompts, with a rule to learn.
void write_answers(const fs::path& path, int count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<Row> rows;
    for (int i = 0; i < count; ++i) {
        Row row;
        const auto prompt = 2 + static_cast<int>(random() % 5), answer = 3 + static_cast<int>(random() % 6);
        for (int t = 0; t < prompt; ++t) row.ids.push_back(10 + static_cast<int32_t>(random() % 40));
        row.labels.assign(row.ids.size(), data::ignore_label);
        for (int t = 0; t < answer; ++t)
            row.ids.push_back(row.ids.back() % 50 + 60 + static_cast<int32_t>(random() % 3));
        row.labels.insert(row.labels.end(), row.ids.end() - answer, row.ids.end());
        rows.push_back(std::move(row));
    }
    write_rows(path, rows);
}

void expect_contains(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

class DistillTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        UNSLOTH_NEEDS_XZ();
        write_answers(folder / "rows.jsonl", 24, 1);
        write_answers(folder / "held_out.jsonl", 8, 2);
    }
    Flags flags(const std::string& out, const Flags& more = {}) const {
        return Flags{"--model.path",
                     model_folder("small_llama/nf4_dq").string(),
                     "--data.train_file",
                     (folder / "rows.jsonl").string(),
                     "--data.eval_file",
                     (folder / "held_out.jsonl").string(),
                     "--training.output_dir",
                     (folder / out).string(),
                     "--training.overwrite_output_dir",
                     "true",
                     "--hardware.device",
                     GetParam(),
                     "--training.lr_scheduler_type",
                     "constant",
                     "--training.learning_rate",
                     "0.003",
                     "--training.warmup_steps",
                     "0",
                     "--training.num_train_epochs",
                     "3",
                     "--lora.r",
                     "8",
                     "--training.per_device_train_batch_size",
                     "2",
                     "--training.gradient_accumulation_steps",
                     "2",
                     "--training.deterministic",
                     "true"} +
               more;
    }
    /// The base with an adapter that learnt the rows.
    const fs::path& teacher() {
        if (teacher_.empty()) {
            train::Trainer(make_config(flags("teacher"))).run();
            teacher_ = folder / "teacher";
        }
        return teacher_;
    }
    Flags student(const Flags& more = {}) {
        return flags("student", Flags{"--training.objective", "distill", "--distill.teacher",
                                      model_folder("small_llama/nf4_dq").string(), "--distill.teacher_adapter",
                                      teacher().string()} +
                                    more);
    }
    Flags student_of_file(const fs::path& file, const Flags& more = {}) const {
        return flags("student", Flags{"--training.objective", "distill", "--distill.teacher", file.string()} + more);
    }
    fs::path score(int64_t top_k, const Flags& more = {}) {
        const fs::path file = folder / cat("top_", top_k, ".safetensors");
        commands::run_score(
            make_config(flags("scores", Flags{"--model.adapter_name_or_path", teacher().string()} + more)),
            {.out = file.string(), .top_k = top_k});
        return file;
    }
    std::string error_of(const Flags& of_student) const {
        try {
            train::Trainer trainer(make_config(of_student));
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    }

    ScratchFolder folder;
    fs::path teacher_;
};

TEST_P(DistillTest, AStudentComesNearerToItsTeacher) {
    for (const char* divergence : {"forward_kl", "reverse_kl", "jsd"}) {
        SCOPED_TRACE(divergence);
        train::Trainer(make_config(student({"--distill.divergence", divergence, "--distill.temperature", "2",
                                            "--distill.alpha", "1", "--training.eval_on_start", "true"})))
            .run();
        std::vector<nlohmann::json> evaluations;
        std::istringstream lines(read_file(folder / "student/metrics.jsonl"));
        for (std::string line; std::getline(lines, line);)
            if (const nlohmann::json row = nlohmann::json::parse(line); row.contains("eval_loss"))
                evaluations.push_back(row);
        ASSERT_EQ(evaluations.size(), 2U);
        EXPECT_GT(evaluations[0]["eval_divergence"], 0.001);
        EXPECT_LT(evaluations[1]["eval_divergence"].get<double>(),
                  0.5 * evaluations[0]["eval_divergence"].get<double>());
        EXPECT_NEAR(evaluations[1]["eval_loss"].get<double>(), 4 * evaluations[1]["eval_divergence"].get<double>(),
                    1e-5);
    }
}

TEST_P(DistillTest, WithoutAShareOfTheTeacherItIsSupervisedTraining) {
    const Course course = train_all(make_config(student({"--distill.alpha", "0", "--training.max_steps", "4"}))),
                 supervised = train_all(make_config(flags("student", {"--training.max_steps", "4"})));
    for (std::size_t i = 0; i < supervised.steps.size(); ++i) {
        EXPECT_NEAR(course.steps[i].outcome.loss, supervised.steps[i].outcome.loss, 1e-5);
        EXPECT_NEAR(figure(course.steps[i].figures, "nll_loss"), supervised.steps[i].outcome.loss, 1e-5);
    }
    for (const auto& [name, value] : supervised.final_values)
        EXPECT_LT(relative_frobenius(course.final_values.at(name), value), 1e-2) << name;
}

// All ids but one, and that one as the rest: nothing is lost.
TEST_P(DistillTest, AFileSaysWhatItsModelSaid) {
    const Flags four = {"--training.max_steps", "4",    "--distill.temperature",  "1.5", "--distill.divergence", "jsd",
                        "--data.packing",       "true", "--model.max_seq_length", "64"};
    const fs::path file = score(255, {"--distill.temperature", "1.5", "--model.max_seq_length", "64"});
    const Course by_model = train_all(make_config(student(four))),
                 by_file = train_all(make_config(student_of_file(file, four)));
    ASSERT_EQ(by_model.steps.size(), by_file.steps.size());
    for (std::size_t i = 0; i < by_model.steps.size(); ++i) {
        EXPECT_NEAR(by_file.steps[i].outcome.loss, by_model.steps[i].outcome.loss, 2e-5) << "step " << i + 1;
        EXPECT_NEAR(figure(by_file.steps[i].figures, "divergence"), figure(by_model.steps[i].figures, "divergence"),
                    2e-5);
    }
    // Classes that are joined are never farther apart.
    const Course by_few = train_all(make_config(student_of_file(file, four + Flags{"--distill.top_k", "8"})));
    EXPECT_LT(figure(by_few.steps[0].figures, "divergence"), figure(by_model.steps[0].figures, "divergence"));
    EXPECT_GT(figure(by_few.steps[0].figures, "divergence"), 0);
}

TEST_P(DistillTest, TheSplitIntoMicroBatchesDoesNotMatter) {
    const auto split = [&](const char* rows, const char* rounds) {
        return train_all(
            make_config(student({"--training.per_device_train_batch_size", rows,
                                 "--training.gradient_accumulation_steps", rounds, "--training.max_steps", "3"})));
    };
    const Course once = split("4", "1"), four = split("1", "4");
    for (std::size_t i = 0; i < once.steps.size(); ++i)
        EXPECT_NEAR(four.steps[i].outcome.loss, once.steps[i].outcome.loss, 1e-5) << "step " << i + 1;
}

TEST_P(DistillTest, RefusesTeachersThatSpeakOfOtherThings) {
    expect_contains(error_of(flags("student", {"--training.objective", "distill", "--distill.teacher",
                                               model_folder("tiny_llama/nf4_dq").string()})),
                    "vocabulary");
    const fs::path file = score(8);
    expect_contains(error_of(student_of_file(file, {"--distill.temperature", "2"})), "temperature");
    expect_contains(error_of(student_of_file(file, {"--distill.top_k", "9"})), "has 8 tokens");
    expect_contains(error_of(student_of_file(file, {"--model.max_seq_length", "8"})), "training rows");
    write_answers(folder / "held_out.jsonl", 8, 3);
    expect_contains(error_of(student_of_file(file)), "evaluation's rows 8 of 8");
    expect_contains(error_of(student({"--distill.top_k", "8"})), "only applies to a teacher's file");
}

INSTANTIATE_TEST_SUITE_P(All, DistillTest, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
