// What the peers' files say of intervals, splits, mixtures and templates, as options of ours.
#include "tests/import/import_support.h"

namespace unsloth::testing {
namespace {

config::TrainingOptions training_of(const std::string& rest) {
    const std::string file = "base_model: m\nadapter: lora\nval_set_size: 0.1\ndatasets: [{path: a, type: alpaca}]\n";
    const import::ImportedConfig imported = import_text(file + rest);
    EXPECT_TRUE(imported.losses.empty()) << all(imported.losses);
    return loaded(imported).config.training;
}

TEST(ImportIntervals, OfAxolotl) {
    const config::TrainingOptions often = training_of("num_epochs: 3\nevals_per_epoch: 4\nsaves_per_epoch: 2\n");
    EXPECT_EQ(often.evals_per_epoch, 4);
    EXPECT_EQ(often.saves_per_epoch, 2);
    EXPECT_EQ(often.save_steps, 0);
    // A share of the steps that max_steps leaves: 1 / (4 x 2).
    const config::TrainingOptions cut =
        training_of("num_epochs: 2\nmax_steps: 80\nevals_per_epoch: 4\nsaves_per_epoch: 1\n");
    EXPECT_EQ(cut.eval_steps, 0.125);
    EXPECT_EQ(cut.save_steps, 0.5);
    EXPECT_EQ(cut.evals_per_epoch, 0);
    const config::TrainingOptions shares = training_of("eval_steps: 0.1\nsave_steps: 0.25\n");
    EXPECT_EQ(shares.eval_steps, 0.1);
    EXPECT_EQ(shares.save_steps, 0.25);
    EXPECT_EQ(training_of("save_strategy: epoch\n").saves_per_epoch, 1);
    EXPECT_EQ(training_of("").saves_per_epoch, 1);  // what axolotl does when nobody says anything
    EXPECT_TRUE(training_of("num_epochs: 3\nevals_per_epoch: 4\nsaves_per_epoch: 1\nearly_stopping_patience: 2\n")
                    .load_best_model_at_end);
    EXPECT_CONTAINS(all(import_text("base_model: m\nadapter: lora\nevals_per_epoch: 4\n").notes),
                    "evals_per_epoch: has no effect: there are no rows to evaluate on");
}

TEST(ImportIntervals, OfTransformersArguments) {
    const auto of = [](const std::string& rest) {
        return loaded(import_text("model_name_or_path: m\ndataset_name: a\ntest_split_size: 5\n" + rest))
            .config.training;
    };
    EXPECT_EQ(of("eval_strategy: epoch\n").evals_per_epoch, 1);
    EXPECT_EQ(of("eval_strategy: steps\neval_steps: 0.2\n").eval_steps, 0.2);
    EXPECT_EQ(of("save_strategy: epoch\nsave_steps: 100\n").saves_per_epoch, 1);
    EXPECT_EQ(of("save_strategy: epoch\nsave_steps: 100\n").save_steps, 0);
    const config::Config factory =
        loaded(import_text("model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ntemplate: llama3\nval_size: 0.1\n"
                           "eval_strategy: epoch\nsave_strategy: epoch\n"))
            .config;
    EXPECT_EQ(factory.training.evals_per_epoch, 1);
    EXPECT_EQ(factory.training.saves_per_epoch, 1);
}

TEST(ImportData, SplitsAndSlices) {
    const import::ImportedConfig axolotl = import_text(R"(
base_model: m
adapter: lora
datasets:
- {path: org/rows, name: en, type: alpaca, split: "train[:20%]"}
test_datasets:
- {path: org/rows, type: alpaca, split: "test[:100]"}
)");
    EXPECT_TRUE(axolotl.losses.empty()) << all(axolotl.losses);
    const config::DataOptions data = loaded(axolotl).config.data;
    ASSERT_EQ(data.datasets.size(), 1u);
    EXPECT_EQ(data.datasets[0].split, "train[:20%]");
    EXPECT_EQ(data.datasets[0].config_name, "en");
    EXPECT_EQ(data.eval_file, "org/rows");
    EXPECT_EQ(data.eval_split, "test[:100]");

    const import::ImportedConfig trl =
        import_text("model_name_or_path: m\ndataset_name: org/rows\neval_strategy: epoch\n");
    EXPECT_TRUE(trl.losses.empty()) << all(trl.losses);
    EXPECT_EQ(loaded(trl).config.data.train_file, "org/rows");
    EXPECT_EQ(loaded(trl).config.data.eval_split, "test");
    const config::DataOptions named =
        loaded(import_text("model_name_or_path: m\ndataset_name: org/rows\ndataset_config: de\n"
                           "dataset_test_split: val\neval_strategy: epoch\n"))
            .config.data;
    EXPECT_EQ(named.eval_file, "hf://datasets/org/rows/de");
    EXPECT_EQ(named.eval_split, "val");
}

TEST(ImportData, MixturesOfTheHandbook) {
    const import::ImportedConfig imported = import_text(R"(
model_name_or_path: m
chat_template: "{% for message in messages %}{{ message.content }}{% endfor %}"
dataset_mixture:
  datasets:
  - {id: org/a, config: default, split: train_sft, columns: [messages], weight: 1.0}
  - {id: org/b, config: all, columns: [messages], weight: 0.25}
  test_split_size: 1000
  seed: 0
eval_strategy: epoch
)");
    EXPECT_TRUE(imported.losses.empty()) << all(imported.losses);
    const config::Config config = loaded(imported).config;
    ASSERT_EQ(config.data.datasets.size(), 2u);
    EXPECT_EQ(config.data.datasets[0].split, "train_sft");
    EXPECT_EQ(config.data.datasets[0].config_name, "");
    EXPECT_EQ(config.data.datasets[1].split, "train[:25%]");
    EXPECT_EQ(config.data.datasets[1].config_name, "all");
    EXPECT_EQ(config.data.format, config::DataFormat::messages);
    EXPECT_EQ(config.data.val_size, 1000);
    EXPECT_EQ(config.training.evals_per_epoch, 1);
    EXPECT_TRUE(config.data.template_name.starts_with("{% for message"));
    EXPECT_CONTAINS(all(imported.notes), "weight: 0.25: the first 25 % of its rows are taken");

    const import::ImportedConfig mixer = import_text(R"(
model_name_or_path: m
dataset_mixer: {org/pairs: 1.0}
dataset_splits: [train_prefs, test_prefs]
evaluation_strategy: steps
eval_steps: 100
)");
    EXPECT_TRUE(mixer.losses.empty()) << all(mixer.losses);
    const config::DataOptions data = loaded(mixer).config.data;
    ASSERT_EQ(data.datasets.size(), 1u);
    EXPECT_EQ(data.datasets[0].split, "train_prefs");
    EXPECT_EQ(data.eval_file, "org/pairs");
    EXPECT_EQ(data.eval_split, "test_prefs");
}

TEST(ImportData, MembersOfAnotherKindAreNamed) {
    EXPECT_CONTAINS(all(import_text("model_name_or_path: m\ndatasets: {path: org/rows}\n").losses),
                    "a list of data sets is expected");
    // Splits to test on alone: nothing is left to train on.
    const import::ImportedConfig tests = import_text(R"(
model_name_or_path: m
dataset_mixer: {org/pairs: 1.0}
dataset_splits: [test_prefs]
eval_strategy: steps
)");
    EXPECT_FALSE(loaded(tests).config.data.eval_file);
}

TEST(ImportTemplates, TextsOfTemplatesAreCarriedOver) {
    const config::DataOptions data = loaded(import_text("base_model: m\nadapter: lora\nchat_template: jinja\n"
                                                        "chat_template_jinja: \"{{ messages[0].content }}\"\n"))
                                         .config.data;
    EXPECT_EQ(data.template_name, "{{ messages[0].content }}");
}

}  // namespace
}  // namespace unsloth::testing
