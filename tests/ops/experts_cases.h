// Cases of mixtures of experts, with fp64 expressions and autograd as the oracle.
#pragma once

#include "ops/op_cases.h"
#include "unsloth/ops/experts.h"

namespace unsloth::testing {

using spec::RouterWeights;

struct RouterShape {
    int64_t tokens, experts, choices;
};
inline const std::vector<RouterShape> router_shapes = {{1, 1, 1},    {1, 3, 3},   {5, 3, 2},    {7, 32, 4},
                                                       {9, 60, 4},   {33, 64, 6}, {50, 128, 8}, {17, 256, 16},
                                                       {3, 250, 10}, {0, 8, 2}};

inline at::Tensor ints(const at::Tensor& of) {
    return of.to(at::kInt).contiguous();
}

/// [T, k] in fp64 from logits_TE in fp64 and the chosen ids.
inline at::Tensor router_weights(const at::Tensor& logits, const at::Tensor& ids, RouterWeights kind) {
    const at::Tensor chosen = ids.to(at::kLong);
    return kind == RouterWeights::of_all ? at::softmax(logits, 1).gather(1, chosen)
                                         : at::softmax(logits.gather(1, chosen), 1);
}

enum class Probabilities { none, own, in_place };

inline OpCase route_case(const RouterShape& shape, RouterWeights kind, Probabilities where, Layout layout) {
    const auto [tokens, experts, choices] = shape;
    OpCase c;
    c.name = "route " + case_name(tokens, experts, choices, static_cast<int>(kind), static_cast<int>(where));
    const bool in_place = where == Probabilities::in_place;
    c.args = {
        {"logits", slice_of(at::randn({tokens, experts}) * 3, at::kFloat, layout), in_place ? Role::both : Role::input},
        {"ids", at::full({tokens, choices}, -7, at::kInt), Role::output},
        {"weights", at::full({tokens, choices}, NAN), Role::output}};
    if (where == Probabilities::own)
        c.args.push_back({"probabilities", poisoned_slice({tokens, experts}, at::kFloat, layout), Role::output});
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::route(ctx, {.weights = kind,
                         .logits_TE = a[0],
                         .ids_Tk = a[1],
                         .weights_Tk = a[2],
                         .probabilities_TE = where == Probabilities::none ? at::Tensor()
                                             : in_place                   ? a[0]
                                                                          : a[3]});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor ids = std::get<1>(a[0].topk(choices, 1));
        Tensors outputs{ids, router_weights(a[0], ids, kind)};
        if (where == Probabilities::own) outputs.push_back(at::softmax(a[0], 1));
        if (in_place) outputs.insert(outputs.begin(), at::softmax(a[0], 1));
        return outputs;
    };
    return c;
}

enum class Balanced { no, all, counted };

inline OpCase route_backward_case(const RouterShape& shape, RouterWeights kind, Balanced balanced, bool in_place) {
    const auto [tokens, experts, choices] = shape;
    OpCase c;
    c.name = "route_backward " +
             case_name(tokens, experts, choices, static_cast<int>(kind), static_cast<int>(balanced), in_place);
    const at::Tensor logits = at::randn({tokens, experts}, at::kDouble) * 2;
    const at::Tensor ids = std::get<1>(logits.topk(choices, 1));
    c.args = {{"ids", ints(ids)},
              {"weights", router_weights(logits, ids, kind).to(at::kFloat)},
              {"dweights", at::randn({tokens, choices})},
              {"probabilities", slice_of(at::softmax(logits, 1), at::kFloat, Layout::unaligned),
               in_place ? Role::both : Role::input},
              {"slopes", at::randn({experts})},
              {"counted", ints(at::rand({tokens}) < 0.7)},
              {"dweights of any expert", slice_of(at::randn({tokens, experts}), at::kFloat, Layout::unaligned)}};
    if (!in_place)
        c.args.push_back({"dlogits", poisoned_slice({tokens, experts}, at::kFloat, Layout::wide), Role::output});
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::route_backward(ctx, {.weights = kind,
                                  .ids_Tk = a[0],
                                  .weights_Tk = a[1],
                                  .dweights_Tk = a[2],
                                  .dweights_TE = balanced == Balanced::counted ? a[6] : at::Tensor(),
                                  .probabilities_TE = a[3],
                                  .slopes_E = balanced == Balanced::no ? at::Tensor() : a[4],
                                  .counted_T = balanced == Balanced::counted ? a[5] : at::Tensor(),
                                  .dlogits_TE = in_place ? a[3] : a[7]});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor leaf = logits.clone().requires_grad_();
        at::Tensor loss = (router_weights(leaf, ids, kind) * a[2]).sum();
        const at::Tensor by_token = (at::softmax(leaf, 1) * a[4]).sum(1);
        if (balanced == Balanced::all) loss = loss + by_token.sum();
        if (balanced == Balanced::counted)
            loss = loss + (by_token * a[5]).sum() + (router_weights(leaf, ids, kind) * a[6].gather(1, ids)).sum();
        loss.backward();
        return Tensors{leaf.grad()};
    };
    return c;
}

inline std::vector<OpCase> route_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const RouterShape& shape : router_shapes)
        for (const RouterWeights kind : {RouterWeights::of_chosen, RouterWeights::of_all}) {
            cases.push_back(route_case(shape, kind, Probabilities::none, Layout::packed));
            cases.push_back(route_case(shape, kind, Probabilities::own, Layout::unaligned));
            cases.push_back(route_case(shape, kind, Probabilities::in_place, Layout::wide));
            cases.push_back(route_backward_case(shape, kind, Balanced::no, false));
            cases.push_back(route_backward_case(shape, kind, Balanced::all, true));
            cases.push_back(route_backward_case(shape, kind, Balanced::counted, false));
        }
    return cases;
}

/// Rows of each expert, as tests spread them.
enum class Spread { even, one_expert, half_empty };

/// ids [T, k]: distinct for a token where they are spread evenly.
inline at::Tensor spread_ids(const RouterShape& shape, Spread spread) {
    const auto [tokens, experts, choices] = shape;
    if (spread == Spread::one_expert) return at::full({tokens, choices}, experts - 1, at::kInt);
    at::Tensor scores = at::rand({tokens, experts});
    if (spread == Spread::half_empty) return ints(at::randint((experts + 1) / 2, {tokens, choices}) * 2);
    return ints(std::get<1>(scores.topk(choices, 1)));
}

struct ExpertRows {
    at::Tensor ends, tokens, places;  ///< int64
};
inline ExpertRows expert_rows(const at::Tensor& ids, int64_t experts) {
    const at::Tensor flat = ids.to(at::kLong).flatten();
    const at::Tensor order = std::get<1>(flat.sort(/*stable=*/true, 0, false));
    const at::Tensor places = at::empty_like(order);
    places.index_copy_(0, order, at::arange(order.numel()));
    return {at::bincount(flat, {}, experts).cumsum(0), order.floor_divide(ids.size(1)), places.view(ids.sizes())};
}

inline OpCase order_case(const RouterShape& shape, Spread spread) {
    const auto [tokens, experts, choices] = shape;
    OpCase c;
    c.name = "order_by_expert " + case_name(tokens, experts, choices, static_cast<int>(spread));
    const at::TensorOptions type(at::kInt);
    c.args = {{"ids", spread_ids(shape, spread)},
              {"ends", at::full({experts}, -7, type), Role::output},
              {"tokens", at::full({tokens * choices}, -7, type), Role::output},
              {"places", at::full({tokens, choices}, -7, type), Role::output}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::order_by_expert(ctx, a[0], {a[1], a[2], a[3]}); };
    c.expected = [=](const Tensors& a) {
        const ExpertRows rows = expert_rows(a[0], experts);
        return Tensors{rows.ends, rows.tokens, rows.places};
    };
    c.workspace = [=](at::Device device) { return ops::order_workspace(device, tokens * choices, experts); };
    return c;
}

inline std::vector<OpCase> order_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const Spread spread : {Spread::even, Spread::one_expert, Spread::half_empty}) {
        for (const RouterShape& shape : router_shapes) cases.push_back(order_case(shape, spread));
        cases.push_back(order_case({128, 128, 8}, spread));   // a chunk of the kernel
        cases.push_back(order_case({1025, 3, 1}, spread));    // and a row more
        cases.push_back(order_case({3000, 256, 8}, spread));  // 24 chunks
        cases.push_back(order_case({1700, 32, 4}, spread));
    }
    return cases;
}

/// Sums of products with weights, which fp32 rounds at every step.
inline Tolerance tolerance_of_sums(at::ScalarType type) {
    Tolerance tolerance = tolerance_of(type);
    tolerance.absolute = std::max(tolerance.absolute, 1e-5);
    tolerance.floor = std::max(tolerance.floor, 2e-6);
    return tolerance;
}

enum class Residual { none, own, in_place };

inline OpCase combine_case(const RouterShape& shape, int64_t columns, Residual residual, at::ScalarType dtype,
                           Layout layout) {
    const auto [tokens, experts, choices] = shape;
    OpCase c;
    c.name = "combine " + case_name(tokens, experts, choices, columns, static_cast<int>(residual), c10::toString(dtype),
                                    name_of(layout));
    const at::Tensor places = ints(expert_rows(spread_ids(shape, Spread::even), experts).places);
    const bool in_place = residual == Residual::in_place;
    c.args = {{"z", slice_of(at::randn({tokens * choices, columns}), dtype, layout)},
              {"places", places},
              {"weights", at::rand({tokens, choices})},
              {"residual", slice_of(at::randn({tokens, columns}), dtype, layout), in_place ? Role::both : Role::input}};
    if (!in_place) c.args.push_back({"y", poisoned_slice({tokens, columns}, dtype, layout), Role::output});
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::combine(ctx, {.z_nD = a[0],
                           .places_Tk = a[1],
                           .weights_Tk = a[2],
                           .residual_TD = residual == Residual::none ? at::Tensor() : a[3],
                           .y_TD = in_place ? a[3] : a[4]});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor rows = a[0].index_select(0, a[1].flatten()).view({tokens, choices, columns});
        const at::Tensor sum = (rows * a[2].unsqueeze(2)).sum(1);
        return Tensors{residual == Residual::none ? sum : sum + a[3]};
    };
    c.tolerance = tolerance_of_sums(dtype);
    return c;
}

/// combine_backward with dz in a buffer of its own or in z's, and weigh_rows.
enum class Weighted { own, in_place, by_place };

inline OpCase weighted_case(const RouterShape& shape, int64_t columns, Weighted way, at::ScalarType dtype,
                            Layout layout) {
    const auto [tokens, experts, choices] = shape;
    OpCase c;
    c.name = "combine_backward " +
             case_name(tokens, experts, choices, columns, static_cast<int>(way), c10::toString(dtype), name_of(layout));
    const int64_t rows = tokens * choices;
    const bool by_place = way == Weighted::by_place;
    c.args = {{"places", ints(expert_rows(spread_ids(shape, Spread::even), experts).places)},
              {"weights", at::rand({tokens, choices})},
              {"dweights", at::full({tokens, choices}, NAN), Role::output},
              {"dy", slice_of(at::randn({by_place ? rows : tokens, columns}), dtype, layout),
               by_place ? Role::both : Role::input},
              {"z", slice_of(at::randn({rows, columns}), dtype, layout),
               way == Weighted::in_place ? Role::both : Role::input}};
    if (way == Weighted::own) c.args.push_back({"dz", poisoned_slice({rows, columns}, dtype, layout), Role::output});
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        if (by_place)
            ops::weigh_rows(
                ctx, {.act_nF = a[4], .places_Tk = a[0], .weights_Tk = a[1], .dact_nF = a[3], .dweights_Tk = a[2]});
        else
            ops::combine_backward(ctx, {.dy_TD = a[3],
                                        .z_nD = a[4],
                                        .places_Tk = a[0],
                                        .weights_Tk = a[1],
                                        .dz_nD = way == Weighted::own ? a[5] : a[4],
                                        .dweights_Tk = a[2]});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor places = a[0].flatten();
        const at::Tensor dy = by_place ? a[3].index_select(0, places) : a[3].repeat_interleave(choices, 0);
        const at::Tensor z = a[4].index_select(0, places);
        const at::Tensor dz = at::empty_like(a[4]).index_copy_(0, places.to(at::kLong), dy * a[1].reshape({-1, 1}));
        return Tensors{(z * dy).sum(1).view({tokens, choices}), dz};
    };
    c.tolerance = tolerance_of_sums(dtype);
    return c;
}

inline std::vector<OpCase> combine_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    const std::vector<std::pair<RouterShape, int64_t>> shapes = {
        {{1, 1, 1}, 1}, {{1, 3, 3}, 24}, {{5, 3, 2}, 7}, {{9, 32, 4}, 1100}, {{70, 128, 8}, 64}};
    for (const at::ScalarType dtype : compute_dtypes)
        for (const Layout layout : all_layouts)
            for (const auto& [shape, columns] : shapes) {
                for (const Residual residual : {Residual::none, Residual::own, Residual::in_place})
                    cases.push_back(combine_case(shape, columns, residual, dtype, layout));
                for (const Weighted way : {Weighted::own, Weighted::in_place, Weighted::by_place})
                    cases.push_back(weighted_case(shape, columns, way, dtype, layout));
            }
    return cases;
}

struct GroupedShape {
    std::vector<int64_t> rows;  ///< of each expert
    int64_t k, n;
};
inline int64_t rows_of(const GroupedShape& shape) {
    int64_t sum = 0;
    for (const int64_t rows : shape.rows) sum += rows;
    return sum;
}
inline at::Tensor ends_of(const GroupedShape& shape) {
    return ints(at::tensor(shape.rows, at::kLong).cumsum(0));
}
inline std::string name_of(const GroupedShape& shape) {
    std::string name = case_name(shape.rows.size(), "experts", rows_of(shape), "rows", shape.k, shape.n);
    return name + " first " + std::to_string(shape.rows[0]);
}

/// work(expert, its rows of x)
template <class Work>
void for_each_group(const at::Tensor& ends, const at::Tensor& x, const Work& work) {
    int64_t begin = 0;
    for (int64_t e = 0; e < ends.numel(); ++e) {
        const auto end = ends[e].item<int64_t>();
        work(e, x.slice(0, begin, end), begin, end);
        begin = end;
    }
}

struct GroupedWay {
    bool transpose = true, accumulate = false, bias = false;
};

inline OpCase grouped_case(const GroupedShape& shape, const GroupedWay& way, at::ScalarType dtype, Layout layout,
                           ops::GroupedChoice choice) {
    OpCase c;
    c.name = "grouped_product " + case_name(name_of(shape), way.transpose ? "xWt" : "xW", way.accumulate ? "+=" : "=",
                                            way.bias ? "bias" : "", c10::toString(dtype), name_of(layout),
                                            static_cast<int>(choice));
    const int64_t rows = rows_of(shape), k = shape.k, n = shape.n, experts = static_cast<int64_t>(shape.rows.size());
    const at::Tensor w = way.transpose ? at::randn({experts, n, k}) : at::randn({experts, k, n});
    c.args = {
        {"x", slice_of(at::randn({rows, k}), dtype, layout)},
        {"w", slice_of(w, dtype, layout)},
        {"ends", ends_of(shape)},
        {"bias", (at::randn({experts, n}) * 3).to(dtype)},
        {"out",
         way.accumulate ? slice_of(at::randn({rows, n}), dtype, layout) : poisoned_slice({rows, n}, dtype, layout),
         way.accumulate ? Role::both : Role::output}};
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::grouped_product(ctx, {.x_nK = a[0],
                                   .w_ENK = a[1],
                                   .ends_E = a[2],
                                   .out_nN = a[4],
                                   .bias_EN = way.bias ? a[3] : at::Tensor(),
                                   .transpose_w = way.transpose,
                                   .accumulate = way.accumulate,
                                   .choice = choice});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor out = way.accumulate ? a[4].clone() : at::zeros({rows, n}, at::kDouble);
        for_each_group(a[2], a[0], [&](int64_t e, const at::Tensor& x, int64_t begin, int64_t end) {
            out.slice(0, begin, end).add_(x.matmul(way.transpose ? a[1][e].t() : a[1][e]));
            if (way.bias) out.slice(0, begin, end).add_(a[3][e]);
        });
        return Tensors{out};
    };
    c.tolerance = tolerance_of_sums(dtype);
    if (way.bias) c.tolerance->relative *= 2, c.tolerance->absolute += c.tolerance->relative;  // the library's bias
    return c;
}

inline OpCase grouped_gradient_case(const GroupedShape& shape, at::ScalarType dtype, Layout layout) {
    OpCase c;
    c.name = "grouped_gradient " + case_name(name_of(shape), c10::toString(dtype), name_of(layout));
    const int64_t rows = rows_of(shape), experts = static_cast<int64_t>(shape.rows.size());
    c.args = {{"a", slice_of(at::randn({rows, shape.k}), dtype, layout)},
              {"b", slice_of(at::randn({rows, shape.n}), dtype, layout)},
              {"ends", ends_of(shape)},
              {"out", slice_of(at::randn({experts, shape.k, shape.n}), at::kFloat, layout), Role::both}};
    c.run = [](ops::Context& ctx, const Tensors& a) {
        ops::grouped_gradient(ctx, {.a_nM = a[0], .b_nN = a[1], .ends_E = a[2], .out_EMN = a[3], .scale = 0.5});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor out = a[3].clone();
        for_each_group(a[2], a[0], [&](int64_t e, const at::Tensor& x, int64_t begin, int64_t end) {
            out[e].add_(x.t().matmul(a[1].slice(0, begin, end)) * 0.5);
        });
        return Tensors{out};
    };
    c.tolerance = Tolerance{1e-5, 1e-5, 2e-6};
    return c;
}

inline std::vector<GroupedShape> grouped_shapes() {
    std::vector<GroupedShape> shapes = {
        {{1}, 1, 1},                            // one of everything
        {{0, 2, 0, 1}, 7, 5},                   // nothing at 16 bytes, experts without rows at both ends
        {{3, 0, 20, 16, 17}, 72, 136},          // few rows
        {{40, 100, 0, 63, 64, 65, 1}, 48, 24},  // thin, as an adapter's
        {{0, 0, 300}, 136, 200},                // all rows to one expert
        {{129, 127, 128, 1}, 80, 264},          // tiles of 128 rows and their edges
    };
    GroupedShape many{std::vector<int64_t>(128), 40, 72};  // most experts have none
    many.rows[5] = 3, many.rows[64] = 20, many.rows[127] = 1;
    shapes.push_back(many);
    return shapes;
}

inline std::vector<OpCase> grouped_cases_by(uint64_t seed, ops::GroupedChoice choice) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const GroupedShape& shape : grouped_shapes())
        for (const at::ScalarType dtype : compute_dtypes)
            for (const Layout layout : all_layouts) {
                cases.push_back(grouped_case(shape, {}, dtype, layout, choice));
                cases.push_back(grouped_case(shape, {.transpose = false}, dtype, layout, choice));
                cases.push_back(grouped_case(shape, {.accumulate = true, .bias = true}, dtype, layout, choice));
                cases.push_back(grouped_case(shape, {.bias = true}, dtype, layout, choice));
                if (choice == ops::GroupedChoice::automatic)
                    cases.push_back(grouped_gradient_case(shape, dtype, layout));
            }
    return cases;
}
inline std::vector<OpCase> grouped_cases(uint64_t seed) {
    return grouped_cases_by(seed, ops::GroupedChoice::automatic);
}

inline OpCase router_load_case(const RouterShape& shape, bool counted) {
    const auto [tokens, experts, choices] = shape;
    OpCase c;
    c.name = "router_load " + case_name(tokens, experts, choices, counted);
    c.args = {{"ids", spread_ids(shape, Spread::even)},
              {"probabilities", slice_of(at::rand({tokens, experts}), at::kFloat, Layout::unaligned)},
              {"counted", ints(at::rand({tokens}) < 0.6)},
              {"sums", at::rand({2, experts}, at::kDouble), Role::both}};
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::router_load(
            ctx,
            {.ids_Tk = a[0], .probabilities_TE = a[1], .counted_T = counted ? a[2] : at::Tensor(), .sums_2E = a[3]});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor mask = counted ? a[2].to(at::kDouble) : at::ones({tokens}, at::kDouble);
        const at::Tensor chosen = at::one_hot(a[0].to(at::kLong), experts).sum(1).to(at::kDouble);
        return Tensors{a[3] + at::stack({mask.matmul(chosen), mask.matmul(a[1])})};
    };
    c.tolerance = Tolerance{1e-13, 1e-13, 0};
    return c;
}

/// load_balancing_loss_func of transformers over tokens of two layers, whose gradient by a token's probabilities is
/// the slope.
inline OpCase balance_case(int64_t experts, int64_t choices) {
    OpCase c;
    c.name = "balance " + case_name(experts, choices);
    c.scalars = test_scalars();
    const int64_t tokens = 2 * 19;
    const at::Tensor probabilities = at::softmax(at::randn({tokens, experts}, at::kDouble), 1);
    const at::Tensor mask = at::one_hot(std::get<1>(probabilities.topk(choices, 1)), experts).to(at::kDouble);
    c.args = {{"sums", at::stack({mask.sum(1).sum(0), probabilities.sum(0)})},
              {"loss", at::full({1}, NAN), Role::output},
              {"slopes", at::full({experts}, NAN), Role::output}};
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::balance(ctx, {.sums_2E = a[0], .choices = choices, .coefficient = 0.125, .loss = a[1], .slopes_E = a[2]});
    };
    const double scale = static_cast<double>(c.scalars.loss_scale);
    c.expected = [=](const Tensors&) {
        const at::Tensor leaf = probabilities.clone().requires_grad_();
        const at::Tensor loss = (mask.mean(0) * leaf.mean(0).unsqueeze(0)).sum() * static_cast<double>(experts) * 0.125;
        loss.backward();
        return Tensors{loss.detach().view({1}), leaf.grad()[0] * scale};
    };
    return c;
}

inline std::vector<OpCase> balance_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const RouterShape& shape : router_shapes)
        for (const bool counted : {false, true}) cases.push_back(router_load_case(shape, counted));
    cases.push_back(router_load_case({1500, 128, 8}, true));
    for (const auto& [experts, choices] : {std::pair<int64_t, int64_t>{3, 3}, {32, 4}, {128, 8}, {256, 1}})
        cases.push_back(balance_case(experts, choices));
    return cases;
}

inline at::Tensor routed_ids(ops::Context& ctx, const at::Tensor& logits, int64_t choices, const at::Tensor& weights) {
    const at::Tensor ids = at::full({logits.size(0), choices}, -7, at::TensorOptions(at::kInt).device(ctx.device()));
    ops::route(ctx, {.logits_TE = logits.to(ctx.device()), .ids_Tk = ids, .weights_Tk = weights});
    return ids.cpu();
}

/// Of equal logits the lower expert comes first; -0 equals 0; NaN comes before all, and ids remain distinct and in
/// range.
inline void expect_router_orders(at::Device device) {
    ops::Context ctx(device);
    constexpr float inf = std::numeric_limits<float>::infinity();
    const at::Tensor logits = at::tensor({1.f,  3.f,  1.f,  3.f,  -2.f,  //
                                          -0.f, 0.f,  -0.f, 0.f,  -1.f,  //
                                          NAN,  NAN,  5.f,  NAN,  NAN,   //
                                          -inf, 2.f,  NAN,  inf,  -inf,  //
                                          -inf, -inf, -inf, -inf, -inf})
                                  .view({5, 5});
    const at::Tensor weights = at::empty({5, 3}, at::TensorOptions(at::kFloat).device(ctx.device()));
    const at::Tensor ids = routed_ids(ctx, logits, 3, weights);
    EXPECT_TRUE(at::equal(ids, at::tensor({1, 3, 0, 0, 1, 2, 0, 1, 3, 2, 3, 1, 0, 1, 2}, at::kInt).view({5, 3})))
        << ids;
    EXPECT_TRUE(weights.cpu()[2].isnan().all().item<bool>());
    const at::Tensor all = at::empty({5, 5}, weights.options());
    EXPECT_TRUE(
        at::equal(std::get<0>(routed_ids(ctx, logits, 5, all).sort(1)), at::arange(5, at::kInt).expand({5, 5})));
}

}  // namespace unsloth::testing
