#include "train/gathered_values.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace unsloth::train {
namespace {

using weights::ParameterSlice;

constexpr int64_t piece_elements = int64_t{4} << 20;
constexpr int64_t no_more = -1;
constexpr const char* what = "the values that are saved";

/// Tells all ranks which parameter comes next.
int64_t agree(comm::Communicator& ranks, at::Device device, int64_t next) {
    const at::Tensor number = at::full({1}, next, at::TensorOptions(at::kLong).device(device));
    ranks.broadcast(number, 0, what);
    return number.item<int64_t>();
}

/// visit(rank, piece): what each rank has of the parameter, in pieces, in an order that all ranks have.
template <class Visit>
void for_pieces(const weights::ParameterTable& table, const weights::Parameter& p, int ranks, const Visit& visit) {
    for (int rank = 0; rank < ranks; ++rank) {
        const ParameterSlice part = table.slice({rank, ranks}).with({p.offset, p.offset + p.elements()});
        for (int64_t at = part.begin; at < part.end; at += piece_elements)
            visit(rank, ParameterSlice{at, std::min(part.end, at + piece_elements)});
    }
}

/// What `rank` has there, on the device.
at::Tensor exchange(comm::Communicator& ranks, const weights::Parameters& parameters, at::Device device, int rank,
                    ParameterSlice piece) {
    at::Tensor values;
    if (rank == ranks.rank())
        values = parameters.values_P.narrow(0, piece.begin - parameters.held().begin, piece.elements()).to(device);
    else
        values = at::empty({piece.elements()}, at::TensorOptions(at::kFloat).device(device));
    ranks.broadcast(values, rank, what);
    return values;
}

void serve(comm::Communicator& ranks, const weights::Parameters& parameters, at::Device device) {
    const weights::ParameterTable& table = parameters.table();
    for (int64_t next = agree(ranks, device, 0); next != no_more; next = agree(ranks, device, 0))
        for_pieces(table, table.parameters().at(static_cast<std::size_t>(next)), ranks.size(),
                   [&](int rank, ParameterSlice piece) {
                       if (rank > 0) exchange(ranks, parameters, device, rank, piece);
                   });
}

}  // namespace

void with_gathered_values(comm::Communicator& ranks, const weights::Parameters& parameters, at::Device device,
                          const std::function<void(const ReadValues&)>& write) {
    if (ranks.rank() != 0) return serve(ranks, parameters, device);
    const weights::ParameterTable& table = parameters.table();
    const auto read = [&](const weights::Parameter& p) {
        const auto& all = table.parameters();
        const auto found = std::find_if(all.begin(), all.end(), [&](const auto& o) { return o.offset == p.offset; });
        agree(ranks, device, found - all.begin());
        const at::Tensor values = at::empty({p.elements()}, at::kFloat);
        for_pieces(table, p, ranks.size(), [&](int rank, ParameterSlice piece) {
            const at::Tensor to = values.narrow(0, piece.begin - p.offset, piece.elements());
            if (rank == 0)
                to.copy_(parameters.values_P.narrow(0, piece.begin - parameters.held().begin, piece.elements()));
            else
                to.copy_(exchange(ranks, parameters, device, rank, piece));
        });
        return values;
    };
    std::exception_ptr failure;
    try {
        write(read);
    } catch (...) {
        failure = std::current_exception();
    }
    agree(ranks, device, no_more);
    if (failure) std::rethrow_exception(failure);
}

}  // namespace unsloth::train
