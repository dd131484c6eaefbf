// `init`: a model folder with random weights, a tensor at a time.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/core/parallel.h"
#include "unsloth/core/philox.h"
#include "unsloth/formats/bnb4.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/shards.h"
#include "unsloth/memory/plan.h"
#include "unsloth/model/loader.h"
#include "unsloth/ops/quant.h"
#include "unsloth/spec/convert.h"
#include "unsloth/tokenizer/tokenizer.h"
#include "unsloth/train/commands.h"
#include "unsloth/train/session.h"
#include "unsloth/train/shapes.h"

namespace unsloth::train {
namespace {

constexpr float initializer_range = 0.02F;  // transformers' default

/// Four normal values from one Philox draw (Box and Muller, 1958), named by (seed, tensor, element): any number of
/// threads gives the same weights.
void fill_normal(float* out, int64_t begin, int64_t end, uint64_t seed, uint32_t tensor) {
    for (int64_t i = begin; i < end; i += 4) {
        const auto block = static_cast<uint64_t>(i / 4);
        const PhiloxWords words =
            philox4x32(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(block),
                       static_cast<uint32_t>(block >> 32), tensor, 0x1417);
        float normal[4];
        for (int pair = 0; pair < 2; ++pair) {
            const float radius = std::sqrt(-2.0F * std::log(1.0F - unit_float(words.w[2 * pair])));
            const float angle = 2.0F * std::numbers::pi_v<float> * unit_float(words.w[2 * pair + 1]);
            normal[2 * pair] = radius * std::cos(angle);
            normal[2 * pair + 1] = radius * std::sin(angle);
        }
        for (int64_t j = i; j < std::min(end, i + 4); ++j) out[j] = normal[j - i] * initializer_range;
    }
}

/// body(begin, end) for ranges of [0, count) that begin at multiples of 4, on all cores.
void in_parallel(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    parallel_ranges((count + 3) / 4, 1 << 16,
                    [&](int64_t begin, int64_t end) { body(begin * 4, std::min(count, end * 4)); });
}

/// Values as a saved 16-bit checkpoint would hold them, both ways: `stored` in the storage type, `values` what they say
/// in fp32.
struct Made {
    std::vector<float> values;
    std::vector<std::byte> stored;
};

Made make_values(const spec::TensorRule& rule, uint64_t seed, uint32_t tensor, spec::DType dtype) {
    int64_t count = 1;
    for (const int64_t size : rule.shape) count *= size;
    Made made{std::vector<float>(static_cast<std::size_t>(count)),
              std::vector<std::byte>(static_cast<std::size_t>(count) * spec::size_of(dtype))};
    in_parallel(count, [&](int64_t begin, int64_t end) {
        float* const values = made.values.data();
        std::byte* const stored = made.stored.data() + static_cast<std::size_t>(begin) * spec::size_of(dtype);
        if (rule.shape.size() == 1) {
            std::fill(values + begin, values + end, rule.role == spec::TensorRole::bias ? 0.0F : 1.0F);
        } else {
            fill_normal(values, begin, end, seed, tensor);
        }
        spec::convert_from_f32(dtype, values + begin, end - begin, stored);
        spec::convert_to_f32(dtype, stored, end - begin, values + begin);
    });
    return made;
}

bool quantised(const spec::TensorRule& rule, config::InitQuantize how) {
    return how == config::InitQuantize::nf4 && rule.may_be_quantised;
}

std::vector<formats::TensorDecl> declarations(const spec::TensorRule& rule, config::InitQuantize how,
                                              spec::DType dtype) {
    if (quantised(rule, how)) return formats::quant4_declarations(rule.hf_name, rule.shape[0], rule.shape[1], dtype);
    return {{rule.hf_name, dtype, rule.shape}};
}

/// Quantises on the GPU where there is one: an 8B model takes seconds there.
formats::Quant4Owned quantise(ops::Context& ctx, const std::vector<float>& values, const spec::TensorRule& rule) {
    if (!ctx.is_cuda()) return formats::quantize_nf4(values.data(), rule.shape[0], rule.shape[1]);
    const at::Tensor host = at::from_blob(const_cast<float*>(values.data()), rule.shape, at::kFloat);
    const ops::Quant4Tensor made = ops::quantize_nf4(ctx, host.to(ctx.device()));
    const auto bytes = [](const at::Tensor& t) {
        const at::Tensor cpu = t.cpu().contiguous();
        return std::vector<uint8_t>(cpu.data_ptr<uint8_t>(), cpu.data_ptr<uint8_t>() + cpu.numel());
    };
    const auto floats = [](const at::Tensor& t) {
        const at::Tensor cpu = t.cpu().contiguous();
        return std::vector<float>(cpu.data_ptr<float>(), cpu.data_ptr<float>() + cpu.numel());
    };
    formats::Quant4Owned owned;
    owned.rows = rule.shape[0];
    owned.cols = rule.shape[1];
    owned.packed = bytes(made.packed);
    owned.absmax = bytes(made.absmax);
    owned.nested_absmax = floats(made.nested_absmax);
    owned.tables = floats(made.tables);
    owned.nested_offset = made.nested_offset;
    return owned;
}

class Writer {
  public:
    Writer(const config::InitRequest& request, const spec::ModelSpec& spec)
        : request_(request), rules_(spec::tensor_table(spec)), ctx_(choose_device("auto")) {}

    /// One file a shard of at most 5 GB of tensors.
    void write() {
        std::vector<std::size_t> sizes;
        for (const spec::TensorRule& rule : rules_) {
            std::size_t bytes = 0;
            for (const formats::TensorDecl& decl : declarations(rule, request_.quantize, request_.dtype))
                bytes += decl.bytes();
            sizes.push_back(bytes);
            total_ += bytes;
        }
        const auto shards = formats::split_into_shards(sizes, formats::default_shard_bytes);
        for (std::size_t s = 0; s < shards.size(); ++s)
            write_shard(shards[s], formats::shard_file_name(s, shards.size()));
        if (shards.size() > 1)
            write_file_atomically(std::filesystem::path(request_.out) / formats::shard_index_file,
                                  formats::shard_index_json(where_, total_));
    }
    std::size_t total_bytes() const { return total_; }

  private:
    void write_shard(const std::vector<std::size_t>& members, const std::string& file) {
        std::vector<formats::TensorDecl> declared;
        for (const std::size_t i : members)
            for (formats::TensorDecl& decl : declarations(rules_[i], request_.quantize, request_.dtype)) {
                where_[decl.name] = file;
                declared.push_back(std::move(decl));
            }
        formats::SafetensorsWriter writer(std::filesystem::path(request_.out) / file, std::move(declared));
        for (const std::size_t i : members) write_tensor(writer, rules_[i], static_cast<uint32_t>(i));
        writer.finish();
    }

    void write_tensor(formats::SafetensorsWriter& writer, const spec::TensorRule& rule, uint32_t index) {
        const Made made = make_values(rule, static_cast<uint64_t>(request_.seed), index, request_.dtype);
        if (!quantised(rule, request_.quantize)) {
            writer.append(rule.hf_name, made.stored);
            return;
        }
        for (const formats::TensorBlob& blob :
             formats::quant4_tensors(rule.hf_name, quantise(ctx_, made.values, rule), request_.dtype))
            writer.append(blob.decl.name, blob.data);
    }

    const config::InitRequest& request_;
    std::vector<spec::TensorRule> rules_;
    ops::Context ctx_;
    std::map<std::string, std::string> where_;
    std::size_t total_ = 0;
};

}  // namespace

void run_init(const config::InitRequest& request) {
    if (std::filesystem::is_directory(request.out))
        for (const auto& entry : std::filesystem::directory_iterator(request.out))
            if (entry.path().filename() == "config.json" || entry.path().extension() == ".safetensors")
                throw usage_error(cat("--out ", request.out, " holds a model already: ",
                                      entry.path().filename().string(), " would be replaced"),
                                  "Name another folder, or remove that model first.");
    spec::ModelSpec spec = request.config_file.empty()
                               ? builtin_shape(request.shape)
                               : formats::parse_model_spec(read_file(request.config_file), request.config_file);
    spec.dtype = request.dtype;
    std::filesystem::create_directories(request.out);
    Writer writer(request, spec);
    writer.write();
    const std::string original = request.config_file.empty() ? std::string() : read_file(request.config_file);
    write_file_atomically(
        std::filesystem::path(request.out) / "config.json",
        formats::write_model_config(
            spec,
            request.quantize == config::InitQuantize::nf4 ? std::optional(formats::QuantizationConfig{}) : std::nullopt,
            original));
    if (!request.tokenizer.empty()) {
        const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(request.tokenizer);
        copy_files(tokenizer.files(), tokenizer.folder(), request.out);
    }
    log::info("random weights (seed ", request.seed, ") in ", request.out, ": ",
              memory::human_bytes(static_cast<int64_t>(writer.total_bytes())));
}

}  // namespace unsloth::train
