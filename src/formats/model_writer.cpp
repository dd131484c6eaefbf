#include "unsloth/formats/model_writer.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>

#include "formats/experts_layout.h"
#include "formats/families/family.h"
#include "formats/values_fit.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/parallel.h"
#include "unsloth/core/text.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/serve_grid.h"
#include "unsloth/spec/convert.h"
#include "unsloth/spec/quant4.h"

namespace unsloth::formats {
namespace {

constexpr int64_t slab_bytes = 8 << 20;      // of one tensor's stored form
constexpr int64_t piece_elements = 1 << 15;  // that a thread computes at a time: 128 KiB stay in a core's cache

class Writer {
  public:
    Writer(const MergedModel& model, const std::filesystem::path& folder, const ModelWriteOptions& options)
        : model_(model),
          folder_(folder),
          options_(options),
          type_(resolve_weight_type(options.type, model.spec())),
          dtype_(storage_dtype(options.type, model.spec())),
          stored_(stored_tensors(model.spec(), model.tensors())),
          others_(model.others(keeps_4bit())) {}

    WrittenModel write() {
        std::vector<std::size_t> sizes;
        for (const StoredTensor& stored : stored_) {
            std::size_t bytes = 0;
            for (const TensorDecl& decl : declarations(stored)) bytes += decl.bytes();
            sizes.push_back(bytes);
            written_.tensor_bytes += bytes;
        }
        for (const OtherTensor& other : others_) written_.tensor_bytes += other.declare(dtype_).bytes();
        require_space();
        const auto shards = split_into_shards(sizes, options_.shard_bytes);
        written_.files = shards.size() + (others_.empty() ? 0 : 1);
        for (std::size_t i = 0; i < shards.size(); ++i) write_shard(shards[i], shard_file_name(i, written_.files));
        if (written_.files > shards.size()) write_others(shard_file_name(shards.size(), written_.files));
        if (written_.files > 1)
            write_file_atomically(folder_ / shard_index_file, shard_index_json(where_, written_.tensor_bytes));
        write_config();
        return written_;
    }

  private:
    bool keeps_4bit() const { return spec::is_4bit(type_); }  ///< of other parts of the model

    /// How this tensor is stored: as it is named, else quantised types are for the linears of the layers alone.
    spec::WeightType type_of(const spec::TensorRule& rule) const {
        if (rule.role == spec::TensorRole::linear && options_.linears != spec::WeightType::automatic)
            return options_.linears;
        const spec::WeightType asked = options_.precision.of(rule, model_.spec());
        if (asked != spec::WeightType::automatic) return asked;
        return spec::is_quantised(type_) && rule.role != spec::TensorRole::linear ? spec::WeightType::automatic : type_;
    }
    /// Of a tensor that is not quantised.
    spec::DType dtype_of(const spec::TensorRule& rule) const {
        const spec::WeightType type = type_of(rule);
        return type == spec::WeightType::automatic ? dtype_ : storage_dtype(type, model_.spec());
    }
    static Quant4Type code_of(spec::WeightType type) {
        return type == spec::WeightType::nf4 ? Quant4Type::nf4 : Quant4Type::fp4;
    }

    /// 4-bit weights that the adapter does not change are copied as stored: quantizing them again would change
    /// them.
    const Quant4Weight* taken_over(const spec::TensorRule& rule) const {
        const spec::WeightType type = type_of(rule);
        const Quant4Weight* const weight = spec::is_4bit(type) ? model_.unchanged_quant4(rule) : nullptr;
        const bool same_form = weight != nullptr && weight->type == code_of(type) && weight->view.nested() &&
                               weight->parts.front()->dtype == spec::DType::u8;
        return same_form ? weight : nullptr;
    }

    const spec::TensorRule& rule_of(const StoredTensor& stored) const { return model_.tensors()[stored.rules.front()]; }
    /// Whether it is of all experts, whose parts are not next to each other.
    bool has_parts(const StoredTensor& stored) const {
        return experts_part(model_.spec(), rule_of(stored)).has_value();
    }

    /// Of all experts, in MXFP4 in the base, and asked for as it is.
    bool stays_in_mxfp4(const StoredTensor& stored) const {
        return has_parts(stored) && options_.type == spec::WeightType::automatic &&
               std::ranges::all_of(stored.rules, [&](std::size_t i) {
                   const spec::TensorRule& rule = model_.tensors()[i];
                   return model_.unchanged_mxfp4(rule) != nullptr &&
                          options_.precision.of(rule, model_.spec()) == spec::WeightType::automatic;
               });
    }

    std::vector<TensorDecl> declarations(const StoredTensor& stored) const {
        const spec::TensorRule& rule = rule_of(stored);
        if (!has_parts(stored)) return declarations(rule);
        if (stays_in_mxfp4(stored))
            return mxfp4_declarations(stored.name, stored.shape[0], stored.shape[2], stored.shape[1]);
        for (const std::size_t i : stored.rules) {
            const spec::TensorRule& part = model_.tensors()[i];
            if (spec::is_quantised(type_of(part))) refuse_quantised_experts(model_.spec());
            if (dtype_of(part) != dtype_of(rule))
                throw Error("model.precision",
                            cat("model.precision gives experts of one layer several types, which are one tensor (",
                                stored.name, ") in a ", model_.spec().model_type, " folder"),
                            "Give all of a layer's experts the same type.");
        }
        return {{stored.name, dtype_of(rule), stored.shape}};
    }
    std::vector<TensorDecl> declarations(const spec::TensorRule& rule) const {
        std::vector<TensorDecl> declared;
        if (const Quant4Weight* const weight = taken_over(rule)) {
            for (const TensorView* part : weight->parts) declared.push_back({part->name, part->dtype, part->shape});
            return declared;
        }
        if (const spec::WeightType type = type_of(rule); spec::is_4bit(type))
            return quant4_declarations(rule.hf_name, rule.shape[0], rule.shape[1], dtype_, code_of(type));
        if (type_of(rule) == spec::WeightType::int8)
            return int8_declarations(rule.hf_name, rule.shape[0], rule.shape[1]);
        return {{rule.hf_name, dtype_of(rule), rule.shape}};
    }

    void require_space() const {
        std::error_code unknown;
        const auto space = std::filesystem::space(folder_, unknown);
        if (unknown || space.available >= written_.tensor_bytes) return;
        throw Error("disk.full",
                    cat("not enough space for ", folder_.string(), ": ",
                        human_size(static_cast<int64_t>(written_.tensor_bytes)), " to write, ",
                        human_size(static_cast<int64_t>(space.available)), " free"),
                    "Free some space, or choose another folder.");
    }

    void write_shard(const std::vector<std::size_t>& members, const std::string& file) {
        std::vector<TensorDecl> declared;
        for (const std::size_t i : members)
            for (TensorDecl& decl : declarations(stored_[i])) {
                where_[decl.name] = file;
                declared.push_back(std::move(decl));
            }
        SafetensorsWriter writer(folder_ / file, std::move(declared));
        log::debug("writing ", file, ", ", human_size(static_cast<int64_t>(writer.file_size())));
        for (const std::size_t i : members) {
            if (stays_in_mxfp4(stored_[i]))
                write_mxfp4(writer, stored_[i]);
            else
                has_parts(stored_[i]) ? write_parts(writer, stored_[i]) : write_tensor(writer, rule_of(stored_[i]));
        }
        writer.finish();
    }

    /// Other parts of the model.
    void write_others(const std::string& file) {
        std::vector<TensorDecl> declared;
        for (const OtherTensor& other : others_) {
            declared.push_back(other.declare(dtype_));
            where_[declared.back().name] = file;
        }
        SafetensorsWriter writer(folder_ / file, std::move(declared));
        for (const OtherTensor& other : others_) {
            stop_if_interrupted();
            write_other(writer, other);
        }
        writer.finish();
    }

    void write_other(SafetensorsWriter& writer, const OtherTensor& other) const {
        const std::string& name = other.stored().name;
        if (other.as_stored()) return writer.append(name, other.stored().data), other.stored().drop();
        const std::vector<float> values = other.read_f32();
        const auto count = static_cast<int64_t>(values.size());
        require_values_fit(values.data(), count, dtype_, name);
        std::vector<std::byte> bytes(values.size() * spec::size_of(dtype_));
        spec::convert_from_f32(dtype_, values.data(), count, bytes.data());
        writer.append(name, bytes);
    }

    void write_tensor(SafetensorsWriter& writer, const spec::TensorRule& rule) const {
        stop_if_interrupted();
        if (const Quant4Weight* const weight = taken_over(rule)) {
            for (const TensorView* part : weight->parts) writer.append(part->name, part->data);
            weight->drop();
        } else if (const spec::WeightType type = type_of(rule); spec::is_4bit(type)) {
            write_4bit(writer, model_.open(rule), code_of(type));
        } else if (type_of(rule) == spec::WeightType::int8) {
            write_int8(writer, model_.open(rule));
        } else {
            write_plain(writer, model_.open(rule));
        }
    }

    /// One expert after the other, whose matrix of gate and up is one there.
    void write_mxfp4(SafetensorsWriter& writer, const StoredTensor& stored) const {
        for (const std::size_t i : stored.rules) {
            const spec::TensorRule& rule = model_.tensors()[i];
            if (!experts_part(model_.spec(), rule)->last) continue;
            stop_if_interrupted();
            const Mxfp4Weight& weight = *model_.unchanged_mxfp4(rule);
            writer.append(cat(stored.name, mxfp4_blocks_suffix), weight.blocks->data);
            writer.append(cat(stored.name, mxfp4_scales_suffix), weight.scales->data);
            weight.drop();
        }
    }

    /// A tensor of all experts, one expert after the other.
    void write_parts(SafetensorsWriter& writer, const StoredTensor& stored) const {
        const spec::DType dtype = dtype_of(rule_of(stored));
        const std::size_t item = spec::size_of(dtype);
        std::vector<std::byte> values;  // of an expert
        for (const std::size_t i : stored.rules) {
            stop_if_interrupted();
            const spec::TensorRule& rule = model_.tensors()[i];
            const ExpertsPart part = *experts_part(model_.spec(), rule);
            values.resize(static_cast<std::size_t>(part.values_of_each()) * item);
            write_part(model_.open(rule), part, dtype, values.data());
            if (part.last) writer.append(stored.name, values);
        }
    }

    /// Puts a part's values where they belong among its expert's.
    void write_part(const MergedTensor& tensor, const ExpertsPart& part, spec::DType dtype, std::byte* out) const {
        const int64_t cols = tensor.cols(), piece_rows = std::max<int64_t>(1, piece_elements / cols);
        const std::size_t item = spec::size_of(dtype);
        parallel_ranges(
            tensor.rows(), piece_rows,
            [&](int64_t begin, int64_t end) {
                std::vector<float> values(static_cast<std::size_t>(std::min(piece_rows, end - begin) * cols));
                std::vector<std::byte> encoded(values.size() * item);
                for (int64_t row = begin; row < end; row += piece_rows) {
                    const int64_t rows = std::min(end - row, piece_rows);
                    tensor.read_f32(row, row + rows, values.data());
                    require_values_fit(values.data(), rows * cols, dtype, tensor.rule().hf_name);
                    spec::convert_from_f32(dtype, values.data(), rows * cols, encoded.data());
                    for (int64_t k = 0; k < cols; ++k)
                        for (int64_t n = 0; n < rows; ++n)
                            std::memcpy(out + static_cast<std::size_t>(part.first + (row + n) * part.row_stride +
                                                                       k * part.col_stride) *
                                                  item,
                                        encoded.data() + static_cast<std::size_t>(n * cols + k) * item, item);
                }
            },
            options_.threads);
        tensor.drop(0, tensor.rows());
    }

    /// Rows of the tensor in fp32, which the tensor need not keep, as values that `stored` can hold.
    static void take(const MergedTensor& tensor, int64_t row_begin, int64_t row_end, spec::DType stored, float* out) {
        tensor.read_f32(row_begin, row_end, out);
        tensor.drop(row_begin, row_end);
        require_values_fit(out, (row_end - row_begin) * tensor.cols(), stored, tensor.rule().hf_name);
    }

    void write_4bit(SafetensorsWriter& writer, const MergedTensor& tensor, Quant4Type type) const {
        const auto read = [&](int64_t begin, int64_t end, float* out) {
            stop_if_interrupted();
            take(tensor, begin, end, spec::DType::f32, out);
        };
        const Quant4Owned made = quantize_4bit(type, tensor.rows(), tensor.cols(), read, options_.threads);
        for (const TensorBlob& blob : quant4_tensors(tensor.rule().hf_name, made, dtype_))
            writer.append(blob.decl.name, blob.data);
    }

    void write_plain(SafetensorsWriter& writer, const MergedTensor& tensor) const {
        const spec::DType dtype = dtype_of(tensor.rule());
        write_slabs(writer, tensor, spec::size_of(dtype), dtype,
                    [&](int64_t, int64_t rows, const float* values, std::byte* out) {
                        spec::convert_from_f32(dtype, values, rows * tensor.cols(), out);
                    });
    }

    void write_int8(SafetensorsWriter& writer, const MergedTensor& tensor) const {
        const std::string& name = tensor.rule().hf_name;
        std::vector<float> maxima(static_cast<std::size_t>(tensor.rows()));
        write_slabs(
            writer, tensor, 1, spec::DType::f16, [&](int64_t first, int64_t rows, const float* values, std::byte* out) {
                quantize_int8_rows(values, rows, tensor.cols(), reinterpret_cast<int8_t*>(out), maxima.data() + first);
            });
        writer.append(int8_maxima_name(name), std::as_bytes(std::span(maxima)));
        constexpr std::byte row_major{0};
        writer.append(int8_format_name(name), std::span(&row_major, 1));
    }

    /// The tensor under its own name, a slab at a time. encode(first row, rows, values, out) makes of some rows in
    /// fp32, which `fits` can hold, what is stored, `item` bytes an element; it runs in several threads at once.
    template <class Encode>
    void write_slabs(SafetensorsWriter& writer, const MergedTensor& tensor, std::size_t item, spec::DType fits,
                     const Encode& encode) const {
        const int64_t rows = tensor.rows(), cols = tensor.cols(), row_bytes = cols * static_cast<int64_t>(item);
        const int64_t slab_rows = std::clamp<int64_t>(slab_bytes / row_bytes, 1, rows),
                      piece_rows = std::max<int64_t>(1, piece_elements / cols);
        std::vector<std::byte> slab(static_cast<std::size_t>(slab_rows * row_bytes));
        for (int64_t first = 0; first < rows; first += slab_rows) {
            stop_if_interrupted();
            const int64_t last = std::min(rows, first + slab_rows);
            parallel_ranges(
                last - first, piece_rows,
                [&](int64_t begin, int64_t end) {
                    std::vector<float> values(static_cast<std::size_t>(std::min(piece_rows, end - begin) * cols));
                    for (int64_t row = begin; row < end; row += piece_rows) {
                        const int64_t stop = std::min(end, row + piece_rows);
                        take(tensor, first + row, first + stop, fits, values.data());
                        encode(first + row, stop - row, values.data(), slab.data() + row * row_bytes);
                    }
                },
                options_.threads);
            writer.append(tensor.rule().hf_name,
                          std::span(slab).first(static_cast<std::size_t>((last - first) * row_bytes)));
        }
    }

    /// What bitsandbytes' configuration can say of the types: one number of bits, and which linears are skipped. For
    /// 4-bit weights each weight's own state gives the code.
    std::optional<QuantizationConfig> quantization() {
        if (std::ranges::any_of(stored_, [this](const auto& stored) { return stays_in_mxfp4(stored); }))
            return model_.base().quantization;
        int64_t in_nf4 = 0, in_fp4 = 0, in_8bit = 0;
        std::vector<std::string> plain;
        bool head_is_plain = true;
        for (const spec::TensorRule& rule : model_.tensors()) {
            const spec::WeightType type = type_of(rule);
            const bool head = rule.role == spec::TensorRole::lm_head;
            if (rule.role == spec::TensorRole::embed_tokens && spec::is_quantised(type))
                written_.unknown_to_transformers.emplace_back("model.embed_tokens: it quantises linears alone");
            if (rule.role != spec::TensorRole::linear && !head) continue;
            in_nf4 += type == spec::WeightType::nf4;
            in_fp4 += type == spec::WeightType::fp4;
            in_8bit += type == spec::WeightType::int8;
            if (head) head_is_plain = !spec::is_quantised(type);
            if (!head && !spec::is_quantised(type)) plain.push_back(rule.hf_name.substr(0, rule.hf_name.rfind('.')));
        }
        if (in_nf4 + in_fp4 + in_8bit == 0) return std::nullopt;
        if (in_nf4 + in_fp4 > 0 && in_8bit > 0)
            written_.unknown_to_transformers.emplace_back("4-bit and 8-bit linears in one model");
        QuantizationConfig config;
        config.bnb_4bit_compute_dtype = name_of(dtype_);
        if (in_fp4 > in_nf4) config.bnb_4bit_quant_type = "fp4";
        std::ranges::move(model_.plain_tower_modules(keeps_4bit()), std::back_inserter(plain));
        // A list in the configuration replaces the default list of skipped modules.
        if (!plain.empty() || !head_is_plain) {
            if (head_is_plain) plain.emplace_back("lm_head");
            config.llm_int8_skip_modules = std::move(plain);
        }
        if (in_8bit > in_nf4 + in_fp4) {  // the 4-bit keys as transformers leaves them where they mean nothing
            config.load_in_4bit = config.bnb_4bit_use_double_quant = false;
            config.load_in_8bit = true;
            config.bnb_4bit_quant_type = "fp4";
            config.bnb_4bit_compute_dtype = "float32";
        }
        return config;
    }

    void write_config() {
        spec::ModelSpec spec = model_.spec();
        spec.dtype = dtype_;
        const std::string config = write_model_config(spec, quantization(), model_.original_config());
        write_file_atomically(folder_ / "config.json", with_serve_grid(config, model_.grid()));
    }

    const MergedModel& model_;
    const std::filesystem::path& folder_;
    const ModelWriteOptions& options_;
    spec::WeightType type_;
    spec::DType dtype_;
    std::vector<StoredTensor> stored_;
    std::vector<OtherTensor> others_;
    std::map<std::string, std::string> where_;
    WrittenModel written_;
};

}  // namespace

WrittenModel write_model(const MergedModel& model, const std::filesystem::path& folder,
                         const ModelWriteOptions& options) {
    return Writer(model, folder, options).write();
}

}  // namespace unsloth::formats
