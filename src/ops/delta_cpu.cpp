// Legend: k and v the sizes of a key's and a value's head, G key heads, H value heads, S a state [k, v].
#include "ops/delta_cpu.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cpu_rows.h"
#include "ops/gated_delta_parts.h"

namespace unsloth::ops::cpu {
namespace {

constexpr float length_eps = 1e-6F;

float softplus(float x) {
    return x > 20.0F ? x : std::log1p(std::exp(x));
}

/// A query or a key divided by its length, and multiplied by a scale.
struct Direction {
    std::vector<float> values;
    float inverse = 0, scale = 1;
    void set(const float* x, float factor) {
        const auto size = static_cast<int64_t>(values.size());
        inverse = 1.0F / std::sqrt(lane_sum(size, [&](int64_t i) { return x[i] * x[i]; }) + length_eps);
        scale = factor;
        for (int64_t i = 0; i < size; ++i) values[static_cast<size_t>(i)] = x[i] * inverse * factor;
    }
    /// dx = of the gradient with respect to values.
    void backward(const std::vector<float>& d, float* dx) const {
        const auto size = static_cast<int64_t>(values.size());
        const float along =
            lane_sum(size, [&](int64_t i) { return d[static_cast<size_t>(i)] * values[static_cast<size_t>(i)]; });
        for (int64_t i = 0; i < size; ++i) {
            const auto at = static_cast<size_t>(i);
            dx[i] = inverse * (scale * d[at] - along * values[at] / scale);
        }
    }
};

/// What a value head does to its state at a token.
struct Gates {
    float beta = 0, decay = 1, log_decay = 0, slope = 0;  ///< slope: of log_decay by a
};

class Scan {
  public:
    Scan(const DeltaShape& shape, const DeltaInputs& in)
        : shape_(shape),
          mixed_(in.mixed_TC),
          b_(in.b_TH),
          a_(in.a_TH),
          a_log_(in.a_log_H.const_data_ptr<float>()),
          dt_bias_(in.dt_bias_H.const_data_ptr<float>()),
          query{std::vector<float>(size(shape.key_dim))},
          key{std::vector<float>(size(shape.key_dim))},
          value(size(shape.value_dim)),
          delta(size(shape.value_dim)),
          error(size(shape.value_dim)),
          raw_(size(shape.key_dim)) {}

    static size_t size(int64_t n) { return static_cast<size_t>(n); }

    void read_keys(int64_t token, int64_t key_head) {
        const int64_t k = shape_.key_dim;
        mixed_.read_into(token, key_head * k, k, raw_.data());
        query.set(raw_.data(), 1.0F / std::sqrt(static_cast<float>(k)));
        mixed_.read_into(token, shape_.keys() + key_head * k, k, raw_.data());
        key.set(raw_.data(), 1.0F);
    }
    void read_value(int64_t token, int64_t head) {
        const int64_t v = shape_.value_dim;
        mixed_.read_into(token, 2 * shape_.keys() + head * v, v, value.data());
        float a = 0, b = 0;
        b_.read_into(token, head, 1, &b);
        a_.read_into(token, head, 1, &a);
        const float rate = -std::exp(a_log_[head]), x = a + dt_bias_[head];
        gates = {sigmoid(b), 0, rate * softplus(x), rate * sigmoid(x)};
        gates.decay = std::exp(gates.log_decay);
    }
    /// S of the token before becomes this one's.
    void advance(float* S) {
        const int64_t k = shape_.key_dim, v = shape_.value_dim;
        std::fill(error.begin(), error.end(), 0.0F);
        for (int64_t i = 0; i < k; ++i) {
            float* const row = S + i * v;
            const float key_i = key.values[size(i)];
            for (int64_t j = 0; j < v; ++j) {
                row[j] *= gates.decay;
                error[size(j)] += key_i * row[j];
            }
        }
        for (int64_t j = 0; j < v; ++j) {
            error[size(j)] = value[size(j)] - error[size(j)];
            delta[size(j)] = gates.beta * error[size(j)];
        }
        for (int64_t i = 0; i < k; ++i)
            for (int64_t j = 0; j < v; ++j) S[i * v + j] += key.values[size(i)] * delta[size(j)];
    }

  private:
    const DeltaShape& shape_;
    Rows mixed_, b_, a_;
    const float *a_log_, *dt_bias_;

  public:
    Direction query, key;
    std::vector<float> value, delta, error;
    Gates gates;

  private:
    std::vector<float> raw_;
};

/// The gradients of one value head, going back a token at a time.
class ScanBackward {
  public:
    explicit ScanBackward(const DeltaShape& shape)
        : dS(Scan::size(shape.key_dim * shape.value_dim)),
          dq(Scan::size(shape.key_dim)),
          dk(Scan::size(shape.key_dim)),
          dv(Scan::size(shape.value_dim)),
          k_(shape.key_dim),
          v_(shape.value_dim),
          ddelta_(Scan::size(shape.value_dim)) {}

    /// `before` and `after`: the token's states. dq and dk are added to, the others written.
    void step(const Scan& s, const float* before, const float* after, const float* dout) {
        std::fill(ddelta_.begin(), ddelta_.end(), 0.0F);
        for (int64_t i = 0; i < k_; ++i) {
            float* const row = dS.data() + i * v_;
            const float *const S = after + i * v_, q = s.query.values[Scan::size(i)];
            const float key = s.key.values[Scan::size(i)];
            dq[Scan::size(i)] += lane_sum(v_, [&](int64_t j) { return S[j] * dout[j]; });
            for (int64_t j = 0; j < v_; ++j) row[j] += q * dout[j];
            dk[Scan::size(i)] += lane_sum(v_, [&](int64_t j) { return row[j] * s.delta[Scan::size(j)]; });
            for (int64_t j = 0; j < v_; ++j) ddelta_[Scan::size(j)] += row[j] * key;
        }
        dbeta = lane_sum(v_, [&](int64_t j) { return ddelta_[Scan::size(j)] * s.error[Scan::size(j)]; });
        for (int64_t j = 0; j < v_; ++j) dv[Scan::size(j)] = s.gates.beta * ddelta_[Scan::size(j)];
        dlog_decay = 0;
        for (int64_t i = 0; i < k_; ++i) {
            float* const row = dS.data() + i * v_;
            const float* const S = before + i * v_;
            const float key = s.key.values[Scan::size(i)], decay = s.gates.decay;
            dk[Scan::size(i)] -= decay * lane_sum(v_, [&](int64_t j) { return S[j] * dv[Scan::size(j)]; });
            for (int64_t j = 0; j < v_; ++j) row[j] = decay * (row[j] - key * dv[Scan::size(j)]);
            dlog_decay += lane_sum(v_, [&](int64_t j) { return S[j] * row[j]; });
        }
    }

    std::vector<float> dS, dq, dk, dv;
    float dbeta = 0, dlog_decay = 0;

  private:
    int64_t k_, v_;
    std::vector<float> ddelta_;
};

/// Of each segment the number of its first chunk, and of all chunks last.
std::vector<int64_t> first_chunks(const Segments& segments) {
    std::vector<int64_t> first{0};
    for (size_t s = 0; s + 1 < segments.q_offsets.size(); ++s) {
        const int64_t tokens = segments.q_offsets[s + 1] - segments.q_offsets[s];
        first.push_back(first.back() + (tokens + delta_chunk - 1) / delta_chunk);
    }
    return first;
}

/// work(segment, key head) for all of a turn's.
template <class Work>
void each_key_head(const DeltaShape& shape, const Segments& segments, const DeltaTurns& turns, int turn,
                   const Work& work) {
    turns.begin(turn);
    const int64_t heads = shape.key_heads, count = (segments.count() - turn + turns.count - 1) / turns.count;
    at::parallel_for(0, count * heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) work(static_cast<size_t>(turn + i / heads * turns.count), i % heads);
    });
}

/// The states of a segment's value heads from this one on; nullptr: of none.
float* kept_states(const KeptStates& kept, const DeltaShape& shape, size_t segment, int64_t head) {
    if (!kept.keeps(segment)) return nullptr;
    return kept.data.mutable_data_ptr<float>() +
           (kept.rows[segment] * shape.value_heads + head) * shape.key_dim * shape.value_dim;
}

/// The states of a segment's value head where chunks begin, from its first one, S.
template <class Border>
void write_borders(Scan& s, int64_t begin, int64_t chunks, int64_t key_head, int64_t head, std::vector<float>& S,
                   const Border& border) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        std::copy(S.begin(), S.end(), border(chunk));
        if (chunk + 1 == chunks) return;
        for (int64_t t = begin + chunk * delta_chunk; t < begin + (chunk + 1) * delta_chunk; ++t) {
            s.read_keys(t, key_head);
            s.read_value(t, head);
            s.advance(S.data());
        }
    }
}

/// to = the gradients of queries or keys as they were read, from those of directions, which `direction` of s are.
void write_directions(Scan& s, const Direction& direction, int64_t begin, int64_t key_head,
                      const std::vector<float>& gradients_Tk, const Rows& to) {
    const size_t k = direction.values.size();
    std::vector<float> d(k), dx(k);
    for (size_t t = 0; t < gradients_Tk.size() / k; ++t) {
        const auto token = begin + static_cast<int64_t>(t);
        s.read_keys(token, key_head);
        std::copy_n(gradients_Tk.data() + t * k, k, d.data());
        direction.backward(d, dx.data());
        to.write(token, dx.data());
    }
}

/// Sums over tokens of each value head, in order.
void add_over_tokens(const std::vector<float>& terms_TH, const at::Tensor& to_H) {
    if (!to_H.defined()) return;
    const auto heads = Scan::size(to_H.numel());
    for (size_t i = 0; i < terms_TH.size(); ++i) to_H.mutable_data_ptr<float>()[i % heads] += terms_TH[i];
}

}  // namespace

void delta_forward(const DeltaShape& shape, const Segments& segments, const DeltaInputs& in, const at::Tensor& o_THv,
                   const KeptStates& kept, const DeltaTurns& turns) {
    const int64_t k = shape.key_dim, v = shape.value_dim, served = shape.value_heads / shape.key_heads;
    const Rows out_rows(o_THv);
    const auto advance = [&](size_t segment, int64_t key_head) {
        Scan s(shape, in);
        std::vector<float> states(Scan::size(served * k * v)), out(Scan::size(v));
        float* const own = kept_states(kept, shape, segment, key_head * served);
        if (own != nullptr) std::copy_n(own, states.size(), states.begin());
        for (int64_t t = segments.q_offsets[segment]; t < segments.q_offsets[segment + 1]; ++t) {
            s.read_keys(t, key_head);
            for (int64_t i = 0; i < served; ++i) {
                float* const S = states.data() + i * k * v;
                s.read_value(t, key_head * served + i);
                s.advance(S);
                std::fill(out.begin(), out.end(), 0.0F);
                for (int64_t a = 0; a < k; ++a)
                    for (int64_t b = 0; b < v; ++b) out[Scan::size(b)] += s.query.values[Scan::size(a)] * S[a * v + b];
                out_rows.write(t, key_head * served + i, out.data());
            }
        }
        if (own != nullptr && !kept.read_only) std::copy(states.begin(), states.end(), own);
    };
    for (int turn = 0; turn < turns.count; ++turn) each_key_head(shape, segments, turns, turn, advance);
}

void delta_backward(const DeltaShape& shape, const Segments& segments, const DeltaInputs& in, const at::Tensor& do_THv,
                    const at::Tensor& states, const DeltaGradients& out, const DeltaResumed& resumed) {
    const int64_t k = shape.key_dim, v = shape.value_dim, served = shape.value_heads / shape.key_heads;
    const int64_t state = k * v;
    const std::vector<int64_t> first = first_chunks(segments);
    const Rows dout_rows(do_THv);
    const auto column = [](const at::Tensor& x, int64_t begin, int64_t n) { return Rows(x.narrow(1, begin, n)); };
    const int64_t seen = segments.q_offsets.back();
    std::vector<float> da(Scan::size(seen * shape.value_heads)), dlog(da.size());
    float* const borders = states.mutable_data_ptr<float>();
    const auto go_back = [&](size_t segment, int64_t key_head) {
        const int64_t begin = segments.q_offsets[segment], end = segments.q_offsets[segment + 1];
        Scan s(shape, in);
        std::vector<float> inner(Scan::size((delta_chunk + 1) * state)), dout(Scan::size(v));
        // Gradients of queries and keys are sums over the value heads that they serve.
        std::vector<float> dq(Scan::size((end - begin) * k)), dk(dq.size());
        for (int64_t i = 0; i < served; ++i) {
            const int64_t head = key_head * served + i;
            const auto border = [&](int64_t chunk) {
                return borders + ((first[segment] + chunk) * shape.value_heads + head) * state;
            };
            const int64_t chunks = first[segment + 1] - first[segment];
            std::vector<float> S(Scan::size(state));
            if (const float* const from = kept_states(resumed.kept, shape, segment, head))
                std::copy_n(from, state, S.begin());
            write_borders(s, begin, chunks, key_head, head, S, border);
            ScanBackward back(shape);
            float* const dkept = kept_states(resumed.dkept, shape, segment, head);
            if (dkept != nullptr) std::copy_n(dkept, state, back.dS.begin());
            const Rows dvalue = column(out.mixed_TC, 2 * shape.keys() + head * v, v), db = column(out.b_TH, head, 1);
            for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
                const int64_t from = begin + chunk * delta_chunk, to = std::min(from + delta_chunk, end);
                std::copy_n(border(chunk), state, inner.data());
                const auto at = [&](int64_t t) { return inner.data() + (t - from) * state; };
                for (int64_t t = from; t < to; ++t) {
                    s.read_keys(t, key_head);
                    s.read_value(t, head);
                    std::copy_n(at(t), state, at(t + 1));
                    s.advance(at(t + 1));
                }
                for (int64_t t = to - 1; t >= from; --t) {
                    s.read_keys(t, key_head);
                    s.read_value(t, head);
                    std::copy_n(at(t), state, S.data());
                    s.advance(S.data());  // its error and delta once more
                    std::copy_n(dq.data() + (t - begin) * k, k, back.dq.data());
                    std::copy_n(dk.data() + (t - begin) * k, k, back.dk.data());
                    back.step(s, at(t), at(t + 1), dout_rows.read(t, head, dout.data()));
                    std::copy_n(back.dq.data(), k, dq.data() + (t - begin) * k);
                    std::copy_n(back.dk.data(), k, dk.data() + (t - begin) * k);
                    dvalue.write(t, back.dv.data());
                    const float dbeta = back.dbeta * s.gates.beta * (1.0F - s.gates.beta);
                    db.write(t, &dbeta);
                    const size_t at_head = Scan::size(t * shape.value_heads + head);
                    da[at_head] = back.dlog_decay * s.gates.slope;
                    dlog[at_head] = back.dlog_decay * s.gates.log_decay;
                }
            }
            if (dkept != nullptr) std::copy(back.dS.begin(), back.dS.end(), dkept);
        }
        write_directions(s, s.query, begin, key_head, dq, column(out.mixed_TC, key_head * k, k));
        write_directions(s, s.key, begin, key_head, dk, column(out.mixed_TC, shape.keys() + key_head * k, k));
    };
    for (int turn = resumed.turns.count - 1; turn >= 0; --turn)
        each_key_head(shape, segments, resumed.turns, turn, go_back);
    const Rows da_rows(out.a_TH);
    for (int64_t t = 0; t < seen; ++t) da_rows.write(t, da.data() + t * shape.value_heads);
    add_over_tokens(da, out.dt_bias_H);
    add_over_tokens(dlog, out.a_log_H);
}

}  // namespace unsloth::ops::cpu
