// lora.serve_grid: what a run computes with is what merging writes, gradients go straight through, and what it refuses.
#include "unsloth/formats/serve_grid.h"
#include "train/support.h"
#include "unsloth/formats/model_writer.h"
#include "unsloth/session/session.h"

namespace unsloth {
namespace {

using namespace test;
using spec::ServeGrid;

constexpr ServeGrid grids[] = {ServeGrid::nf4, ServeGrid::q8_0, ServeGrid::q4_0, ServeGrid::mxfp4, ServeGrid::fp8};

/// Rows of 96 values: blocks of nf4 go over their ends.
constexpr const char* small_config = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
  "num_hidden_layers": 2, "vocab_size": 128, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

class ServeGridRun : public ::testing::Test {
  protected:
    void SetUp() override {
        std::vector<Row> rows;
        for (int32_t row = 0; row < 24; ++row) {
            Row& added = rows.emplace_back();
            for (int32_t t = 0; t < 9 + row % 4; ++t) added.ids.push_back((row * 7 + t * (3 + row % 5)) % 128);
            added.labels = added.ids;
        }
        write_rows(folder / "rows.jsonl", rows);
        for (const bool nf4 : {true, false}) {
            const fs::path to = folder / (nf4 ? "nf4" : "bf16");
            fs::create_directories(to);
            formats::RandomModel model{formats::parse_model_spec(small_config, to.string()), nf4, 3407, small_config};
            model.spec.dtype = spec::DType::bf16;
            formats::write_random_model(model, to);
        }
    }
    Flags flags(const std::string& base, ServeGrid grid, const Flags& more = {}) const {
        return Flags{"--model.path",
                     (folder / base).string(),
                     "--data.train_file",
                     (folder / "rows.jsonl").string(),
                     "--training.output_dir",
                     (folder / "out").string(),
                     "--lora.r",
                     "4",
                     "--lora.lora_alpha",
                     "6",
                     "--training.learning_rate",
                     "0.02",
                     "--training.max_steps",
                     "3",
                     "--lora.serve_grid",
                     name_of(grid)} +
               more;
    }
    /// The run's result merged into the base; adapter and grid as files have them.
    fs::path merge(const std::string& base_name, ServeGrid grid, const formats::HeldTypes& held) const {
        const formats::WeightFile base = formats::WeightFile::open((folder / base_name).string());
        const formats::Adapter adapter = formats::read_adapter(folder / "out", base.spec);
        EXPECT_EQ(adapter.config.lora.serve_grid, grid) << "the mark";
        const fs::path to = folder / "merged";
        fs::remove_all(to);
        fs::create_directories(to);
        formats::write_model(formats::MergedModel(base, &adapter, held, grid), to,
                             {.linears = formats::type_on_grid(grid)});
        EXPECT_EQ(formats::grid_of_folder(to), grid);
        return to;
    }
    const ScratchFolder folder;
};

at::Tensor weight_of(model::Model& model, ops::Context& ctx, int layer, weights::Group g) {
    const weights::Operand& operand = model.parts().network.weight_provider->ready(ctx, layer, 16)[g];
    return std::get<weights::DenseBase>(operand.base).w_NK.clone();
}

config::LoadedConfig for_merged(const fs::path& path, const std::string& dtype, const Flags& more = {}) {
    return make_config(Flags{"--model.path", path.string(), "--model.dtype", dtype, "--model.load_in_4bit", "false"} +
                       more);
}

/// A loaded model without adapter, with what it lies in.
struct Loaded {
    explicit Loaded(const config::LoadedConfig& config)
        : opened(session::open_model(config.config)),
          loaded(session::load_for_inference(config, opened, 512, 16, 512, 512, {}, {}, {}, {})) {}
    session::OpenedModel opened;
    session::LoadedModel loaded;
};

TEST_F(ServeGridRun, ComputesWithTheWeightsThatMergingWrites) {
    struct Case {
        std::string base, in_4bit, dtype;
    };
    for (const auto& [base, in_4bit, dtype] : std::vector<Case>{{"nf4", "false", "float32"},
                                                                {"nf4", "false", "bfloat16"},
                                                                {"bf16", "true", "bfloat16"},
                                                                {"bf16", "false", "float32"}})
        for (const ServeGrid grid : grids) {
            if (base == "bf16" && grid != ServeGrid::nf4 && grid != ServeGrid::q4_0) continue;  // seconds each
            SCOPED_TRACE(cat(base, " ", in_4bit, " ", dtype, " ", name_of(grid)));
            fs::remove_all(folder / "out");
            train::Trainer trainer(make_config(flags(base, grid,
                                                     {"--model.load_in_4bit", in_4bit, "--model.dtype", dtype,
                                                      "--lora.target_modules", "q_proj,o_proj,gate_proj,down_proj"})));
            trainer.run();
            model::Model& trained = trainer.model();
            const fs::path to = merge(base, grid, {.load_in_4bit = in_4bit == "true"});
            const Loaded merged(for_merged(to, dtype));
            ops::Context ctx(at::kCPU);
            for (int layer = 0; layer < static_cast<int>(trained.spec().num_layers); ++layer)
                for (const weights::Group g : trained.parts().network.layout.all_groups())
                    EXPECT_TRUE(
                        at::equal(weight_of(trained, ctx, layer, g), weight_of(*merged.loaded.model, ctx, layer, g)))
                        << layer << " " << name_of(g);
            const data::Batch batch = trainer.loader().step(0).micro[0];
            EXPECT_TRUE(same_bits(trained.score(batch), merged.loaded.model->score(batch)));
        }
}

/// Passes of equal rows are recorded there, and a step's weights are folded again when it is replayed.
TEST_F(ServeGridRun, AGpuComputesWithTheSameWeights) {
    UNSLOTH_NEEDS_DEVICE("cuda");
    std::vector<Row> rows;
    for (int32_t row = 0; row < 24; ++row) {
        Row& added = rows.emplace_back();
        for (int32_t t = 0; t < 16; ++t) added.ids.push_back((row * 7 + t * (3 + row % 5)) % 128);
        added.labels = added.ids;
    }
    write_rows(folder / "rows.jsonl", rows);
    for (const std::string base : {"nf4", "bf16"})
        for (const ServeGrid grid : grids) {
            SCOPED_TRACE(cat(base, " ", name_of(grid)));
            fs::remove_all(folder / "out");
            train::Trainer trainer(
                make_config(flags(base, grid,
                                  {"--model.load_in_4bit", "false", "--model.dtype", "bfloat16", "--hardware.device",
                                   "cuda", "--training.max_steps", "8", "--training.save_steps", "0"})));
            trainer.run();
            EXPECT_GT(trainer.model().counts().replayed, 0);
            const Loaded merged(for_merged(merge(base, grid, {}), "bfloat16"));
            ops::Context gpu(ops::choose_device("cuda")), cpu(at::kCPU);
            for (int layer = 0; layer < static_cast<int>(trainer.model().spec().num_layers); ++layer)
                for (const weights::Group g : trainer.model().parts().network.layout.all_groups())
                    EXPECT_TRUE(at::equal(weight_of(trainer.model(), gpu, layer, g).cpu(),
                                          weight_of(*merged.loaded.model, cpu, layer, g)))
                        << layer << " " << name_of(g);
            const data::Batch batch = trainer.loader().step(0).micro[0];
            EXPECT_LT(max_abs(trainer.model().score(batch).cpu(), merged.loaded.model->score(batch)), 0.1);
        }
}

TEST_F(ServeGridRun, TheReferenceIsTheBaseAsItIsStored) {
    for (const ServeGrid grid : grids) {
        SCOPED_TRACE(name_of(grid));
        train::Trainer trainer(make_config(flags("nf4", grid))),
            plain(make_config(flags("nf4", ServeGrid::none, {"--training.output_dir", (folder / "plain").string()})));
        trainer.load();
        plain.load();
        const data::Batch batch = trainer.loader().step(0).micro[0];
        const at::Tensor first = trainer.model().score(batch),
                         reference = trainer.model().score(batch, {}, model::PolicyScope::base),
                         again = trainer.model().score(batch);
        EXPECT_TRUE(same_bits(reference, plain.model().score(batch, {}, model::PolicyScope::base)));
        EXPECT_TRUE(same_bits(first, again));
        EXPECT_FALSE(same_bits(first, reference)) << "B is zero, and W alone is rounded";
    }
}

/// dA = s · Bᵀ dW and dB = s · dW Aᵀ, dW the gradient of the merged weights as full training has it.
TEST_F(ServeGridRun, GradientsGoStraightThrough) {
    for (const ServeGrid grid : {ServeGrid::q8_0, ServeGrid::q4_0, ServeGrid::mxfp4, ServeGrid::fp8}) {
        SCOPED_TRACE(name_of(grid));
        fs::remove_all(folder / "out");
        train::Trainer(make_config(flags("bf16", grid, {"--model.load_in_4bit", "false"}))).run();
        const fs::path to = merge("bf16", grid, {});
        const auto gradients = [&](const Flags& options) {
            train::Trainer trainer(make_config(options));
            trainer.load();
            trainer.stepper().issue(trainer.loader().step(0), 1, 0.0);
            double scale = 1;
            while (const auto result = trainer.stepper().take(/*must=*/true)) scale = result->loss_scale;
            Tensors all = copy_gradients(*trainer.model().parameters());
            for (auto& [name, gradient] : all) gradient.div_(scale);
            return all;
        };
        const Tensors adapters = gradients(
                          flags("bf16", grid,
                                {"--model.load_in_4bit", "false", "--model.adapter_name_or_path",
                                 (folder / "out").string(), "--training.output_dir", (folder / "next").string()})),
                      weights =
                          gradients({"--model.path", to.string(), "--data.train_file", (folder / "rows.jsonl").string(),
                                     "--training.output_dir", (folder / "full").string(), "--lora.finetuning_type",
                                     "full", "--training.max_steps", "3", "--model.load_in_4bit", "false"});
        const Tensors values = read_tensors(folder / "out/adapter_model.safetensors");
        int compared = 0;
        for (const auto& [name, b] : values) {
            const std::size_t end = name.find(".lora_B");
            if (end == std::string::npos) continue;
            const std::string stem = name.substr(0, end), prefix = "base_model.model.";
            const at::Tensor a = values.at(stem + ".lora_A.weight"),
                             dw = weights.at(stem.substr(prefix.size()) + ".weight");
            EXPECT_LT(relative_frobenius(adapters.at(stem + ".lora_A.weight"), 1.5 * at::mm(b.t(), dw)), 1e-5) << name;
            EXPECT_LT(relative_frobenius(adapters.at(name), 1.5 * at::mm(dw, a.t())), 1e-5) << name;
            ++compared;
        }
        EXPECT_GT(compared, 10);
    }
}

TEST_F(ServeGridRun, AnAdapterKeepsItsGridUnlessTold) {
    train::Trainer(make_config(flags("nf4", ServeGrid::q8_0))).run();
    train::Trainer rows(
        make_config(flags("nf4", ServeGrid::none, {"--training.output_dir", (folder / "rows").string()})));
    rows.load();
    const data::Batch batch = rows.loader().step(0).micro[0];
    const auto scores = [&](const Flags& more) {
        const Loaded loaded(make_config(Flags{"--model.path", (folder / "nf4").string(), "--model.adapter_name_or_path",
                                              (folder / "out").string()} +
                                        more));
        return loaded.loaded.model->score(batch);
    };
    const Loaded merged(for_merged(merge("nf4", ServeGrid::q8_0, {}), "float32"));
    const at::Tensor expected = merged.loaded.model->score(batch);
    EXPECT_TRUE(same_bits(scores({}), expected));
    EXPECT_FALSE(same_bits(scores({"--model.ignore_serve_grid", "true"}), expected));
    // Continuing asks for the same grid, or names none.
    const Flags next{"--model.adapter_name_or_path", (folder / "out").string(), "--training.output_dir",
                     (folder / "next").string()};
    try {
        train::Trainer trainer(make_config(flags("nf4", ServeGrid::fp8, next)));
        ADD_FAILURE() << "another grid was not refused";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "adapter.contradicts") << error.what();
    }
}

TEST_F(ServeGridRun, RefusesWhatItDoesNotGoWith) {
    const auto refused = [&](const Flags& more, const std::string& word) {
        try {
            train::Trainer trainer(make_config(flags("nf4", ServeGrid::nf4, more)));
            ADD_FAILURE() << "not refused: " << word;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
            EXPECT_NE(std::string(error.what()).find("serve_grid"), std::string::npos) << error.what();
        }
    };
    refused({"--lora.use_dora", "true"}, "use_dora");
    refused({"--lora.lora_dropout", "0.1"}, "lora_dropout");
    refused({"--model.compute_dtype", "int8"}, "compute_dtype");
    refused({"--lora.finetuning_type", "full"}, "finetuning_type");
    refused({"--training.objective", "grpo"}, "grpo");
    refused({"--distributed.tp_size", "2"}, "tp_size");
    refused({"--distributed.pp_size", "2"}, "pp_size");
    refused({"--distributed.zero_stage", "3"}, "zero_stage");
    refused({"--hardware.dequantized_weights", "on"}, "dequantized_weights");
}

}  // namespace
}  // namespace unsloth
