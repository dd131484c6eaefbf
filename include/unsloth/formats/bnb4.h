// bitsandbytes' 4-bit weights on disk: reading them as stored, dequantising on the host, quantising, writing.
//
// Source: Dettmers et al., "QLoRA" (2023), and the files that bitsandbytes writes. A weight W [N, K] is stored as
// packed codes under its own name, with companions W.absmax, W.quant_map, W.nested_absmax, W.nested_quant_map (double
// quantisation) and W.quant_state.bitsandbytes__nf4 | __fp4, a JSON text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/formats/checkpoint.h"
#include "unsloth/spec/quant4.h"

namespace unsloth::formats {

using spec::Quant4Type;

/// A 4-bit weight as a checkpoint stores it. Copyable; valid as long as the checkpoint.
struct Quant4Weight {
    spec::Quant4View view;  ///< host pointers into the map (into `copies` for a companion that is not aligned there)
    Quant4Type type = Quant4Type::nf4;
    spec::DType dtype = spec::DType::bf16;  ///< the weight's type before it was quantised
    std::vector<const TensorView*> parts;   ///< packed codes first, then its companions
    std::shared_ptr<const std::vector<std::vector<float>>> copies;

    std::size_t stored_bytes() const;
    /// Tells the system that all parts were consumed (see TensorView::drop).
    void drop() const noexcept {
        for (const TensorView* part : parts) part->drop();
    }
};

/// The weight under `weight_name` if it is a 4-bit one (its quant_state key is present), else nullopt. Input Error,
/// naming the tensor, when a companion is missing or has another type, shape or value than the format allows.
std::optional<Quant4Weight> find_quant4(const Checkpoint& checkpoint, const std::string& weight_name);

/// Whether `tensor_name` is a companion of a 4-bit weight; then `weight_name` (if given) takes the weight's name.
bool is_quant4_companion(const std::string& tensor_name, std::string* weight_name = nullptr);

/// out[(row_end - row_begin) * cols] = rows [row_begin, row_end) of the weight in fp32: multiply, round, add, round
/// (never fused), bit-exact with bitsandbytes. Single-threaded; call it for disjoint rows from several threads.
void dequantize_rows(const spec::Quant4View& weight, int64_t row_begin, int64_t row_end, float* out);

/// absmax_b for all blocks, in fp32 (double quantisation undone).
void dequantize_absmax(const spec::Quant4View& weight, float* out);

/// A 4-bit weight that owns its memory.
struct Quant4Owned {
    Quant4Type type = Quant4Type::nf4;
    int64_t rows = 0, cols = 0;
    std::vector<uint8_t> packed;       ///< [ceil(NK / 2)]
    std::vector<uint8_t> absmax;       ///< [blocks]
    std::vector<float> nested_absmax;  ///< [ceil(blocks / 256)]
    std::vector<float> tables;         ///< code [16], nested map [256]
    float nested_offset = 0.0F;

    spec::Quant4View view() const;
};

/// Quantises w [rows, cols] to NF4 with double quantisation: codes equal to bitsandbytes', absmax codes the nearest map
/// entry. The result does not depend on `threads` (0: as many as the machine has, for large weights).
/// Input Error for a weight that is not finite.
Quant4Owned quantize_nf4(const float* w, int64_t rows, int64_t cols, int threads = 0);

/// Yields the rows [row_begin, row_end) of a weight in fp32; called for disjoint rows from several threads.
using ReadRows = std::function<void(int64_t row_begin, int64_t row_end, float* out)>;
/// The same for a weight that need not be in memory as a whole, and for either type.
Quant4Owned quantize_4bit(Quant4Type type, int64_t rows, int64_t cols, const ReadRows& read, int threads = 0);

/// What a checkpoint stores for such a weight, the packed codes under `weight_name` first. `dtype`: the weight's type
/// before it was quantised.
std::vector<TensorBlob> quant4_tensors(const std::string& weight_name, const Quant4Owned& weight, spec::DType dtype);
/// Those of them that do not grow with the weight's elements: all but the codes and their blocks' scales, which
/// `weight` need not hold.
std::vector<TensorBlob> quant4_companions(const std::string& weight_name, const Quant4Owned& weight, spec::DType dtype);
/// The same without data, for declaring a file before its weights are made (the JSON's length depends on the offset:
/// it is padded with spaces to a fixed size in both).
std::vector<TensorDecl> quant4_declarations(const std::string& weight_name, int64_t rows, int64_t cols,
                                            spec::DType dtype, Quant4Type type = Quant4Type::nf4);

}  // namespace unsloth::formats
