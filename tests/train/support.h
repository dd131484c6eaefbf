// Drives the trainer over reference batches (tests/golden/trajectory) or rows of a test's own.
#pragma once

#include <set>

#include "model/support.h"
#include "unsloth/config/load.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/random_model.h"
#include "unsloth/objective/objective.h"
#include "unsloth/train/trainer.h"

namespace unsloth::test {

using Flags = std::vector<std::string>;

struct Row {
    std::vector<int32_t> ids, labels;
    std::vector<int32_t> positions;  ///< empty: 0, 1, 2, …
};

/// The value of that name among what an objective reports; a failure where there is none.
inline double figure(const objective::Figures& figures, const std::string& name) {
    for (const auto& [known, value] : figures)
        if (known == name) return value;
    ADD_FAILURE() << "no " << name;
    return 0;
}

inline void write_rows(const fs::path& path, const std::vector<Row>& rows) {
    std::string text;
    for (const Row& row : rows) {
        nlohmann::json line{{"input_ids", row.ids}, {"labels", row.labels}};
        if (!row.positions.empty()) line["position_ids"] = row.positions;
        text += line.dump() + "\n";
    }
    write_text(path, text);
}

/// A model with random NF4 weights in `folder`, which does not exist; `config` is its config.json.
inline fs::path random_nf4_model(const fs::path& folder, const std::string& config) {
    fs::create_directories(folder);
    formats::RandomModel model{formats::parse_model_spec(config, folder.string()), /*nf4=*/true, /*seed=*/3407, config};
    model.spec.dtype = spec::DType::bf16;
    formats::write_random_model(model, folder);
    return folder;
}

/// The pairs of the variant dpo, as tokenised rows.
inline void write_reference_pairs(const fs::path& path) {
    std::string text;
    for (const auto& step : read_json(golden("trajectory/dpo/batches.json")))
        for (const auto& pair : step) text += pair.dump() + "\n";
    write_text(path, text);
}

/// A reference variant's rows in order. `packed` has lists of documents, each becoming a segment of one row.
inline std::vector<Row> reference_rows(const std::string& variant) {
    const auto mask_prompt = [](std::vector<int32_t> labels, int prompt) {
        std::fill(labels.begin(), labels.begin() + prompt, data::ignore_label);
        return labels;
    };
    std::vector<Row> rows;
    for (const auto& step : read_json(golden("trajectory/" + variant + "/batches.json"))) {
        for (const auto& micro : step) {
            if (variant == "packed") rows.emplace_back();
            for (const auto& part : micro) {
                const auto ids = part["input_ids"].get<std::vector<int32_t>>();
                const std::vector<int32_t> labels = mask_prompt(ids, part["prompt"]);
                if (variant != "packed") {
                    rows.push_back({ids, labels, {}});
                    continue;
                }
                Row& row = rows.back();
                row.ids.insert(row.ids.end(), ids.begin(), ids.end());
                row.labels.insert(row.labels.end(), labels.begin(), labels.end());
                for (std::size_t t = 0; t < ids.size(); ++t) row.positions.push_back(static_cast<int32_t>(t));
            }
        }
    }
    return rows;
}

/// Small defaults under a test's flags; of a flag that comes twice the later one counts.
inline config::LoadedConfig make_config(const Flags& flags) {
    log::set_level(log::Level::error);
    std::map<std::string, std::string> values = {{"--data.shuffle", "false"},
                                                 {"--training.optim", "adamw_torch"},
                                                 {"--model.dtype", "float32"},
                                                 {"--hardware.device", "cpu"}};
    for (std::size_t i = 0; i + 1 < flags.size(); i += 2) values[flags[i]] = flags[i + 1];
    Flags unique;
    for (const auto& [name, value] : values) unique.insert(unique.end(), {name, value});
    return config::load_config(std::nullopt, unique);
}

inline Flags operator+(Flags a, const Flags& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

using Tensors = std::map<std::string, at::Tensor>;

/// As files have them.
inline Tensors copy_values(const weights::Parameters& parameters) {
    Tensors copies;
    for (const weights::Parameter& p : parameters.table().parameters())
        copies[p.name] = weights::to_stored(p, parameters.value(p).cpu()).clone();
    return copies;
}
inline Tensors copy_gradients(const weights::Parameters& parameters) {
    Tensors copies;
    for (const weights::Parameter& p : parameters.table().parameters())
        copies[p.name] = weights::to_stored(p, parameters.gradient(p).cpu()).clone();
    return copies;
}

/// What a run of all its steps gave.
struct Course {
    std::vector<train::StepResult> steps;
    Tensors first_gradients;  ///< of step 1, before clipping
    Tensors final_values;
    model::PassCounts counts;
};

inline Course train_all(const config::LoadedConfig& config) {
    train::Trainer trainer(config);
    trainer.load();
    Course course;
    for (int64_t step = 1; step <= trainer.total_steps(); ++step) {
        trainer.stepper().issue(trainer.loader().step(step - 1), step, trainer.learning_rate(step));
        while (const auto result = trainer.stepper().take(/*must=*/true)) course.steps.push_back(*result);
        if (step == 1) {
            course.first_gradients = copy_gradients(*trainer.model().parameters());
            for (auto& [name, gradient] : course.first_gradients) gradient.div_(course.steps[0].loss_scale);
        }
    }
    course.final_values = copy_values(*trainer.model().parameters());
    course.counts = trainer.model().counts();
    return course;
}

/// The gradients of a first step from adapters whose B is not zero, so that no gradient is. `times`: the step is issued
/// so often, with the same result; passes of a shape that was seen before may be recorded ones.
inline Tensors first_gradients(const config::LoadedConfig& config, int times = 1, model::PassCounts* counts = nullptr) {
    train::Trainer trainer(config);
    trainer.load();
    weights::Parameters& parameters = *trainer.model().parameters();
    at::manual_seed(11);
    for (const weights::Parameter& p : parameters.table().parameters())
        if (p.kind == weights::Parameter::Kind::lora_b) parameters.value(p).copy_(at::randn(p.shape) * 0.02);
    trainer.model().parameters_changed();
    for (int i = 0; i < times; ++i) {
        trainer.stepper().issue(trainer.loader().step(0), 1, 0.0);
        while (trainer.stepper().take(/*must=*/true)) {
        }
    }
    if (counts != nullptr) *counts = trainer.model().counts();
    return copy_gradients(parameters);
}

inline void expect_same_bits(const Tensors& got, const Tensors& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(same_bits(got.at(name), tensor)) << name;
}

inline void expect_same_course(const Course& got, const Course& expected) {
    ASSERT_EQ(got.steps.size(), expected.steps.size());
    for (std::size_t i = 0; i < got.steps.size(); ++i) {
        EXPECT_EQ(got.steps[i].outcome.loss, expected.steps[i].outcome.loss) << "step " << i + 1;
        EXPECT_EQ(got.steps[i].outcome.grad_norm, expected.steps[i].outcome.grad_norm) << "step " << i + 1;
    }
    expect_same_bits(got.final_values, expected.final_values);
}

/// The configuration of a reference variant: its model, rows, adapter and optimizer settings. `folder` receives the
/// rows.
inline Flags reference_flags(const std::string& variant, const ScratchFolder& folder) {
    const nlohmann::json settings = read_json(golden("trajectory/" + variant + "/metrics.json"))["settings"];
    if (variant == "dpo")
        write_reference_pairs(folder / "rows.jsonl");
    else
        write_rows(folder / "rows.jsonl", reference_rows(variant));
    const auto number = [&](const char* key) { return settings[key].dump(); };
    Flags flags = {"--model.path",
                   model_folder(settings["base"].get<std::string>()).string(),
                   "--data.train_file",
                   (folder / "rows.jsonl").string(),
                   "--training.output_dir",
                   (folder / "out").string(),
                   "--training.overwrite_output_dir",
                   "true",
                   "--training.per_device_train_batch_size",
                   variant == "packed" ? "1" : "2",
                   "--training.gradient_accumulation_steps",
                   number("micro_batches"),
                   "--training.max_steps",
                   number("steps"),
                   "--training.learning_rate",
                   number("lr"),
                   "--training.lr_scheduler_type",
                   "cosine",
                   "--training.warmup_steps",
                   number("warmup"),
                   "--training.weight_decay",
                   number("weight_decay"),
                   "--training.max_grad_norm",
                   number("max_grad_norm")};
    if (variant == "dpo") flags = flags + Flags{"--training.objective", "dpo", "--preference.beta", number("beta")};
    if (settings.contains("ratio")) flags = flags + Flags{"--lora.loraplus_lr_ratio", number("ratio")};
    if (variant == "full") return flags + Flags{"--lora.finetuning_type", "full"};
    return flags +
           Flags{"--model.adapter_name_or_path", unpacked(golden("trajectory/" + variant + "/initial")).string()};
}

}  // namespace unsloth::test
