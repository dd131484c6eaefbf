// Every fast path of a GPU run trains as the plain one does: the trained base of examples/legal, in bf16.
#include "common/files.h"
#include "train/support.h"

namespace unsloth {
namespace {

using namespace test;

class FastPath : public ::testing::Test {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_DEVICE("cuda"); }

    /// The plain path: library products, weights expanded in every step, everything kept, nothing recorded.
    Flags plain() const {
        const std::string legal = (source_folder() / "examples/legal/").string();
        return {"--model.path",
                legal + "base",
                "--data.train_file",
                legal + "train.jsonl",
                "--data.template",
                "alpaca",
                "--training.output_dir",
                (folder / "out").string(),
                "--training.overwrite_output_dir",
                "true",
                "--hardware.device",
                "cuda",
                "--model.dtype",
                "bfloat16",
                "--training.per_device_train_batch_size",
                "8",
                "--training.gradient_accumulation_steps",
                "1",
                "--training.auto_micro_batch",
                "as_given",
                "--training.learning_rate",
                "0.0005",
                "--training.warmup_steps",
                "5",
                "--training.num_train_epochs",
                "100",
                "--hardware.kernels",
                "library",
                "--hardware.dequantized_weights",
                "off",
                "--hardware.cuda_graphs",
                "false",
                "--training.gradient_checkpointing",
                "none",
                "--training.max_steps",
                "200"};
    }
    static std::vector<double> losses_of(const Course& course) {
        std::vector<double> values;
        for (const train::StepResult& step : course.steps) values.push_back(step.outcome.loss);
        return values;
    }
    std::vector<double> losses(const Flags& more) const { return losses_of(train_all(make_config(plain() + more))); }
    ScratchFolder folder;
};

double mean_difference(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
    return sum / static_cast<double>(a.size());
}

struct Variant {
    Flags flags;
    bool records = false, offloads = false;

    std::string name() const {
        std::string text;
        for (const std::string& flag : flags) text += flag + " ";
        return text;
    }
    void expect_in(const model::PassCounts& counts) const {
        EXPECT_EQ(counts.recorded > 0 && counts.replayed > 0, records) << name();
        EXPECT_EQ(counts.moved_out > 0 && counts.moved_back == counts.moved_out, offloads) << name();
    }
};

// Passes are recorded where a micro-batch's rows are of equal length: one row each.
const std::vector<Variant> variants = {
    {{"--hardware.kernels", "auto"}},
    {{"--hardware.kernels", "auto", "--hardware.dequantized_weights", "on", "--hardware.cuda_graphs", "true",
      "--training.per_device_train_batch_size", "1", "--training.gradient_accumulation_steps", "8"},
     /*records=*/true},
    {{"--hardware.kernels", "auto", "--training.gradient_checkpointing", "mlp+offload", "--hardware.offload_embedding",
      "true"},
     false,
     /*offloads=*/true},
    {{"--hardware.kernels", "auto", "--hardware.cuda_graphs", "true", "--training.gradient_checkpointing",
      "full+offload", "--training.per_device_train_batch_size", "1", "--training.gradient_accumulation_steps", "8"},
     true,
     true},
    {{"--hardware.kernels", "auto", "--training.gradient_checkpointing", "attention"}},
};

TEST_F(FastPath, LossesStayWithinTheNoiseOfTwoPlainRuns) {
    // The same rows in micro-batches of another size: other orders of summation, nothing else.
    const std::vector<double> one = losses({});
    const std::vector<double> other =
        losses({"--training.per_device_train_batch_size", "4", "--training.gradient_accumulation_steps", "2"});
    const double noise = mean_difference(one, other);
    RecordProperty("noise", std::to_string(noise));
    ASSERT_GT(noise, 0);
    ASSERT_LT(noise, 0.02);
    for (const Variant& variant : variants) {
        const Course course = train_all(make_config(plain() + variant.flags));
        variant.expect_in(course.counts);
        const double difference = mean_difference(losses_of(course), one);
        const std::string text = variant.name();
        std::cout << text << ": mean difference of 200 losses " << difference << ", noise " << noise << "\n";
        EXPECT_LE(difference, 2 * noise) << text;
        EXPECT_GT(difference, 0) << text << "took the plain path";
    }
}

TEST_F(FastPath, GradientsAreNoFurtherFromTheOracleThanTwiceThePlainOnes) {
    const auto gradients = [&](const Flags& more, model::PassCounts* counts = nullptr) {
        return first_gradients(make_config(plain() + Flags{"--training.max_steps", "1"} + more), /*times=*/2, counts);
    };
    const Tensors oracle = gradients({"--model.dtype", "float32"}), of_plain = gradients({});
    for (const Variant& variant : variants) {
        model::PassCounts counts;
        const Tensors fast = gradients(variant.flags, &counts);
        variant.expect_in(counts);
        for (const auto& [name, exact] : oracle)
            EXPECT_LE(relative_frobenius(fast.at(name), exact), 2 * relative_frobenius(of_plain.at(name), exact))
                << name << " " << variant.name();
    }
}

}  // namespace
}  // namespace unsloth
