// lm_head as its products read it; in 8 bit: which of them read codes, where those are, and how they are made.
#include "unsloth/core/error.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/weights/base_plan.h"

namespace unsloth::weights {
namespace {

constexpr const char* const rows_name = "lm_head";
constexpr const char* const transpose_name = "lm_head^T";

std::string codes_of(const char* name) {
    return cat(name, " codes");
}
std::string scales_of(const char* name) {
    return cat(name, " scales");
}

std::string factors_of(const char* name) {
    return cat(name, " factors");
}

void submit_codes(const char* name, int64_t rows, int64_t columns, spec::Codes codes, memory::Plan& resident) {
    resident.add("embeddings", codes_of(name), rows * columns);
    resident.add("embeddings", scales_of(name), rows * static_cast<int64_t>(sizeof(float)));
    if (codes == spec::Codes::int8) resident.add("embeddings", factors_of(name), columns * 2);
}

ops::CodedMatrix codes_at(const memory::Arena& arena, const char* name, int64_t rows, int64_t columns,
                          spec::Codes codes) {
    ops::CodedMatrix at{arena.tensor(arena.plan().find(codes_of(name)), {rows, columns}, ops::type_of(codes)),
                        arena.tensor(arena.plan().find(scales_of(name)), {rows}, at::kFloat)};
    if (codes == spec::Codes::int8)
        at.factors = arena.tensor(arena.plan().find(factors_of(name)), {columns}, at::kBFloat16);
    return at;
}

}  // namespace

void EmbeddingAndHead::expand_head(ops::Context& ctx, HeadProduct first, const at::Tensor& dequantized_VD) const {
    const HeadProduct reads = codes_VD.codes.defined() ? HeadProduct::dx : HeadProduct::logits;
    if (dequantized_VD.defined() && reads == first) expand(ctx, lm_head_VD, dequantized_VD);
}

Operand EmbeddingAndHead::head(const at::Tensor& dequantized_VD, const spec::Range& rows) const {
    Operand operand;
    at::Tensor values;
    if (!codes_VD.codes.defined() || !codes_DV.codes.defined())
        values = (dequantized_VD.defined() ? dequantized_VD : std::get<at::Tensor>(lm_head_VD))
                     .narrow(0, rows.begin, rows.size);
    if (codes_VD.codes.defined()) {
        operand.base = CodedBase{codes_VD, values};
    } else {
        operand.base = DenseBase{.w_NK = values};
    }
    if (codes_DV.codes.defined()) operand.transpose = CodedTranspose{codes_DV};
    return operand;
}

/// Why lm_head's products stay in the compute type while layers' are in 8 bit; empty: they do not.
std::string BasePlan::why_head_stays() const {
    constexpr int64_t step = 16;  // of a product's inputs, which rows are for dx
    if (!request_.trains) return "nothing is trained";
    if (request_.fp32_logits) return "its logits are float32";
    if (request_.masters || request_.unties_head || request_.trains_head) return "it is trained";
    spec::TensorRank place = layout_.tp;
    for (place.rank = 0; place.rank < place.size; ++place.rank)  // all ranks decide alike
        if (const int64_t rows = spec::vocabulary_slice(file_->spec.vocab_size, place).size; rows % step != 0)
            return cat("its ", rows, " rows", place.alone() ? "" : " of a rank", " are no multiple of ", step);
    return "";
}

spec::CodedProducts BasePlan::head_coded() const {
    return layout_.stage.last() && why_head_stays().empty() ? request_.coded : spec::CodedProducts::none;
}

void BasePlan::submit_head_codes(memory::Plan& resident) const {
    const spec::CodedProducts products = head_coded();
    const int64_t rows = spec::vocabulary_slice(file_->spec.vocab_size, layout_.tp).size,
                  columns = file_->spec.hidden_size;
    if (forward_coded(products)) submit_codes(rows_name, rows, columns, forward_codes(products), resident);
    if (head_dx_codes(products) != spec::Codes::none)
        submit_codes(transpose_name, columns, rows, head_dx_codes(products), resident);
}

/// From the values that products in the compute type read.
void BasePlan::make_head_codes(ops::Context& ctx, const memory::Arena& arena, EmbeddingAndHead& outer) const {
    const spec::CodedProducts products = head_coded();
    if (!any(products)) return;
    const int64_t vocabulary = file_->spec.vocab_size, columns = file_->spec.hidden_size;
    const spec::Range own = spec::vocabulary_slice(vocabulary, layout_.tp);
    at::Tensor whole_VD;
    if (expands_head()) {  // the step's memory, which comes later, is more
        whole_VD = at::empty({vocabulary, columns}, at::TensorOptions(request_.dtype).device(ctx.device()));
        expand(ctx, outer.lm_head_VD, whole_VD);
    } else {
        whole_VD = std::get<at::Tensor>(outer.lm_head_VD);
    }
    const at::Tensor own_VD = whole_VD.narrow(0, own.begin, own.size);
    if (forward_coded(products)) {
        outer.codes_VD = codes_at(arena, rows_name, own.size, columns, forward_codes(products));
        ops::quantize_rows(ctx, own_VD, outer.codes_VD);
    }
    if (head_dx_codes(products) != spec::Codes::none) {
        outer.codes_DV = codes_at(arena, transpose_name, columns, own.size, head_dx_codes(products));
        ops::quantize_columns(ctx, own_VD, outer.codes_DV);
    }
}

}  // namespace unsloth::weights
