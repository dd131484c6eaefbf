// Reference rows with images, and models that see them.
#pragma once

#include <set>

#include "train/support.h"
#include "unsloth/core/hash.h"
#include "unsloth/train/step.h"

namespace unsloth::test {

inline constexpr int32_t tiny_image_token = 6;

inline fs::path vision_set(const std::string& family) {
    const char* const shared = std::getenv("UNSLOTH_SHARED");
    const fs::path full = shared != nullptr ? fs::path(shared) / "golden/families" / family : fs::path();
    return !full.empty() && fs::exists(full) ? full : golden("families/" + family);
}

/// A family's reference files, and rows made of them.
class SeenRows {
  public:
    explicit SeenRows(const std::string& family)
        : set(vision_set(family)),
          files(unpacked(set)),
          grids_(read_json(files / "images.json")),
          pixels_(read_tensors(files / "pixels_uint8.safetensors")) {}

    data::Image image(const std::string& name) const {
        const at::Tensor& bytes = pixels_.at(name);
        const auto* const first = bytes.const_data_ptr<uint8_t>();
        const nlohmann::json& grid = grids_.at(name).at("image_grid_thw");
        return {0, grid[1], grid[2], std::make_shared<const std::vector<uint8_t>>(first, first + bytes.numel())};
    }
    const std::map<std::string, at::Tensor>& pixels() const { return pixels_; }

    /// The row with its images where their tokens are.
    data::Sample sample(const nlohmann::json& row, int64_t number) const {
        data::Sample sample{number, row["input_ids"], row["labels"], {}};
        const auto tokens = static_cast<int32_t>(sample.ids.size());
        for (int32_t t = 0; t < tokens; ++t) sample.positions.push_back(t);
        auto next = sample.ids.begin();
        const auto names = row["images"].get<std::vector<std::string>>();
        for (const std::string& name : names) {
            data::Image image = this->image(name);
            next = std::find(next, sample.ids.end(), tiny_image_token);
            image.first = static_cast<int32_t>(next - sample.ids.begin());
            next += image.patches() / 4;
            sample.images.push_back(image);
        }
        if (!sample.images.empty()) sample.axes = axes_of(sample);
        return sample;
    }

    const fs::path set, files;

  private:
    /// An image's tokens have its first one's time, and their row and column from there; text goes on behind the
    /// largest.
    static std::vector<int32_t> axes_of(const data::Sample& sample) {
        std::vector<int32_t> axes;
        int32_t position = 0, t = 0;
        const auto text_until = [&](int32_t end) {
            for (; t < end; ++t, ++position) axes.insert(axes.end(), 3, position);
        };
        for (const data::Image& image : sample.images) {
            text_until(image.first);
            const int32_t h = image.grid_h / 2, w = image.grid_w / 2;
            for (int32_t i = 0; i < h * w; ++i, ++t)
                axes.insert(axes.end(), {position, position + i / w, position + i % w});
            position += std::max(h, w);
        }
        text_until(static_cast<int32_t>(sample.ids.size()));
        return axes;
    }

    nlohmann::json grids_;
    std::map<std::string, at::Tensor> pixels_;
};

inline model::LoadRequest seeing(const std::string& device, at::ScalarType dtype) {
    model::LoadRequest request;
    request.device = ops::choose_device(device);
    request.dtype = dtype;
    request.load_in_4bit = false;
    request.sizes.tokens = request.sizes.head_rows = 256;
    request.sizes.longest = 128;
    request.sizes.segments = 8;
    request.sizes.patches = 64;
    request.sizes.image_tokens = 128;
    request.run.head_tile = 16;
    request.sizes.training = false;
    return request;
}

inline at::Tensor logits_of_row(model::Model& model, const data::Sample& row) {
    data::Batch batch = data::make_batch({&row, 1});
    data::cover_every_position(batch);
    std::vector<at::Tensor> chunks;
    model.score(
        batch, [&](int64_t, const at::Tensor& logits_CV) { chunks.push_back(logits_CV.to(at::kFloat).cpu().clone()); });
    return at::cat(chunks);
}

/// A run over the set's batches.
struct SeenCourse {
    std::vector<double> losses, norms;
    Tensors first_gradients, final_values;
    std::vector<int64_t> labels;
};

struct SeenRun {
    model::LoadRequest request;
    std::vector<data::StepBatch> steps;
    std::vector<double> rates;
};

inline SeenCourse run_steps(const fs::path& folder, const SeenRun& run) {
    const LoadedModel loaded = load_model(folder, run.request);
    train::Stepper stepper(*loaded.ctx, *loaded.model, train::StepSettings{.max_grad_norm = 1.0, .seed = 5});
    SeenCourse course;
    for (std::size_t i = 0; i < run.steps.size(); ++i) {
        stepper.issue(run.steps[i], static_cast<int64_t>(i) + 1, run.rates[i]);
        const auto result = stepper.take(/*must=*/true);
        course.losses.push_back(result->outcome.loss);
        course.norms.push_back(result->outcome.grad_norm);
        course.labels.push_back(result->labels);
        if (i == 0) course.first_gradients = copy_gradients(*loaded->parameters());
    }
    course.final_values = copy_values(*loaded->parameters());
    return course;
}

/// The set's own run. Rows: SeenRows, or what has their `set` and `sample`.
template <class Rows>
SeenRun reference_run(const Rows& rows, model::LoadRequest request) {
    const fs::path lora = rows.set / "lora";
    SeenRun run{std::move(request), {}, {}};
    run.request.adapter = unpacked(lora / "initial").string();
    run.request.trains = run.request.sizes.training = true;
    run.request.optim = config::Optimizer::adamw_torch;
    int64_t number = 0;
    for (const auto& step : read_json(unpacked(lora) / "batches.json")) {
        data::StepBatch batch;
        for (const auto& micro : step) {
            std::vector<data::Sample> samples;
            for (const auto& row : micro) samples.push_back(rows.sample(row, number++));
            batch.micro.push_back(data::make_batch(samples));
            batch.labels += batch.micro.back().labels;
            batch.tokens += batch.micro.back().tokens();
            batch.rows += static_cast<int64_t>(samples.size());
        }
        run.steps.push_back(std::move(batch));
    }
    const nlohmann::json metrics = read_json(unpacked(lora) / "metrics.json");
    for (const auto& step : metrics["steps"]) run.rates.push_back(step["lr"]);
    return run;
}

/// Eight steps against the set's: losses, norms, first gradients where it has them, and the adapter in the end.
template <class Rows>
void expect_trains_as_reference(const Rows& rows, const fs::path& model, model::LoadRequest request) {
    const fs::path lora = rows.set / "lora";
    const nlohmann::json metrics = read_json(unpacked(lora) / "metrics.json");
    const nlohmann::json &steps = metrics["steps"], &tolerance = metrics["tolerance"];
    const SeenCourse course = run_steps(model, reference_run(rows, std::move(request)));
    double loss_off = 0, norm_off = 0, gradient_off = 0, final_off = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const auto norm = steps[i]["grad_norm"].get<double>();
        EXPECT_EQ(course.labels[i], steps[i]["tokens"].get<int64_t>());
        loss_off = std::max(loss_off, std::abs(course.losses[i] - steps[i]["loss"].get<double>()));
        norm_off = std::max(norm_off, std::abs(course.norms[i] - norm) / norm);
    }
    const auto compare = [&](const fs::path& file, const Tensors& got, double& off) {
        const Tensors expected = read_tensors(file);
        ASSERT_EQ(expected.size(), got.size());
        for (const auto& [name, tensor] : expected) off = std::max(off, relative_frobenius(got.at(name), tensor));
    };
    if (const fs::path file = unpacked(lora) / "gradients_step1.safetensors"; fs::exists(file))
        compare(file, course.first_gradients, gradient_off);
    if (fs::exists(lora / "final"))
        compare(unpacked(lora / "final") / "adapter_model.safetensors", course.final_values, final_off);
    EXPECT_LE(loss_off, tolerance["loss_max_abs"].get<double>());
    EXPECT_LE(norm_off, tolerance["grad_norm_max_rel"].get<double>());
    EXPECT_LE(gradient_off, 20 * metrics["spread"]["fp64"]["first_grad_max_rel_frobenius"].get<double>());
    EXPECT_LE(final_off, tolerance["final_max_rel_frobenius"].get<double>());
    std::cout << rows.set.filename().string() << ": losses off by " << loss_off << ", norms " << norm_off
              << ", gradients " << gradient_off << ", adapter " << final_off << "\n";
}

/// A set's run from rows and image files, as a user starts it, below `folder`.
inline Flags flags_from_files(const ScratchFolder& folder, const std::string& family, const fs::path& set,
                              const fs::path& model, const std::string& device) {
    fs::create_directories(folder / "model");
    for (const fs::path& from : {model, golden("images/" + family + "/saved")})
        for (const auto& entry : fs::directory_iterator(from))
            fs::copy_file(entry.path(), folder / "model" / entry.path().filename().string(),
                          fs::copy_options::overwrite_existing);
    fs::copy(golden("images/images"), folder / "images");
    unpack(set / "lora/rows.jsonl", folder / "rows.jsonl");
    return {"--model.path",
            (folder / "model").string(),
            "--model.adapter_name_or_path",
            unpacked(set / "lora/initial").string(),
            "--model.load_in_4bit",
            "false",
            "--hardware.device",
            device,
            "--data.train_file",
            (folder / "rows.jsonl").string(),
            "--training.output_dir",
            (folder / "out").string(),
            "--training.per_device_train_batch_size",
            "2",
            "--training.gradient_accumulation_steps",
            "2",
            "--training.max_steps",
            "8",
            "--training.learning_rate",
            "0.001",
            "--training.lr_scheduler_type",
            "cosine",
            "--training.warmup_steps",
            "2",
            "--training.weight_decay",
            "0.01",
            "--training.max_grad_norm",
            "1.0"};
}

/// Of such a run labels and losses are the set's.
inline void expect_trains_as_reference(const fs::path& set, const Flags& flags) {
    const nlohmann::json metrics = read_json(unpacked(set / "lora") / "metrics.json");
    const Course course = train_all(make_config(flags));
    ASSERT_EQ(course.steps.size(), metrics["steps"].size());
    for (std::size_t i = 0; i < course.steps.size(); ++i) {
        const nlohmann::json& step = metrics["steps"][i];
        EXPECT_EQ(course.steps[i].labels, step["tokens"].get<int64_t>()) << i;
        EXPECT_NEAR(course.steps[i].outcome.loss, step["loss"].get<double>(),
                    metrics["tolerance"]["loss_max_abs"].get<double>())
            << i;
    }
}

/// Runs with kept features train as one that keeps none, bit by bit: where all fit, where some do, and where kept
/// images come without pixels. `run`: of a set's own batches.
inline void expect_kept_features_train_the_same(const fs::path& folder, SeenRun run) {
    run.steps.resize(4);
    for (std::size_t i = 0; i < 4; ++i) run.steps.push_back(run.steps[i]);
    run.rates.assign(run.steps.size(), 1e-3);
    run.request.kept = std::make_shared<model::KeptFeatures>();
    std::set<std::string> contents;
    const auto each_image = [&](std::size_t first, const auto& work) {
        for (std::size_t i = first; i < run.steps.size(); ++i)
            for (data::Batch& micro : run.steps[i].micro) std::ranges::for_each(micro.images, work);
    };
    each_image(0, [&](data::Image& image) {
        ContentHash hash;
        hash.add({reinterpret_cast<const char*>(image.pixels->data()), image.pixels->size()});
        image.content = hash.hex();
        contents.insert(image.content);
    });
    const auto different = static_cast<int64_t>(contents.size());
    ASSERT_GT(different, 2);
    const SeenCourse recomputed = run_steps(folder, run);
    EXPECT_EQ(run.request.kept->counts().images, 0);
    EXPECT_GT(run.request.kept->counts().seen, 2 * different - 1);
    const auto expect_same = [&](const char* what) {
        const SeenCourse got = run_steps(folder, run);
        EXPECT_EQ(got.losses, recomputed.losses) << what;
        EXPECT_EQ(got.norms, recomputed.norms) << what;
        expect_same_bits(got.final_values, recomputed.final_values);
        const model::KeptFeatures::Counts counts = run.request.kept->counts();
        EXPECT_LE(counts.bytes, run.request.kept_bytes) << what;
        return counts;
    };
    run.request.kept_bytes = int64_t{1} << 22;
    const model::KeptFeatures::Counts all = expect_same("all fit");
    EXPECT_EQ(all.images, different);
    EXPECT_EQ(all.seen, different) << "the tower saw an image twice";
    EXPECT_GE(all.fetched, different);
    run.request.kept_bytes = all.bytes - 1;
    const model::KeptFeatures::Counts some = expect_same("some fit");
    EXPECT_LT(some.images, different);
    EXPECT_GT(some.images, 0);
    EXPECT_GT(some.seen, different);
    run.request.kept_bytes = all.bytes;
    each_image(4, [](data::Image& image) { image.pixels.reset(); });
    EXPECT_EQ(expect_same("without pixels").seen, different);
    run.request.kept.reset();
    run.request.kept_bytes = 0;
    run.steps.resize(4);
    const std::vector<double> together = run_steps(folder, run).losses;
    for (std::size_t i = 0; i < together.size(); ++i) EXPECT_NEAR(together[i], recomputed.losses[i], 1e-4);
}

}  // namespace unsloth::test
