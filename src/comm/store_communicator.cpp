#include <cstring>

#include "comm/cpu_communicator.h"
#include "comm/cpu_sum.h"
#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

std::vector<uint8_t> bytes_of(const at::Tensor& tensor) {
    const auto* const data = static_cast<const uint8_t*>(tensor.const_data_ptr());
    return {data, data + tensor.nbytes()};
}

class StoreCommunicator final : public CpuCommunicator {
  public:
    StoreCommunicator(Exchange& exchange, std::vector<int> ranks, const std::string& name)
        : CpuCommunicator(exchange.rank(), std::move(ranks), name), exchange_(exchange) {}

    void all_reduce(const at::Tensor& sum, const std::string& of) override {
        add_up(sum, 0, sum, title(of, "all-reduce"));
    }

    void reduce_scatter(const at::Tensor& values, const at::Tensor& own, const std::string& of) override {
        const std::string what = title(of, "reduce-scatter");
        UNSLOTH_CHECK(values.numel() == own.numel() * size(), what, ": parts of another size");
        add_up(values, own.numel() * rank(), own, what);
    }

    void reduce(const at::Tensor& sum, int, const std::string& of) override {
        add_up(sum, 0, sum, title(of, "reduce"));
    }

    void all_gather(const at::Tensor& own, const at::Tensor& all, const std::string& of) override {
        const std::string what = title(of, "all-gather");
        require_on_cpu(own, what), require_on_cpu(all, what);
        UNSLOTH_CHECK(all.nbytes() == own.nbytes() * static_cast<std::size_t>(size()), what, ": parts of another size");
        auto* const bytes = static_cast<uint8_t*>(all.mutable_data_ptr());
        exchange_.all(bytes_of(own), what, [&](int rank, const std::vector<uint8_t>& sent) {
            require_size(sent.size(), own.nbytes(), rank, what);
            if (!sent.empty())
                std::memcpy(bytes + sent.size() * static_cast<std::size_t>(rank), sent.data(), sent.size());
        });
    }

    void broadcast(const at::Tensor& values, int root, const std::string& of) override {
        const std::string what = title(of, "broadcast");
        require_on_cpu(values, what);
        exchange_.all(rank() == root ? bytes_of(values) : std::vector<uint8_t>(), what,
                      [&](int rank, const std::vector<uint8_t>& sent) {
                          if (rank != root || rank == this->rank()) return;
                          require_size(sent.size(), values.nbytes(), rank, what);
                          if (!sent.empty()) std::memcpy(values.mutable_data_ptr(), sent.data(), sent.size());
                      });
    }

    void send(const at::Tensor&, int, const std::string& what) override { refuse(what); }
    void receive(const at::Tensor&, int, const std::string& what) override { refuse(what); }
    std::unique_ptr<Message> send_async(const at::Tensor&, int, const std::string& what) override { refuse(what); }

  private:
    /// `own` becomes the sum of the ranks' `values` from `first` on.
    void add_up(const at::Tensor& values, int64_t first, const at::Tensor& own, const std::string& what) {
        require_summable(values, what), require_summable(own, what);
        const auto count = static_cast<std::size_t>(own.numel());
        std::vector<float> total(count);
        exchange_.all(bytes_of(values), what, [&](int rank, const std::vector<uint8_t>& sent) {
            require_size(sent.size(), values.nbytes(), rank, what);
            const uint8_t* const part = sent.data() + first * values.element_size();
            for_summable(values, [&]<class T>(T) {
                for (std::size_t i = 0; i < count; ++i) {
                    T value;
                    std::memcpy(&value, part + i * sizeof(T), sizeof(T));
                    total[i] = rank == 0 ? static_cast<float>(value) : total[i] + static_cast<float>(value);
                }
            });
        });
        for_summable(own, [&]<class T>(T) {
            T* const out = own.mutable_data_ptr<T>();
            for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<T>(total[i]);
        });
    }
    [[noreturn]] static void refuse(const std::string& what) {
        throw Error("parallel.unsupported", cat(what, ": CPU ranks of several machines cannot send each other values"),
                    "Start them on one machine, or take GPUs.");
    }

    Exchange& exchange_;
};

}  // namespace

std::unique_ptr<Communicator> make_store_communicator(Exchange& exchange, std::vector<int> ranks,
                                                      const std::string& name) {
    return std::make_unique<StoreCommunicator>(exchange, std::move(ranks), name);
}

void require_size(std::size_t found, std::size_t expected, int rank, const std::string& what) {
    if (found != expected)
        throw Error("rank.bad-message",
                    cat("rank ", rank, " sent ", found, " bytes as ", what, ", expected ", expected),
                    "All ranks need the same program, configuration and model.");
}

}  // namespace unsloth::comm
