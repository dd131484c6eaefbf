// Preferences: the losses against TRL's own (tests/golden/preference), DPO step by step against the reference
// trajectory's figures, and what must hold of every objective.
#include <random>

#include "train/support.h"
#include "unsloth/formats/peft.h"
#include "unsloth/objective/objective.h"
#include "unsloth/spec/preference_loss.h"

namespace unsloth {
namespace {

using namespace test;

/// Random pairs (or judged answers) whose good answers are of other tokens than the bad ones, so that there is
/// something to learn.
void write_preferences(const fs::path& path, int count, uint32_t seed, bool judged) {
    std::mt19937 random(seed);
    const auto ids = [&](int least, int most, int first) {
        std::vector<int32_t> row;
        const int length = least + static_cast<int>(random() % static_cast<uint32_t>(most - least + 1));
        for (int t = 0; t < length; ++t) row.push_back(first + static_cast<int32_t>(random() % 40));
        return row;
    };
    std::string text;
    for (int i = 0; i < count; ++i) {
        nlohmann::json row{{"prompt", ids(2, 6, 10)}};
        if (judged) {
            const bool good = i % 3 != 0;
            row["completion"] = ids(3, 8, good ? 60 : 120);
            row["label"] = good;
        } else {
            row["chosen"] = ids(3, 8, 60);
            row["rejected"] = ids(3, 8, 120);
        }
        text += row.dump() + "\n";
    }
    write_text(path, text);
}

class PreferenceTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        UNSLOTH_NEEDS_XZ();
        write_preferences(folder / "pairs.jsonl", 24, 1, false);
        write_preferences(folder / "judged.jsonl", 24, 2, true);
        write_preferences(folder / "held_out.jsonl", 8, 3, false);
        write_preferences(folder / "held_out_judged.jsonl", 9, 4, true);
    }
    Flags flags(const std::string& objective, const Flags& more = {}) const {
        const bool judged = objective == "kto";
        return Flags{"--model.path",
                     model_folder("small_llama/nf4_dq").string(),
                     "--data.train_file",
                     (folder / (judged ? "judged.jsonl" : "pairs.jsonl")).string(),
                     "--data.eval_file",
                     (folder / (judged ? "held_out_judged.jsonl" : "held_out.jsonl")).string(),
                     "--training.output_dir",
                     (folder / "out").string(),
                     "--training.overwrite_output_dir",
                     "true",
                     "--hardware.device",
                     GetParam(),
                     "--training.lr_scheduler_type",
                     "constant",
                     "--training.learning_rate",
                     "0.002",
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
                     "true",
                     "--training.objective",
                     objective} +
               more;
    }
    ScratchFolder folder;
};

struct NamedObjective {
    const char* objective;
    Flags flags;
    bool by_reference = true;
};
const std::vector<NamedObjective> objectives = {
    {"dpo", {}},
    {"dpo", {"--preference.label_smoothing", "0.1"}},
    {"dpo", {"--preference.loss_type", "hinge"}},
    {"dpo", {"--preference.loss_type", "ipo"}},
    {"dpo", {"--preference.loss_type", "robust", "--preference.label_smoothing", "0.1"}},
    {"dpo", {"--preference.loss_type", "simpo", "--preference.beta", "2"}, false},
    {"dpo", {"--preference.rpo_alpha", "1"}},
    {"dpo", {"--preference.reference_free", "true"}, false},
    {"orpo", {"--preference.beta", "2"}, false},  // with less, 18 steps are about the chosen answers' own loss
    {"kto", {"--preference.undesirable_weight", "1.5"}}};

std::string name_of(const NamedObjective& o) {
    std::string name = o.objective;
    for (const std::string& flag : o.flags) name += " " + flag;
    return name;
}

// What was learnt shows on pairs that were not trained on, too.
TEST_P(PreferenceTest, EveryObjectiveRaisesTheMarginOfHeldOutRows) {
    for (const NamedObjective& o : objectives) {
        SCOPED_TRACE(name_of(o));
        train::Trainer(make_config(flags(o.objective, o.flags) + Flags{"--training.eval_on_start", "true"})).run();
        std::vector<nlohmann::json> steps, evaluations;
        std::istringstream lines(read_file(folder / "out/metrics.jsonl"));
        for (std::string line; std::getline(lines, line);) {
            const nlohmann::json row = nlohmann::json::parse(line);
            if (row.contains("eval_loss")) evaluations.push_back(row);
            if (row.contains("loss")) steps.push_back(row);
        }
        ASSERT_EQ(evaluations.size(), 2U);
        ASSERT_EQ(steps.size(), 18U);
        EXPECT_LT(evaluations[1]["eval_loss"], evaluations[0]["eval_loss"]);
        EXPECT_GT(evaluations[1]["eval_rewards/margins"].get<double>(),
                  evaluations[0]["eval_rewards/margins"].get<double>() + 0.01);
        EXPECT_GT(steps[17]["rewards/margins"], steps[0]["rewards/margins"]);
        EXPECT_LT(steps[17]["loss"], steps[0]["loss"]);
        if (std::string(o.objective) == "kto") {
            EXPECT_TRUE(steps[17].contains("kl"));
            continue;
        }
        // Without a reference, what the base holds of an answer counts too.
        const double before = evaluations[0]["eval_rewards/accuracies"],
                     after = evaluations[1]["eval_rewards/accuracies"];
        EXPECT_GE(after, o.by_reference ? 0.75 : before);
    }
}

// B is zero at first: the policy is the reference, whichever of the two that is.
TEST_P(PreferenceTest, ThePolicyBeginsAsItsReference) {
    for (const char* reference : {"base", "initial"}) {
        const Course course =
            train_all(make_config(flags("dpo", {"--preference.reference", reference, "--training.max_steps", "1"})));
        EXPECT_NEAR(course.steps[0].outcome.loss, std::log(2.0), 1e-6) << reference;
        EXPECT_NEAR(figure(course.steps[0].figures, "rewards/margins"), 0, 1e-5) << reference;
    }
    train::Trainer(make_config(flags("dpo", {"--training.max_steps", "6"}))).run();
    std::filesystem::rename(folder / "out", folder / "start");
    const auto first = [&](const char* reference) {
        return figure(
            train_all(make_config(flags("dpo", {"--model.adapter_name_or_path", (folder / "start").string(),
                                                "--preference.reference", reference, "--training.max_steps", "1"})))
                .steps[0]
                .figures,
            "rewards/margins");
    };
    EXPECT_GT(first("base"), 0.01) << "a trained adapter is ahead of the base";
    EXPECT_NEAR(first("initial"), 0, 1e-5) << "and not of itself";
}

// Kto compares with the divergence of a micro-batch, as TRL does: it is not among these.
TEST_P(PreferenceTest, TheSplitIntoMicroBatchesDoesNotMatter) {
    for (const NamedObjective& o : objectives) {
        if (std::string(o.objective) == "kto") continue;
        SCOPED_TRACE(name_of(o));
        const auto split = [&](const char* rows, const char* rounds) {
            return train_all(
                make_config(flags(o.objective, o.flags) + Flags{"--training.per_device_train_batch_size", rows,
                                                                "--training.gradient_accumulation_steps", rounds,
                                                                "--training.max_steps", "4"}));
        };
        const Course once = split("4", "1"), four = split("1", "4");
        for (std::size_t i = 0; i < once.steps.size(); ++i) {
            EXPECT_NEAR(four.steps[i].outcome.loss, once.steps[i].outcome.loss,
                        5e-6 * std::max(1.0F, once.steps[i].outcome.loss))
                << "step " << i + 1;
            EXPECT_NEAR(figure(four.steps[i].figures, "rewards/margins"),
                        figure(once.steps[i].figures, "rewards/margins"), 5e-5);
        }
    }
}

TEST_P(PreferenceTest, PackedPairsStayPairs) {
    const Course course =
        train_all(make_config(flags("dpo", {"--data.packing", "true", "--model.max_seq_length", "64"})));
    EXPECT_NEAR(course.steps[0].outcome.loss, std::log(2.0), 1e-6);
    EXPECT_LT(course.steps.back().outcome.loss, course.steps[0].outcome.loss - 0.02);
}

// A pair's prompt is computed once for both answers, and that changes nothing but rounding: packed or not, with a head
// that is trained or not, in evaluations and references too.
TEST_P(PreferenceTest, ASharedPromptGivesWhatTwoCopiesGive) {
    struct Case {
        const char* objective;
        Flags flags;
    };
    for (const Case& c : {Case{"dpo", {}},
                          Case{"dpo",
                               {"--data.packing", "true", "--model.max_seq_length", "64",
                                "--training.gradient_accumulation_steps", "24"}},
                          Case{"dpo", {"--lora.modules_to_save", "lm_head", "--preference.rpo_alpha", "1"}},
                          Case{"dpo", {"--preference.loss_type", "simpo", "--training.gradient_checkpointing", "full"}},
                          Case{"dpo", {"--lora.use_dora", "true"}}, Case{"orpo", {}}, Case{"kto", {}}}) {
        SCOPED_TRACE(cat(c.objective, c.flags.empty() ? "" : " " + c.flags.front()));
        const auto with = [&](const char* shares) {
            return make_config(flags(c.objective, c.flags) + Flags{"--preference.share_prompt", shares});
        };
        const Tensors shared = first_gradients(with("true")), copied = first_gradients(with("false"));
        int compared = 0;
        for (const auto& [name, gradient] : copied) {
            if (l2(gradient) == 0) continue;
            EXPECT_LT(relative_frobenius(shared.at(name), gradient), 2e-5) << name;
            ++compared;
        }
        EXPECT_GT(compared, 20);
        const Course a = train_all(with("true")), b = train_all(with("false"));
        ASSERT_EQ(a.steps.size(), b.steps.size());
        EXPECT_LT(a.steps[0].tokens, b.steps[0].tokens);
        for (std::size_t i = 0; i < a.steps.size(); ++i)
            EXPECT_NEAR(a.steps[i].outcome.loss, b.steps[i].outcome.loss, 2e-4) << "step " << i + 1;
    }
}

// The chosen answers' own loss runs over their prompts, too.
TEST_P(PreferenceTest, OrpoLearnsTheChosenAnswersPrompts) {
    for (const char* shares : {"true", "false"}) {
        const Course course = train_all(make_config(flags(
            "orpo", {"--training.max_steps", "1", "--preference.share_prompt", shares,
                     "--training.per_device_train_batch_size", "4", "--training.gradient_accumulation_steps", "1"})));
        // A supervised run over the same chosen conversations, every token a target.
        std::vector<Row> rows;
        std::istringstream lines(read_file(folder / "pairs.jsonl"));
        for (std::string line; rows.size() < 4 && std::getline(lines, line);) {
            const nlohmann::json pair = nlohmann::json::parse(line);
            Row row;
            for (const char* part : {"prompt", "chosen"})
                for (const int32_t id : pair[part]) row.ids.push_back(id);
            row.labels = row.ids;
            rows.push_back(std::move(row));
        }
        write_rows(folder / "chosen.jsonl", rows);
        Flags supervised = flags("sft", {"--training.max_steps", "1", "--training.per_device_train_batch_size", "4",
                                         "--training.gradient_accumulation_steps", "1"});
        supervised = supervised + Flags{"--data.train_file", (folder / "chosen.jsonl").string(), "--data.eval_file",
                                        (folder / "chosen.jsonl").string()};
        const Course plain = train_all(make_config(supervised));
        EXPECT_NEAR(figure(course.steps[0].figures, "nll_loss"), plain.steps[0].outcome.loss, 1e-5) << shares;
    }
}

// With dropout the prompt's one copy has one mask, which both answers see: of what follows nothing depends on how the
// rows are split.
TEST_P(PreferenceTest, ASharedPromptHasOneMaskOfDropout) {
    const auto split = [&](const char* rows, const char* rounds, const char* shares) {
        return train_all(
            make_config(flags("dpo", {"--lora.lora_dropout", "0.3", "--preference.share_prompt", shares,
                                      "--training.per_device_train_batch_size", rows,
                                      "--training.gradient_accumulation_steps", rounds, "--training.max_steps", "4"})));
    };
    const Course once = split("4", "1", "true"), four = split("1", "4", "true"), copied = split("4", "1", "false");
    for (std::size_t i = 0; i < once.steps.size(); ++i)
        EXPECT_NEAR(four.steps[i].outcome.loss, once.steps[i].outcome.loss, 5e-6) << "step " << i + 1;
    EXPECT_NE(once.steps.back().outcome.loss, copied.steps.back().outcome.loss) << "there two copies have two masks";
}

// A trained head needs the rows' weights before its products, a frozen one has them after: the adapters' gradients are
// the same either way.
TEST_P(PreferenceTest, WeightsBeforeAndBehindTheHeadGiveTheSameGradients) {
    for (const char* objective : {"dpo", "orpo", "kto"}) {
        const auto gradients = [&](const Flags& more) { return first_gradients(make_config(flags(objective, more))); };
        const Tensors frozen = gradients({}), trained = gradients({"--lora.modules_to_save", "lm_head"});
        int compared = 0;
        for (const auto& [name, gradient] : frozen) {
            if (l2(gradient) == 0) continue;
            EXPECT_LT(relative_frobenius(trained.at(name), gradient), 1e-5) << objective << " " << name;
            ++compared;
        }
        EXPECT_GT(compared, 20) << objective;
        EXPECT_GT(l2(trained.at(formats::saved_module_name("lm_head"))), 0) << objective;
    }
}

TEST_P(PreferenceTest, ARunGoesOnWithTheReferenceItBeganWith) {
    train::Trainer(make_config(flags("dpo", {"--training.max_steps", "6"}))).run();
    std::filesystem::rename(folder / "out", folder / "start");
    const Flags initial =
        flags("dpo", {"--model.adapter_name_or_path", (folder / "start").string(), "--preference.reference", "initial",
                      "--training.max_steps", "6", "--training.save_steps", "3"});
    const auto adapter = [&] { return read_tensors(folder / "out/adapter_model.safetensors"); };
    train::Trainer(make_config(initial)).run();
    const Tensors whole = adapter();
    std::filesystem::rename(folder / "out", folder / "whole");
    train::Trainer(
        make_config(initial + Flags{"--training.overwrite_output_dir", "false", "--training.resume_from_checkpoint",
                                    (folder / "whole/checkpoint-3").string()}))
        .run();
    expect_same_bits(adapter(), whole);
}

TEST_P(PreferenceTest, AReferenceIsScoredOnceForTheSameRowsAndModel) {
    const auto with = [&](const Flags& more) {
        return make_config(
            flags("dpo", {"--training.max_steps", "2", "--data.cache_dir", (folder / "cache").string()}) + more);
    };
    const auto scores = [&](const Flags& more) {
        train::Trainer trainer(with(more));
        trainer.load();
        return trainer.model().counts().qkv > 0;
    };
    EXPECT_TRUE(scores({}));
    EXPECT_FALSE(scores({}));
    EXPECT_TRUE(scores({"--model.dtype", "bfloat16"}));
    EXPECT_TRUE(scores({"--preference.cache_reference", "false"}));
    EXPECT_TRUE(scores({"--data.val_size", "0", "--training.max_steps", "3"})) << "other rows";
    expect_same_course(train_all(with({})), train_all(with({"--preference.cache_reference", "false"})));
    for (const auto& entry : fs::directory_iterator(folder / "cache")) {
        if (entry.path().extension() != ".values") continue;
        std::string content = read_file(entry.path());
        content.back() ^= 1;
        write_text(entry.path(), content);
    }
    EXPECT_TRUE(scores({})) << "damaged";
    EXPECT_FALSE(scores({})) << "and made again";
}

INSTANTIATE_TEST_SUITE_P(All, PreferenceTest, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
