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

/// All ranks' parts, and what passes between this one and the first.
class Gathering {
  public:
    Gathering(comm::Communicator& ranks, const weights::ParameterTable& all, const StatePart& part,
              const weights::Parameters& parameters, at::Device device)
        : ranks_(ranks),
          all_(all),
          parameters_(parameters),
          device_(device),
          passed_(at::empty({piece_elements}, at::TensorOptions(at::kFloat).device(device))) {
        for (int number = 0; number < part.count(); ++number) {
            const StatePart other = part.with_number(number);
            weights::ParameterTable table = other.table(all);
            const ParameterSlice slice = table.slice(other.share);
            parts_.push_back({other.writer(ranks.size()), other.stage.rank, std::move(table), slice});
        }
    }

    at::Tensor receive(const weights::Parameter& p) const {
        agree(ranks_, device_, index_of(p));
        const at::Tensor values = at::empty({p.elements()}, at::kFloat);
        for_pieces(p, [&](int rank, ParameterSlice piece, int64_t offset) {
            const at::Tensor to = values.narrow(0, piece.begin - offset, piece.elements());
            to.copy_(rank == 0 ? own(piece) : exchange(rank, piece));
        });
        return values;
    }

    void serve() const {
        for (int64_t next = agree(ranks_, device_, 0); next != no_more; next = agree(ranks_, device_, 0))
            for_pieces(all_.parameters().at(static_cast<std::size_t>(next)),
                       [&](int rank, ParameterSlice piece, int64_t) {
                           if (rank > 0) exchange(rank, piece);
                       });
    }

    void end() const { agree(ranks_, device_, no_more); }

  private:
    struct Part {
        int rank, stage;
        weights::ParameterTable table;
        ParameterSlice slice;
    };

    int64_t index_of(const weights::Parameter& p) const {
        const auto& all = all_.parameters();
        return std::find_if(all.begin(), all.end(), [&](const auto& o) { return o.offset == p.offset; }) - all.begin();
    }

    /// visit(rank, piece, offset): what ranks have of the parameter, which is at `offset` there, in pieces, in an
    /// order that all ranks have; tied embeddings from the first stage that has them.
    template <class Visit>
    void for_pieces(const weights::Parameter& p, const Visit& visit) const {
        int stage = -1;
        for (const Part& part : parts_) {
            const weights::Parameter* const own = part.table.find(p.role, p.id, p.kind);
            if (own == nullptr || (stage >= 0 && part.stage != stage)) continue;
            stage = part.stage;
            const ParameterSlice has = part.slice.with({own->offset, own->offset + own->elements()});
            for (int64_t at = has.begin; at < has.end; at += piece_elements)
                visit(part.rank, ParameterSlice{at, std::min(has.end, at + piece_elements)}, own->offset);
        }
    }

    /// What `rank` has there, on the device. All ranks get it: NCCL sends from one to another through communicators of
    /// two, for which there is no room.
    at::Tensor exchange(int rank, ParameterSlice piece) const {
        const at::Tensor values = passed_.narrow(0, 0, piece.elements());
        if (rank == ranks_.rank()) values.copy_(own(piece));
        ranks_.broadcast(values, rank, what);
        return values;
    }

    at::Tensor own(ParameterSlice piece) const {
        return parameters_.values_P.narrow(0, piece.begin - parameters_.held().begin, piece.elements());
    }

    comm::Communicator& ranks_;
    const weights::ParameterTable& all_;
    const weights::Parameters& parameters_;
    at::Device device_;
    /// The piece in flight: tensors that are handed to NCCL live until the monitor sees their work's end, so that new
    /// ones would add up to more than a GiB.
    at::Tensor passed_;
    std::vector<Part> parts_;
};

}  // namespace

void with_gathered_values(comm::Communicator& ranks, const weights::ParameterTable& all, const StatePart& part,
                          const weights::Parameters& parameters, at::Device device,
                          const std::function<void(const ReadValues&)>& write) {
    const Gathering gathering(ranks, all, part, parameters, device);
    if (ranks.rank() != 0) return gathering.serve();
    std::exception_ptr failure;
    try {
        write([&](const weights::Parameter& p) { return gathering.receive(p); });
    } catch (...) {
        failure = std::current_exception();
    }
    gathering.end();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace unsloth::train
