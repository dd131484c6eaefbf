// Models and adapters as GGUF files that llama.cpp loads. Keys, names and layouts are those of llama.cpp's converters
// (convert_hf_to_gguf.py, convert_lora_to_gguf.py) and of its llama-quantize.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "unsloth/formats/gguf.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/formats/peft.h"
#include "unsloth/spec/vocabulary.h"

namespace unsloth::formats {

/// What most weights of a file are; the values are llama.cpp's (general.file_type). Vectors stay F32. In the quantised
/// kinds some weights get another type, as llama-quantize chooses (see tensor_type): q4_k_m is a mix of Q4_K and Q6_K.
enum class GgufFileType : uint32_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q8_0 = 7,
    q4_k_m = 15,
    q5_k_m = 17,
    q6_k = 18,
    bf16 = 32,
    mxfp4 = 38
};

/// The type of most weights of a file.
GgmlType base_type(GgufFileType file_type);
/// The type of one weight of a model (a rule of tensor_table), before its row length is looked at.
GgmlType wanted_type(const spec::ModelSpec& spec, const spec::TensorRule& rule, GgufFileType file_type);
/// What takes the place of `type` for rows of `cols` that are no multiple of its block, as llama-quantize chooses:
/// Q4_K -> Q5_0, Q5_K -> Q5_1, Q6_K -> Q8_0, and F16 where that does not fit either.
GgmlType type_for_rows(GgmlType type, int64_t cols);

/// llama.cpp's name of a tensor: "blk.3.attn_q.weight"; of an expert's matrix that of all experts', [E, N, K].
std::string gguf_tensor_name(const spec::TensorRule& rule);

struct GgufExportOptions {
    GgufFileType type = GgufFileType::bf16;
    std::string name;  ///< general.name
    int threads = 0;   ///< 0: as many as the machine has; the file does not depend on it
    /// The linears' values are those of `type` already (merge --grid): their blocks must stand for exactly these, and
    /// all other matrices are of this type. f32, f16 or bf16; nullopt: all are quantised.
    std::optional<GgufFileType> others = {};
};

/// What was written of one type, and how far it is from the source: the root of the mean squared difference over the
/// root of the mean square.
struct GgufTypeReport {
    int64_t tensors = 0, elements = 0;
    std::size_t bytes = 0;
    double squared_error = 0, squares = 0;

    double relative_error() const;
};

struct GgufReport {
    std::size_t file_bytes = 0;
    double seconds = 0;                           ///< reading, quantising and writing the tensors
    std::size_t source_bytes = 0;                 ///< of the tensors in fp32
    std::map<std::string, GgufTypeReport> types;  ///< by the type's name
};

/// Writes `out`, which must not exist. Holds some 64 MiB in addition to the vocabulary, for a model of any size; 4-bit
/// weights are dequantised on the way. Rows of q and k are put into llama.cpp's order for Llama and Mistral. Input
/// Error for a model that llama.cpp has no form for, a vocabulary larger than the model's, weights that are not finite
/// or do not fit into the type, or would change where `others` says that they do not; runtime Error when the file
/// cannot be written; Interrupted on a signal, with no partial file left. What llama.cpp computes otherwise (sliding
/// windows, dynamic RoPE) is logged as a warning.
GgufReport export_model_gguf(const WeightFile& model, const spec::Vocabulary& vocabulary,
                             const std::filesystem::path& out, const GgufExportOptions& options);

/// The same for a LoRA adapter alone (f32, f16, bf16 or q8_0; usage Error otherwise). llama.cpp scales by
/// alpha / r with one alpha for all: where modules differ (rsLoRA with rank_pattern, alpha_pattern), the rest of their
/// scale is multiplied into lora_b. Input Error for modules_to_save.
GgufReport export_adapter_gguf(const Adapter& adapter, const spec::ModelSpec& spec, const std::filesystem::path& out,
                               const GgufExportOptions& options);

}  // namespace unsloth::formats
