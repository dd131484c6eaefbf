// The reference trainings' batches, written as tokenised rows, come back in the same micro-batches with as
// many targets as the reference counted.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/toy.h"
#include "unsloth/core/files.h"
#include "unsloth/data/loader.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;
using Ints = std::vector<int32_t>;

Json read_json(const std::string& name) {
    return Json::parse(read_file(toy::golden("trajectory/" + name)));
}

/// A document {"input_ids", "prompt": n} appended to a tokenised row, its positions from 0.
void append_document(Json& row, const Json& document) {
    const auto prompt = document["prompt"].get<std::size_t>();
    for (std::size_t t = 0; t < document["input_ids"].size(); ++t) {
        const Json& id = document["input_ids"][t];
        row["input_ids"].push_back(id);
        row["labels"].push_back(t < prompt ? Json(ignore_label) : id);
        row["position_ids"].push_back(t);
    }
}

Json document_row(const Json& document) {
    Json row;
    append_document(row, document);
    return row;
}

StepLoader loader_of(const std::string& lines, int64_t batch_size) {
    const toy::Folder folder;
    LoaderOptions options;
    options.per_device_train_batch_size = batch_size;
    options.gradient_accumulation_steps = 2;
    options.shuffle = false;
    return StepLoader(Dataset::load(folder.write("rows.jsonl", lines), {}, nullptr), options);
}

TEST(Golden, LoraBatches) {
    const Json steps = read_json("lora/batches.json"), metrics = read_json("lora/metrics.json")["steps"];
    std::string lines;
    for (const Json& step : steps)
        for (const Json& micro : step)
            for (const Json& row : micro) lines += document_row(row).dump() + "\n";
    StepLoader loader = loader_of(lines, 2);
    ASSERT_EQ(loader.steps_per_epoch(), static_cast<int64_t>(steps.size()));
    int64_t source_row = 0;
    for (std::size_t number = 0; number < steps.size(); ++number) {
        const StepBatch step = loader.step(static_cast<int64_t>(number));
        EXPECT_EQ(step.labels, metrics[number]["tokens"].get<int64_t>());
        ASSERT_EQ(step.micro.size(), steps[number].size());
        for (std::size_t k = 0; k < step.micro.size(); ++k) {
            Ints ids;
            for (const Json& row : steps[number][k]) {
                const auto part = row["input_ids"].get<Ints>();
                ids.insert(ids.end(), part.begin(), part.end());
            }
            EXPECT_EQ(step.micro[k].ids_T, ids);
            EXPECT_EQ(step.micro[k].rows, (std::vector<int64_t>{source_row, source_row + 1}));
            source_row += 2;
        }
    }
}

TEST(Golden, PackedBatches) {
    const Json steps = read_json("packed/batches.json"), metrics = read_json("packed/metrics.json")["steps"];
    std::string lines;
    for (const Json& step : steps)
        for (const Json& documents : step) {
            Json row;
            for (const Json& document : documents) append_document(row, document);
            lines += row.dump() + "\n";
        }
    StepLoader loader = loader_of(lines, 1);
    ASSERT_EQ(loader.steps_per_epoch(), static_cast<int64_t>(steps.size()));
    for (std::size_t number = 0; number < steps.size(); ++number) {
        const StepBatch step = loader.step(static_cast<int64_t>(number));
        EXPECT_EQ(step.labels, metrics[number]["tokens"].get<int64_t>());
        for (std::size_t k = 0; k < step.micro.size(); ++k) {
            Ints segments{0};
            for (const Json& document : steps[number][k])
                segments.push_back(segments.back() + static_cast<int32_t>(document["input_ids"].size()));
            EXPECT_EQ(step.micro[k].segments, segments);
        }
    }
}

TEST(Golden, PackedFirstRowAsTheReferenceMadeIt) {
    // Its last four tokens are padding that the reference made a segment of its own.
    const Json reference = read_json("packed/first_row.json");
    const Batch batch = loader_of(reference.dump() + "\n", 1).step(0).micro.at(0);
    EXPECT_EQ(batch.segments, (Ints{0, 36, 60, 92, 96}));
    const auto labels = reference["labels"].get<Ints>();
    for (std::size_t t = 0; t + 1 < labels.size(); ++t) EXPECT_EQ(batch.targets_T[t], labels[t + 1]) << t;
    EXPECT_EQ(batch.targets_T.back(), ignore_label);
}

TEST(Golden, PackingTheDocumentsGivesTheSameTargets) {
    const Json steps = read_json("packed/batches.json"), metrics = read_json("packed/metrics.json")["steps"];
    std::string lines;
    for (const Json& step : steps)
        for (const Json& documents : step)
            for (const Json& document : documents) lines += document_row(document).dump() + "\n";
    const toy::Folder folder;
    LoaderOptions options;
    options.packing = true;
    options.max_seq_length = 96;
    StepLoader loader(Dataset::load(folder.write("rows.jsonl", lines), {}, nullptr), options);
    EXPECT_LE(loader.rows_per_epoch(), 20);  // the reference needed 20 rows
    int64_t labels = 0, expected = 0;
    for (int64_t number = 0; number < loader.steps_per_epoch(); ++number) labels += loader.step(number).labels;
    for (const Json& step : metrics) expected += step["tokens"].get<int64_t>();
    EXPECT_EQ(labels, expected);
}

}  // namespace
}  // namespace unsloth::data
