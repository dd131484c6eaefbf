#include "ops/dora_cpu.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu_rows.h"
#include "ops/glu_cpu.h"

namespace unsloth::ops::cpu {

namespace {

/// The scales of some columns as fp32.
class Scales {
  public:
    explicit Scales(const OutputScale& of) : scale_(of.scale_N.const_data_ptr<float>()) {
        if (!of.bias_N.defined()) return;
        bias_.resize(static_cast<std::size_t>(of.bias_N.numel()));
        load_floats(of.bias_N.const_data_ptr(), of.bias_N.scalar_type(), of.bias_N.numel(), bias_.data());
    }
    float factor(int64_t column) const { return scale_[column]; }
    float apply(float z, int64_t column) const {
        return scale_[column] * z + (bias_.empty() ? 0.f : bias_[static_cast<std::size_t>(column)]);
    }

  private:
    const float* scale_;
    std::vector<float> bias_;
};

constexpr int64_t block = 64;  // columns; each belongs to one task, which walks the rows in order

/// run(first, count) for blocks of columns, several at a time.
template <class Run>
void over_column_blocks(int64_t columns, const Run& run) {
    at::parallel_for(0, (columns + block - 1) / block, 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) run(b * block, std::min(block, columns - b * block));
    });
}

/// Adds the sums of columns [first, first + count) where their projections want them.
void add_gradients(const float* sums, int64_t first, int64_t count, const OutputScale& scale,
                   const std::vector<MagnitudeGradient>& gradients) {
    const float* const inverse = scale.inverse_N.const_data_ptr<float>();
    for (const MagnitudeGradient& gradient : gradients) {
        const int64_t begin = std::max(first, gradient.n_begin),
                      end = std::min(first + count, gradient.n_begin + gradient.out_n.numel());
        for (int64_t column = begin; column < end; ++column)
            gradient.out_n.mutable_data_ptr<float>()[column - gradient.n_begin] +=
                inverse[column] * sums[column - first];
    }
}

/// Columns [begin, begin + count) of a tensor's rows.
Rows columns_of(const at::Tensor& matrix, int64_t begin, int64_t count) {
    return Rows(matrix.narrow(1, begin, count));
}

}  // namespace

void row_square_sums(const at::Tensor& w, const at::Tensor& out) {
    const Rows rows(w);
    float* const sums = out.mutable_data_ptr<float>();
    at::parallel_for(0, rows.rows(), grain_size(rows.columns()), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<std::size_t>(rows.columns()));
        for (int64_t row = begin; row < end; ++row) {
            const float* const values = rows.read(row, scratch.data());
            sums[row] = lane_sum(rows.columns(), [&](int64_t k) { return values[k] * values[k]; });
        }
    });
}

void dora_norms(const DoraNorms& args) {
    const Rows b(args.b_Nr), wa(args.wa_rN), gram(args.gram_rr);
    const int64_t rank = b.columns();
    const float* const base = args.base_N.const_data_ptr<float>();
    const float* const magnitude = args.magnitude_N.const_data_ptr<float>();
    float* const scale = args.scale_N.mutable_data_ptr<float>();
    float* const inverse = args.inverse_N.mutable_data_ptr<float>();
    at::parallel_for(0, b.rows(), grain_size(rank * rank), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<std::size_t>(rank));
        for (int64_t row = begin; row < end; ++row) {
            const float* const values = b.read(row, scratch.data());
            float sum = base[row];
            for (int64_t j = 0; j < rank; ++j) {
                const float* const products = gram.read(j, nullptr);
                float inner = 2.f * wa.read(j, nullptr)[row];
                for (int64_t k = 0; k < rank; ++k) inner += products[k] * values[k];
                sum += values[j] * inner;
            }
            inverse[row] = sum > 0.f ? 1.f / std::sqrt(sum) : 0.f;
            scale[row] = magnitude[row] * inverse[row];
        }
    });
}

void dora_forward(const at::Tensor& z, const OutputScale& scale, const at::Tensor& residual, const at::Tensor& y) {
    const Rows from(z), to(y), stream(residual.defined() ? residual : z);
    const Scales scales(scale);
    const int64_t columns = from.columns();
    at::parallel_for(0, from.rows(), grain_size(4 * columns), [&](int64_t begin, int64_t end) {
        const auto size = static_cast<std::size_t>(columns);
        std::vector<float> z_scratch(size), stream_scratch(size), out(size);
        for (int64_t row = begin; row < end; ++row) {
            const float* const values = from.read(row, z_scratch.data());
            for (int64_t c = 0; c < columns; ++c) out[static_cast<std::size_t>(c)] = scales.apply(values[c], c);
            if (residual.defined()) {
                const float* const before = stream.read(row, stream_scratch.data());
                for (int64_t c = 0; c < columns; ++c) out[static_cast<std::size_t>(c)] += before[c];
            }
            to.write(row, out.data());
        }
    });
}

void dora_backward(const at::Tensor& dy, const at::Tensor& z, const OutputScale& scale, const at::Tensor& dz,
                   const std::vector<MagnitudeGradient>& gradients) {
    const Scales scales(scale);
    over_column_blocks(dy.size(1), [&](int64_t first, int64_t count) {
        const Rows dy_rows = columns_of(dy, first, count), z_rows = columns_of(z, first, count),
                   dz_rows = columns_of(dz, first, count);
        float gradient[block], outputs[block], sums[block] = {};
        for (int64_t row = 0; row < dy_rows.rows(); ++row) {
            dy_rows.read_into(row, 0, count, gradient);
            z_rows.read_into(row, 0, count, outputs);
            for (int64_t c = 0; c < count; ++c) {
                sums[c] += gradient[c] * outputs[c];
                gradient[c] *= scales.factor(first + c);
            }
            dz_rows.write(row, gradient);
        }
        add_gradients(sums, first, count, scale, gradients);
    });
}

namespace {

template <class Glu>
void swiglu_forward(const at::Tensor& z, const OutputScale& scale, const at::Tensor& act) {
    const Rows from(z), to(act);
    const Scales scales(scale);
    const int64_t columns = to.columns();
    at::parallel_for(0, to.rows(), grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<std::size_t>(2 * columns)), out(static_cast<std::size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const float* const values = from.read(row, scratch.data());
            for (int64_t c = 0; c < columns; ++c) {
                const float gate = scales.apply(values[c], c), up = scales.apply(values[columns + c], columns + c);
                out[static_cast<std::size_t>(c)] = Glu::of(gate, up);
            }
            to.write(row, out.data());
        }
    });
}

template <class Glu>
void swiglu_backward(const at::Tensor& dact, const at::Tensor& z, const OutputScale& scale, const at::Tensor& act,
                     const std::vector<MagnitudeGradient>& gradients) {
    const Scales scales(scale);
    const int64_t columns = dact.size(1);
    over_column_blocks(columns, [&](int64_t first, int64_t count) {
        const Rows dact_rows = columns_of(dact, first, count), act_rows = columns_of(act, first, count),
                   gate_rows = columns_of(z, first, count), up_rows = columns_of(z, columns + first, count);
        float given[block], z_gate[block], z_up[block], rebuilt[block];
        float gate_sums[block] = {}, up_sums[block] = {};
        for (int64_t row = 0; row < dact_rows.rows(); ++row) {
            dact_rows.read_into(row, 0, count, given);
            gate_rows.read_into(row, 0, count, z_gate);
            up_rows.read_into(row, 0, count, z_up);
            for (int64_t c = 0; c < count; ++c) {
                const int64_t at_gate = first + c, at_up = columns + first + c;
                const float gate = scales.apply(z_gate[c], at_gate), up = scales.apply(z_up[c], at_up);
                const GluGradients made = Glu::gradients(given[c], gate, up);
                rebuilt[c] = made.act;
                gate_sums[c] += made.gate * z_gate[c];
                up_sums[c] += made.up * z_up[c];
                z_gate[c] = scales.factor(at_gate) * made.gate;
                z_up[c] = scales.factor(at_up) * made.up;
            }
            gate_rows.write(row, z_gate);
            up_rows.write(row, z_up);
            act_rows.write(row, rebuilt);
        }
        add_gradients(gate_sums, first, count, scale, gradients);
        add_gradients(up_sums, columns + first, count, scale, gradients);
    });
}

}  // namespace

void dora_swiglu_forward(const at::Tensor& z, const OutputScale& scale, const at::Tensor& act,
                         spec::GateActivation activation) {
    with_glu(activation, [&](auto glu) { swiglu_forward<decltype(glu)>(z, scale, act); });
}

void dora_swiglu_backward(const at::Tensor& dact, const at::Tensor& z, const OutputScale& scale, const at::Tensor& act,
                          const std::vector<MagnitudeGradient>& gradients, spec::GateActivation activation) {
    with_glu(activation, [&](auto glu) { swiglu_backward<decltype(glu)>(dact, z, scale, act, gradients); });
}

}  // namespace unsloth::ops::cpu
