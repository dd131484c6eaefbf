// What many steps of many shapes take of a GPU's and the host's memory, and what is recorded of them.
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include "train/support.h"

namespace unsloth {
namespace {

using namespace test;

/// Free bytes of the device, as the driver counts.
int64_t driver_free() {
    std::size_t free = 0, total = 0;
    UNSLOTH_CHECK(cudaDeviceSynchronize() == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess, "CUDA");
    return static_cast<int64_t>(free);
}

/// Of this process, of the host.
int64_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    int64_t total = 0, resident = 0;
    file >> total >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
}

class StepMemoryGpu : public ::testing::Test {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_DEVICE("cuda"); }

    /// A run over rows of these lengths in their order, one a micro-batch, so that every micro-batch is of equal rows.
    config::LoadedConfig config(const fs::path& model, const std::vector<int>& lengths, const Flags& more) const {
        std::vector<Row> rows;
        for (std::size_t row = 0; row < lengths.size(); ++row) {
            Row& made = rows.emplace_back();
            for (int t = 0; t < lengths[row]; ++t)
                made.ids.push_back(static_cast<int32_t>((row * 31 + static_cast<std::size_t>(t * t * 7 + t)) % 256));
            made.labels = made.ids;
        }
        write_rows(folder / "rows.jsonl", rows);
        return make_config(Flags{"--model.path",
                                 model.string(),
                                 "--data.train_file",
                                 (folder / "rows.jsonl").string(),
                                 "--training.output_dir",
                                 (folder / "out").string(),
                                 "--training.overwrite_output_dir",
                                 "true",
                                 "--hardware.device",
                                 "cuda",
                                 "--model.dtype",
                                 "bfloat16",
                                 "--training.per_device_train_batch_size",
                                 "1",
                                 "--training.gradient_accumulation_steps",
                                 "1",
                                 "--training.num_train_epochs",
                                 "100000",
                                 "--training.warmup_steps",
                                 "0",
                                 "--lora.r",
                                 "8"} +
                           more);
    }

    static void step(train::Trainer& trainer, int64_t number) {
        trainer.stepper().issue(trainer.loader().step(number - 1), number, 1e-4);
        while (const auto result = trainer.stepper().take(/*must=*/true))
            ASSERT_TRUE(std::isfinite(result->outcome.loss)) << "step " << number;
    }

    fs::path model_of(int layers) {
        return random_nf4_model(
            folder / cat("model", models_++),
            cat(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
            "intermediate_size": 512, "num_hidden_layers": )",
                layers, R"(, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
            "vocab_size": 256, "max_position_embeddings": 512, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1})"));
    }

    ScratchFolder folder;
    int models_ = 0;
};

TEST_F(StepMemoryGpu, AThousandStepsTakeNoMore) {
    std::vector<int> lengths;
    for (int row = 0; row < 150; ++row) lengths.push_back(row % 3 == 0 ? 16 : 8 + row * 37 % 140);
    for (const char* keep : {"none", "attention+offload"}) {
        SCOPED_TRACE(keep);
        train::Trainer trainer(
            config(model_of(6), lengths, {"--training.gradient_checkpointing", keep, "--training.max_steps", "1000"}));
        trainer.load();
        const at::Device device(at::kCUDA, 0);
        int64_t allocations = 0, free = 0, resident = 0;
        for (int64_t number = 1; number <= 1000; ++number) {
            step(trainer, number);
            if (number == 2) allocations = memory::allocation_count(device);
            if (number == 400) free = driver_free(), resident = resident_bytes();
        }
        const int64_t taken = free - driver_free(), grown = resident_bytes() - resident;
        std::cout << keep << ": after 400 steps 600 more took " << (taken >> 10) << " KiB of the device, "
                  << (grown >> 10) << " KiB of the host; " << trainer.model().counts().recorded << " recorded, "
                  << trainer.model().counts().replayed << " replayed\n";
        EXPECT_EQ(memory::allocation_count(device), allocations) << "a step allocated device memory";
        EXPECT_LE(taken, int64_t{16} << 20);
        EXPECT_LE(grown, int64_t{16} << 20);
        EXPECT_GT(trainer.model().counts().replayed, 600);
        EXPECT_EQ(trainer.model().counts().moved_out > 0, std::string(keep) != "none");
    }
}

TEST_F(StepMemoryGpu, TheShapesThatComeOftenAreRecorded) {
    // Twelve lengths twice, of which eight have a place; then another one.
    std::vector<int> lengths;
    for (int round = 0; round < 2; ++round)
        for (int shape = 0; shape < 12; ++shape) lengths.push_back(20 + shape);
    const auto first = static_cast<int64_t>(lengths.size());
    for (int i = 0; i < 40; ++i) lengths.push_back(40);
    train::Trainer trainer(config(model_folder("small_llama/nf4_dq"), lengths, {"--training.max_steps", "64"}));
    trainer.load();
    for (int64_t number = 1; number <= first; ++number) step(trainer, number);
    const model::PassCounts before = trainer.model().counts();
    EXPECT_EQ(before.recorded, 2 * static_cast<int64_t>(model::recorded_shapes));
    for (int64_t number = first + 1; number <= 64; ++number) step(trainer, number);
    const model::PassCounts after = trainer.model().counts();
    EXPECT_EQ(after.recorded - before.recorded, 2);
    EXPECT_EQ(after.replayed - before.replayed, 2 * (40 - 4)) << "a place is taken with more than twice two uses";
}

// What the plan says of them, and what the driver takes: printed, because the plan's figure is an estimate.
TEST_F(StepMemoryGpu, RecordedPassesTakeWhatIsPlannedAtMost) {
    for (const int layers : {4, 16, 32})
        for (const char* keep : {"none", "full+offload"}) {
            std::vector<int> lengths;
            for (int round = 0; round < 2; ++round)
                for (std::size_t shape = 0; shape < model::recorded_shapes; ++shape)
                    lengths.push_back(64 + 16 * static_cast<int>(shape));
            train::Trainer trainer(config(model_of(layers), lengths,
                                          {"--training.max_steps", "16", "--training.gradient_checkpointing", keep}));
            trainer.load();
            int64_t free = 0;
            for (int64_t number = 1; number <= 16; ++number) {
                if (number == 9) free = driver_free();
                step(trainer, number);
            }
            const int64_t taken = free - driver_free();
            EXPECT_EQ(trainer.model().counts().recorded, 16);
            std::cout << layers << " layers, " << keep << ": 8 shapes recorded in " << (taken >> 10) << " KiB, planned "
                      << (trainer.plan().recorded_bytes() >> 10) << " KiB\n";
            EXPECT_LE(taken, trainer.plan().recorded_bytes());
        }
}

/// Makes every wait for the device in LibTorch an error.
class NoWaiting {
  public:
    NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
    ~NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
};

TEST_F(StepMemoryGpu, RopesFrequenciesOfEachLengthAreMadeWithoutWaiting) {
    const fs::path plain = model_folder("small_llama/nf4_dq");
    nlohmann::json spec = read_json(plain / "config.json");
    spec["rope_parameters"] = {{"rope_type", "dynamic"}, {"rope_theta", 10000.0}, {"factor", 2.0}};
    write_text(folder / "dynamic/config.json", spec.dump());
    fs::create_symlink(plain / "model.safetensors", folder / "dynamic/model.safetensors");
    std::vector<int> lengths;
    for (int row = 0; row < 12; ++row) lengths.push_back(20 + 3 * row);
    train::Trainer trainer(config(folder / "dynamic", lengths, {"--training.max_steps", "12"}));
    trainer.load();
    ASSERT_TRUE(trainer.plan().spec().has_rope(spec::RopeSpec::Type::dynamic));
    for (int64_t number = 1; number <= 2; ++number) step(trainer, number);
    const int64_t allocations = memory::allocation_count(at::Device(at::kCUDA, 0));
    for (int64_t number = 3; number <= 12; ++number) {
        const data::StepBatch batch = trainer.loader().step(number - 1);
        {
            const NoWaiting guard;
            EXPECT_NO_THROW(trainer.stepper().issue(batch, number, 1e-4)) << "step " << number;
        }
        while (trainer.stepper().take(/*must=*/true)) {
        }
    }
    EXPECT_EQ(memory::allocation_count(at::Device(at::kCUDA, 0)), allocations);
}

}  // namespace
}  // namespace unsloth
