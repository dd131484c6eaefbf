// A step on the CPU takes its memory from the plan, like one on a GPU (step_gpu_test): what LibTorch would allocate
// along the way comes from malloc, whose heap grew with the number of steps.
#include <c10/core/CPUAllocator.h>

#include "train/support.h"

namespace unsloth {
namespace {

using namespace test;

/// Counts what LibTorch allocates for tensors on the CPU while the object lives.
class CountedAllocations final : public c10::Allocator {
  public:
    CountedAllocations() : real_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, priority); }
    ~CountedAllocations() override { c10::SetCPUAllocator(real_, priority); }
    at::DataPtr allocate(std::size_t bytes) override {
        // A number that meets a tensor becomes one: it is no buffer.
        constexpr std::size_t scalar = 64;
        if (bytes > scalar) ++count, total += bytes;
        return real_->allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override { return real_->raw_deleter(); }
    void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

    int64_t count = 0;
    std::size_t total = 0;

  private:
    static constexpr uint8_t priority = 255;
    c10::Allocator* real_;
};

struct SteadyCase {
    std::string name, model, dtype, keep;
    bool full = false;
    Flags more = {};
};
void PrintTo(const SteadyCase& c, std::ostream* out) {
    *out << c.name;
}

class SteadyMemory : public ::testing::TestWithParam<SteadyCase> {};

TEST_P(SteadyMemory, AStepAllocatesNothing) {
    UNSLOTH_NEEDS_XZ();
    const SteadyCase& c = GetParam();
    const ScratchFolder folder;
    std::vector<Row> rows;
    for (int32_t r = 0; r < 16; ++r) {
        Row row;
        for (int32_t t = 0; t < 9 + r * 17 % 60; ++t) row.ids.push_back((7 * r + 5 * t) % 120);
        row.labels = row.ids;
        rows.push_back(row);
    }
    write_rows(folder / "rows.jsonl", rows);
    Flags flags = {"--model.path",
                   (c.model.starts_with("families/") ? unpacked(golden(c.model)) : model_folder(c.model)).string(),
                   "--data.train_file",
                   (folder / "rows.jsonl").string(),
                   "--training.output_dir",
                   (folder / "out").string(),
                   "--model.dtype",
                   c.dtype,
                   "--training.gradient_checkpointing",
                   c.keep,
                   "--training.per_device_train_batch_size",
                   "2",
                   "--training.gradient_accumulation_steps",
                   "1"};
    flags = flags + (c.full ? Flags{"--lora.finetuning_type", "full"} : Flags{"--lora.lora_dropout", "0.1"}) + c.more;
    train::Trainer trainer(make_config(flags));
    trainer.load();
    ASSERT_GE(trainer.total_steps(), 8);
    const auto step = [&](int64_t number) {
        trainer.stepper().issue(trainer.loader().step(number - 1), number, 1e-3);
        EXPECT_TRUE(trainer.stepper().take(true).has_value());
    };
    for (int64_t number = 1; number <= 2; ++number) step(number);
    const CountedAllocations counted;
    for (int64_t number = 3; number <= 8; ++number) step(number);
    EXPECT_EQ(counted.count, 0) << "allocations in 6 steps, " << counted.total << " bytes";
}

INSTANTIATE_TEST_SUITE_P(Cpu, SteadyMemory,
                         ::testing::Values(SteadyCase{"fp32", "small_llama/nf4_dq", "float32", "none"},
                                           SteadyCase{"bf16_full_offload", "small_llama/nf4_dq", "bfloat16",
                                                      "full+offload"},
                                           SteadyCase{"fp16_attention", "small_llama/nf4_dq", "float16", "attention"},
                                           SteadyCase{"window", "mistral_window", "float32", "full"},
                                           SteadyCase{"biases_and_16_bit", "qwen2", "bfloat16", "mlp"},
                                           SteadyCase{"head_norms", "qwen3", "float32", "full"},
                                           SteadyCase{"experts",
                                                      "families/qwen3_moe/model",
                                                      "bfloat16",
                                                      "attention",
                                                      false,
                                                      {"--lora.target_modules", "q_proj,k_proj,v_proj,o_proj"}},
                                           SteadyCase{"sinks_and_biases_of_experts",
                                                      "families/gpt_oss/model",
                                                      "bfloat16",
                                                      "full",
                                                      false,
                                                      {"--lora.target_modules", "q_proj,k_proj,v_proj,o_proj"}},
                                           SteadyCase{"delta_nets", "families/qwen3_5_text/model", "bfloat16", "full"},
                                           SteadyCase{"full_finetuning", "llama_tied", "bfloat16", "none", true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace unsloth
