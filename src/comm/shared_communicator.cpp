// Values go through a segment in pieces. Each rank has two areas, used in turn: who begins piece k + 2 has met all the
// others at piece k + 1, so they have read piece k. A rank says that its part is there by a counter that the others
// wait for; a rank that ended never moves its counter again, and the monitor, asked while waiting, names it.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <ctime>
#include <future>

#include "comm/cpu_communicator.h"
#include "comm/cpu_sum.h"
#include "comm/outbox.h"
#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

using Counter = std::atomic<uint32_t>;
static_assert(Counter::is_always_lock_free && sizeof(Counter) == sizeof(uint32_t), "futexes are words");

constexpr std::size_t area_bytes = 512 << 10, mail_bytes = 256 << 10, line = 64;
constexpr milliseconds slice(100);  // between which the monitor may know more

/// Of one rank.
struct alignas(line) Place {
    Counter arrived;
    std::array<std::atomic<uint64_t>, 2> bytes;  ///< of the collectives that begin with this area: all must be the same
};
/// From one rank to another.
struct alignas(line) Mail {
    Counter sent, taken;
    std::atomic<uint64_t> bytes;
};

void wait_while(Counter& counter, uint32_t value) {
    const timespec time{0, std::chrono::nanoseconds(slice).count()};
    ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&counter), FUTEX_WAIT, value, &time, nullptr, 0);
}

void advance(Counter& counter) {
    counter.fetch_add(1, std::memory_order_release);
    ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&counter), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::size_t areas_at(std::size_t size) {
    return size * sizeof(Place) + size * size * sizeof(Mail);
}

/// out[i] = the sum over the ranks, in their order. `out` may be one of them.
template <class T>
void sum_ranks(const std::vector<const std::byte*>& of_ranks, std::byte* out, std::size_t count) {
    std::array<float, 1024> sums;
    for (std::size_t first = 0; first < count; first += sums.size()) {
        const std::size_t some = std::min(sums.size(), count - first);
        for (std::size_t r = 0; r < of_ranks.size(); ++r) {
            const T* const values = reinterpret_cast<const T*>(of_ranks[r]) + first;
            if (r == 0)
                for (std::size_t i = 0; i < some; ++i) sums[i] = static_cast<float>(values[i]);
            else
                for (std::size_t i = 0; i < some; ++i) sums[i] += static_cast<float>(values[i]);
        }
        T* const to = reinterpret_cast<T*>(out) + first;
        for (std::size_t i = 0; i < some; ++i) to[i] = static_cast<T>(sums[i]);
    }
}

class SharedCommunicator final : public CpuCommunicator {
  public:
    SharedCommunicator(Exchange& exchange, int rank, std::vector<int> ranks, const std::string& name,
                       std::unique_ptr<SharedSegment> segment)
        : CpuCommunicator(rank, std::move(ranks), name), exchange_(exchange), segment_(std::move(segment)) {}

    void all_reduce(const at::Tensor& sum, const std::string& of) override {
        const std::string what = title(of, "all-reduce");
        require_summable(sum, what);
        begin(what, sum.nbytes());
        const auto width = static_cast<std::size_t>(sum.element_size());
        auto* const bytes = static_cast<std::byte*>(sum.mutable_data_ptr());
        const std::size_t all = sum.nbytes();
        for (std::size_t at = 0; at < all; at += area_bytes) {
            const std::size_t piece = std::min(area_bytes, all - at), count = piece / width;
            std::memcpy(area(rank()), bytes + at, piece);
            meet(what);
            // Each rank adds up a part of the piece, in its own area, which no other rank reads meanwhile.
            const auto first = [&](int r) { return count * static_cast<std::size_t>(r) / ranks().size() * width; };
            add(sum, first(rank()), area(rank()) + first(rank()), (first(rank() + 1) - first(rank())) / width);
            meet_again(what);
            for (int r = 0; r < size(); ++r)
                std::memcpy(bytes + at + first(r), area(r) + first(r), first(r + 1) - first(r));
            turn_ ^= 1;
        }
    }

    void reduce_scatter(const at::Tensor& values, const at::Tensor& own, const std::string& of) override {
        const std::string what = title(of, "reduce-scatter");
        require_summable(values, what), require_summable(own, what);
        UNSLOTH_CHECK(values.nbytes() == own.nbytes() * ranks().size() && values.scalar_type() == own.scalar_type(),
                      what, ": parts of another size");
        begin(what, own.nbytes());
        const auto* const from = static_cast<const std::byte*>(values.const_data_ptr());
        auto* const to = static_cast<std::byte*>(own.mutable_data_ptr());
        const std::size_t part = own.nbytes(), most = area_bytes / ranks().size() / line * line;
        for (std::size_t at = 0; at < part; at += most) {
            const std::size_t piece = std::min(most, part - at);
            for (std::size_t r = 0; r < ranks().size(); ++r)
                std::memcpy(area(rank()) + r * most, from + r * part + at, piece);
            meet(what);
            add(values, static_cast<std::size_t>(rank()) * most, to + at,
                piece / static_cast<std::size_t>(own.element_size()));
            turn_ ^= 1;
        }
    }

    void reduce(const at::Tensor& sum, int root, const std::string& of) override {
        const std::string what = title(of, "reduce");
        require_summable(sum, what);
        begin(what, sum.nbytes());
        auto* const bytes = static_cast<std::byte*>(sum.mutable_data_ptr());
        const std::size_t all = sum.nbytes();
        for (std::size_t at = 0; at < all; at += area_bytes) {
            const std::size_t piece = std::min(area_bytes, all - at);
            std::memcpy(area(rank()), bytes + at, piece);
            meet(what);
            if (rank() == root) add(sum, 0, bytes + at, piece / static_cast<std::size_t>(sum.element_size()));
            turn_ ^= 1;
        }
    }

    void all_gather(const at::Tensor& own, const at::Tensor& all, const std::string& of) override {
        const std::string what = title(of, "all-gather");
        require_on_cpu(own, what), require_on_cpu(all, what);
        UNSLOTH_CHECK(all.nbytes() == own.nbytes() * ranks().size(), what, ": parts of another size");
        begin(what, own.nbytes());
        const auto* const from = static_cast<const std::byte*>(own.const_data_ptr());
        auto* const to = static_cast<std::byte*>(all.mutable_data_ptr());
        const std::size_t part = own.nbytes();
        for (std::size_t at = 0; at < part; at += area_bytes) {
            const std::size_t piece = std::min(area_bytes, part - at);
            std::memcpy(area(rank()), from + at, piece);
            meet(what);
            for (int r = 0; r < size(); ++r)
                if (std::byte* const place = to + static_cast<std::size_t>(r) * part + at;
                    r != rank() || place != from + at)
                    std::memcpy(place, area(r), piece);
            turn_ ^= 1;
        }
    }

    void broadcast(const at::Tensor& values, int root, const std::string& of) override {
        const std::string what = title(of, "broadcast");
        require_on_cpu(values, what);
        begin(what, values.nbytes());
        auto* const bytes = static_cast<std::byte*>(values.mutable_data_ptr());
        const std::size_t all = values.nbytes();
        for (std::size_t at = 0; at < all; at += area_bytes) {
            const std::size_t piece = std::min(area_bytes, all - at);
            if (rank() == root) std::memcpy(area(root), bytes + at, piece);
            meet(what);
            if (rank() != root) std::memcpy(bytes + at, area(root), piece);
            turn_ ^= 1;
        }
    }

    void send(const at::Tensor& values, int to, const std::string& of) override {
        const std::string what = title(of, "send");
        exchange_.monitor().check();
        exchange_.monitor().begin_message(what);
        deliver(values, to, what);
    }

    std::unique_ptr<Message> send_async(const at::Tensor& values, int to, const std::string& of) override {
        const std::string what = title(of, "send");
        exchange_.monitor().check();
        return std::make_unique<Letter>(outbox_.take([this, values, to, what] { deliver(values, to, what); }));
    }

    void receive(const at::Tensor& values, int from, const std::string& of) override {
        const std::string what = title(of, "receive");
        require_on_cpu(values, what);
        exchange_.monitor().check();
        exchange_.monitor().begin_message(what);
        Mail& box = mail(from, rank());
        auto* const bytes = static_cast<std::byte*>(values.mutable_data_ptr());
        for (std::size_t at = 0, all = values.nbytes(); at < all; at += mail_bytes) {
            const uint32_t taken = box.taken.load(std::memory_order_relaxed);
            wait(box.sent, [&](uint32_t sent) { return sent != taken; }, from, what, /*message=*/true);
            require_size(box.bytes.load(std::memory_order_relaxed), all, world(from), what);
            std::memcpy(bytes + at, mail_data(from, rank()), std::min(mail_bytes, all - at));
            advance(box.taken);
        }
    }

  private:
    class Letter final : public Message {
      public:
        explicit Letter(std::future<void> done) : done_(std::move(done)) {}
        void wait() override {
            if (done_.valid()) done_.get();
        }

      private:
        std::future<void> done_;
    };

    void deliver(const at::Tensor& values, int to, const std::string& what) {
        require_on_cpu(values, what);
        Mail& box = mail(rank(), to);
        const auto* const bytes = static_cast<const std::byte*>(values.const_data_ptr());
        for (std::size_t at = 0, all = values.nbytes(); at < all; at += mail_bytes) {
            const uint32_t sent = box.sent.load(std::memory_order_relaxed);
            wait(box.taken, [&](uint32_t taken) { return taken == sent; }, to, what, /*message=*/true);
            box.bytes.store(values.nbytes(), std::memory_order_relaxed);
            std::memcpy(mail_data(rank(), to), bytes + at, std::min(mail_bytes, all - at));
            advance(box.sent);
        }
    }

    int world(int rank) const { return ranks()[static_cast<std::size_t>(rank)]; }
    Place& place(int rank) const { return reinterpret_cast<Place*>(segment_->data())[rank]; }
    Mail& mail(int from, int to) const {
        return reinterpret_cast<Mail*>(segment_->data() + ranks().size() * sizeof(Place))[from * size() + to];
    }
    std::size_t turn() const { return static_cast<std::size_t>(turn_); }
    std::byte* area(int rank) const {
        const std::size_t number = static_cast<std::size_t>(turn_ * size() + rank);
        return segment_->data() + areas_at(ranks().size()) + number * area_bytes;
    }
    std::byte* mail_data(int from, int to) const {
        return segment_->data() + areas_at(ranks().size()) + 2 * ranks().size() * area_bytes +
               static_cast<std::size_t>(from * size() + to) * mail_bytes;
    }

    void add(const at::Tensor& like, std::size_t offset, std::byte* out, std::size_t count) const {
        std::vector<const std::byte*> of_ranks;
        for (int r = 0; r < size(); ++r) of_ranks.push_back(area(r) + offset);
        for_summable(like, [&]<class T>(T) { sum_ranks<T>(of_ranks, out, count); });
    }

    /// Every rank has come, with as many bytes as this one. All meet here also when there are none.
    void begin(const std::string& what, std::size_t bytes) {
        exchange_.monitor().check();
        exchange_.monitor().begin(what);
        bytes_ = bytes;
        checked_ = false;
        if (bytes > 0) return;
        meet(what);
        turn_ ^= 1;
    }
    void meet(const std::string& what) {
        if (!checked_) place(rank()).bytes[turn()].store(bytes_, std::memory_order_relaxed);
        meet_again(what);
        if (checked_) return;
        checked_ = true;
        for (int r = 0; r < size(); ++r)
            require_size(place(r).bytes[turn()].load(std::memory_order_relaxed), bytes_, world(r), what);
    }
    void meet_again(const std::string& what) {
        const uint32_t goal = ++meetings_;
        advance(place(rank()).arrived);
        for (int r = 0; r < size(); ++r)
            if (r != rank())
                wait(place(r).arrived, [&](uint32_t n) { return static_cast<int32_t>(n - goal) >= 0; }, r, what);
    }

    /// Until `done` of a counter that the member `other` moves.
    template <class Done>
    void wait(Counter& counter, const Done& done, int other, const std::string& what, bool message = false) {
        Monitor& monitor = exchange_.monitor();
        const auto timeout = exchange_.timeout();
        auto deadline = Clock::now() + timeout;
        for (;;) {
            const uint32_t value = counter.load(std::memory_order_acquire);
            if (done(value)) return;
            wait_while(counter, value);
            if (counter.load(std::memory_order_acquire) != value) continue;
            monitor.check();
            if (outbox_.closes()) throw Error("rank.failed", cat("this rank leaves before ", what, " was received"));
            if (message ? monitor.busy_before_next(world(other)) : monitor.busy(world(other)))
                deadline = Clock::now() + timeout;
            if (Clock::now() < deadline) continue;
            const std::string late =
                cat(exchange_.name_of(world(other)), " did not come to ", what, " within ", timeout.count(),
                    " s (distributed.ddp_timeout); seen by rank ", exchange_.rank());
            monitor.lose(late);
            throw Error("rank.late", late,
                        "Look at that rank's output: it may have ended, or it works on something that takes longer.");
        }
    }

    Exchange& exchange_;
    std::unique_ptr<SharedSegment> segment_;
    uint32_t meetings_ = 0;
    int turn_ = 0;  ///< which of a rank's areas
    std::size_t bytes_ = 0;
    bool checked_ = false;  ///< that all ranks have as many bytes
    Outbox outbox_;         ///< ends first: its thread uses the members above
};

}  // namespace

std::size_t shared_segment_bytes(int size) {
    const auto n = static_cast<std::size_t>(size);
    return areas_at(n) + 2 * n * area_bytes + n * n * mail_bytes;
}

std::unique_ptr<Communicator> make_shared_communicator(Exchange& exchange, int rank, std::vector<int> ranks,
                                                       const std::string& name,
                                                       std::unique_ptr<SharedSegment> segment) {
    return std::make_unique<SharedCommunicator>(exchange, rank, std::move(ranks), name, std::move(segment));
}

}  // namespace unsloth::comm
