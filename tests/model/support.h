// What the model's and the training run's tests share: reference files, devices, comparisons of tensors.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/files.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/data/batch.h"
#include "unsloth/formats/safetensors.h"
#include "unsloth/model/loader.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/session/session.h"

namespace unsloth::test {

namespace fs = std::filesystem;

inline nlohmann::json read_json(const fs::path& path) {
    return nlohmann::json::parse(read_file(path));
}

inline void write_text(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

// --- reference files -----------------------------------------------------------------------------------------------

inline bool have_xz() {
    static const bool found = std::system("xz --version >/dev/null 2>&1") == 0;
    return found;
}

/// FILE, or FILE.xz decompressed, as `to`.
inline void unpack(const fs::path& file, const fs::path& to) {
    fs::create_directories(to.parent_path());
    if (fs::exists(file)) {
        fs::copy_file(file, to, fs::copy_options::overwrite_existing);
        return;
    }
    const std::string command = cat("xz -dc '", file.string(), ".xz' > '", to.string(), "'");
    UNSLOTH_CHECK(std::system(command.c_str()) == 0, command);
}

/// A folder of reference files, without those in it, its .xz files decompressed once in the life of the test program.
inline fs::path unpacked(const fs::path& folder) {
    static ScratchFolder scratch;
    static std::map<std::string, fs::path> known;
    const auto [place, fresh] = known.emplace(folder.string(), scratch / std::to_string(known.size()));
    if (!fresh) return place->second;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.is_directory()) continue;
        fs::path name = entry.path().filename();
        if (name.extension() == ".xz") name.replace_extension();
        unpack(folder / name, place->second / name.string());
    }
    return place->second;
}

/// A model of tests/golden by name ("small_llama/bf16").
inline fs::path model_folder(const std::string& name) {
    if (name == "small_llama/nf4_dq")
        return golden("formats/small_llama/nf4_dq");  // not compressed, shared with tests/formats
    return unpacked(golden("models/" + name));
}

/// The model's tests need xz for their checkpoints.
#define UNSLOTH_NEEDS_XZ() \
    if (!::unsloth::test::have_xz()) GTEST_SKIP() << "xz is not installed (package xz-utils)"

inline at::Tensor tensor_of(const formats::TensorView& view) {
    at::Tensor out = at::empty(view.shape, ops::scalar_type(view.dtype));
    std::memcpy(out.data_ptr(), view.data.data(), view.data.size());
    return out;
}

/// The small 16-bit model with one row of a tensor overwritten.
inline fs::path spoiled_model(const ScratchFolder& folder, const std::string& tensor, int64_t row, float value) {
    const fs::path source = model_folder("small_llama/bf16");
    write_text(folder / "model/config.json", read_file(source / "config.json"));
    std::vector<formats::TensorBlob> blobs;
    const formats::SafetensorsFile file(source / "model.safetensors");
    for (const formats::TensorView& view : file.tensors()) {
        at::Tensor values = tensor_of(view);
        if (view.name == tensor) values[row].fill_(value);
        const auto* data = static_cast<const std::byte*>(values.data_ptr());
        blobs.push_back({{view.name, view.dtype, view.shape}, {data, data + values.nbytes()}});
    }
    formats::write_safetensors(folder / "model/model.safetensors", blobs);
    return folder / "model";
}

inline std::map<std::string, at::Tensor> read_tensors(const fs::path& path) {
    const formats::SafetensorsFile file(path);
    std::map<std::string, at::Tensor> tensors;
    for (const formats::TensorView& view : file.tensors()) tensors[view.name] = tensor_of(view);
    return tensors;
}

// --- devices -------------------------------------------------------------------------------------------------------

inline bool device_available(const std::string& name) {
    try {
        ops::choose_device(name);
    } catch (const Error&) {
        return false;
    }
    return true;
}

#define UNSLOTH_NEEDS_DEVICE(name) \
    if (!::unsloth::test::device_available(name)) GTEST_SKIP() << "no GPU"

/// The devices that tests run on. Without a GPU the CPU alone, which is said once.
inline const std::vector<std::string>& test_devices() {
    static const std::vector<std::string> devices = [] {
#ifdef UNSLOTH_CUDA
        if (device_available("cuda")) return std::vector<std::string>{"cpu", "cuda"};
        std::cout << "no GPU: tests that take a device run on the CPU alone" << std::endl;
#endif
        return std::vector<std::string>{"cpu"};
    }();
    return devices;
}

/// These models are small: one thread is quickest, above all on a busy machine. (What their number may change:
/// step_test.)
inline const bool one_thread = (at::set_num_threads(1), true);

// --- comparisons ---------------------------------------------------------------------------------------------------

inline at::Tensor in_fp64(const at::Tensor& t) {
    return t.to(at::kCPU, at::kDouble);
}
inline double max_abs(const at::Tensor& a, const at::Tensor& b) {
    return (in_fp64(a) - in_fp64(b)).abs().max().item<double>();
}
inline double rms(const at::Tensor& a) {
    return std::sqrt(in_fp64(a).square().mean().item<double>());
}
inline double rms(const at::Tensor& a, const at::Tensor& b) {
    return rms(in_fp64(a) - in_fp64(b));
}
inline double l2(const at::Tensor& a) {
    return std::sqrt(in_fp64(a).square().sum().item<double>());
}
inline double relative_frobenius(const at::Tensor& got, const at::Tensor& expected) {
    return l2(in_fp64(got) - in_fp64(expected)) / l2(expected);
}
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
    if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
    const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
    return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

// --- models --------------------------------------------------------------------------------------------------------

struct LoadedModel {
    std::unique_ptr<ops::Context> ctx;
    std::unique_ptr<model::Model> model;
    model::Model* operator->() const { return model.get(); }
};

/// A model as `request` asks for it.
inline LoadedModel load_model(const fs::path& folder, const model::LoadRequest& request) {
    const model::ModelPlan plan(std::make_shared<const formats::WeightFile>(formats::WeightFile::open(folder.string())),
                                request);
    LoadedModel loaded;
    loaded.ctx = std::make_unique<ops::Context>(request.device);
    loaded.model = std::make_unique<model::Model>(*loaded.ctx, plan.load(*loaded.ctx));
    return loaded;
}

/// A model for forward passes over up to `tokens` tokens in `segments` rows.
inline LoadedModel load_model(const fs::path& folder, const std::string& device, at::ScalarType dtype,
                              bool load_in_4bit, int64_t tokens, int64_t segments,
                              const std::optional<std::string>& adapter = std::nullopt) {
    model::LoadRequest request;
    request.device = ops::choose_device(device);
    request.dtype = dtype;
    request.load_in_4bit = load_in_4bit;
    request.adapter = adapter;
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = tokens;
    request.sizes.cache_tokens = tokens;
    request.sizes.segments = segments;
    request.run.head_tile = 16;  // several chunks: their seams are tested too
    request.sizes.training = false;
    return load_model(folder, request);
}

/// Rows one after another, each a segment, with every position a row of the head: logits come for all tokens.
inline data::Batch every_position(const std::vector<std::vector<int32_t>>& rows) {
    std::vector<data::Sample> samples;
    for (const auto& ids : rows) {
        data::Sample sample{static_cast<int64_t>(samples.size()), ids, ids, {}};
        for (std::size_t t = 0; t < ids.size(); ++t) sample.positions.push_back(static_cast<int32_t>(t));
        samples.push_back(std::move(sample));
    }
    data::Batch batch = data::make_batch(samples);
    batch.target_index.clear();
    batch.target_ids.clear();
    for (int32_t t = 0; t < static_cast<int32_t>(batch.ids_T.size()); ++t) {
        const int32_t target = batch.targets_T[static_cast<std::size_t>(t)];
        batch.target_index.push_back(t);
        batch.target_ids.push_back(target == data::ignore_label ? 0 : target);
    }
    batch.labels = batch.tokens();
    return batch;
}

/// One sequence through a model's cache, and the likeliest id behind each piece of it.
class Continued {
  public:
    explicit Continued(model::Model& model) : model_(model) {}

    int32_t next(const std::vector<int32_t>& ids) {
        const auto count = static_cast<int32_t>(ids.size());
        model::CachedPass pass;
        pass.batch.ids_T = ids;
        for (int32_t t = 0; t < count; ++t) pass.batch.positions_T.push_back(length_ + t);
        pass.slots_T = pass.batch.positions_T;  // page i of the sequence is the cache's
        pass.batch.segments = {0, count};
        pass.batch.longest = count;
        pass.batch.target_index = {count - 1};
        pass.batch.target_ids = {0};
        pass.batch.labels = 1;
        pass.rows.q_offsets = {0};
        if (model_.spec().delta) pass.states = {0};
        if (length_ > 0) {
            pass.rows.q_offsets.push_back(count);
            pass.rows.lengths = {length_ + count};
            pass.rows.most_pages = ops::pages_of(model_.sizes().cache_tokens);
            for (int32_t page = 0; page < pass.rows.most_pages; ++page) pass.rows.pages.push_back(page);
            pass.rows.decoding = count == 1 ? 1 : 0;
        }
        length_ += count;
        int32_t best = -1;
        model_.forward_with_kv_cache(
            pass, [&](int64_t, const at::Tensor& logits) { best = logits.argmax().item<int32_t>(); });
        return best;
    }

  private:
    model::Model& model_;
    int32_t length_ = 0;
};

struct Scored {
    at::Tensor logits_TV;  ///< fp32, CPU
    double mean_loss = 0;  ///< over the positions that have a next token
};

inline Scored score_every_position(model::Model& model, const std::vector<std::vector<int32_t>>& rows) {
    const data::Batch batch = every_position(rows);
    std::vector<at::Tensor> chunks;
    const at::Tensor losses = model.score(
        batch, [&](int64_t, const at::Tensor& logits_CV) { chunks.push_back(logits_CV.to(at::kFloat).cpu().clone()); });
    double sum = 0;
    int64_t count = 0;
    for (std::size_t t = 0; t < batch.ids_T.size(); ++t) {
        if (batch.targets_T[t] == data::ignore_label) continue;
        sum += losses.data_ptr<float>()[t];
        ++count;
    }
    return {at::cat(chunks), sum / static_cast<double>(count)};
}

}  // namespace unsloth::test
