#include "unsloth/memory/plan.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>

#include "unsloth/core/error.h"
#include "unsloth/core/text.h"

namespace unsloth::memory {
namespace {

constexpr int64_t alignment = 512;  // what cuBLASLt and cuDNN like best, and a multiple of every element size

int64_t aligned(int64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
}

/// Buffers above a floor, each at the lowest place that no buffer with a shared phase occupies.
class Stack {
  public:
    explicit Stack(int64_t floor) : floor_(floor), top_(floor) {}
    int64_t top() const { return top_; }

    /// Places `count` buffers of `bytes` aligned bytes; tells where stretches of them begin, and of how many.
    template <class Tell>
    void place(int64_t bytes, uint8_t phases, int64_t count, const Tell& tell) {
        if (bytes == 0) return tell(floor_, count);
        int64_t offset = floor_;
        found_.clear();
        const auto take = [&](int64_t some) {
            if (some <= 0) return;
            tell(offset, some);
            found_.push_back({offset, offset + some * bytes, phases});
            count -= some;
        };
        for (const Stretch& placed : stretches_) {
            if ((placed.phases & phases) == 0) continue;
            take(std::min(count, (placed.begin - offset) / bytes));
            if (count == 0) break;
            offset = std::max(offset, placed.end);
        }
        take(count);
        for (const Stretch& stretch : found_) insert(stretch);
    }

  private:
    struct Stretch {
        int64_t begin, end;
        uint8_t phases;
    };
    /// Inserts a stretch; one that begins where one of the same phases ends extends it.
    void insert(const Stretch& stretch) {
        top_ = std::max(top_, stretch.end);
        for (Stretch& below : stretches_)
            if (below.end == stretch.begin && below.phases == stretch.phases) {
                below.end = stretch.end;
                return;
            }
        const auto above = std::upper_bound(stretches_.begin(), stretches_.end(), stretch.begin,
                                            [](int64_t at, const Stretch& placed) { return at < placed.begin; });
        stretches_.insert(above, stretch);
    }

    int64_t floor_, top_;
    std::vector<Stretch> stretches_;  ///< by begin
    std::vector<Stretch> found_;      ///< of the buffers being placed
};

}  // namespace

BufferId Plan::add(std::string group, std::string name, int64_t bytes, uint8_t phases, std::string content) {
    UNSLOTH_CHECK(bytes >= 0, name);
    if (!named_) return add_sizes(bytes, phases, 1), BufferId{0};
    UNSLOTH_CHECK(ids_.emplace(name, entries_.size()).second, "planned twice: ", name);
    entries_.push_back({std::move(group), std::move(name), bytes, phases, -1, std::move(content)});
    return entries_.size() - 1;
}

BufferId Plan::find(const std::string& name) const {
    const auto found = ids_.find(name);
    UNSLOTH_CHECK(found != ids_.end(), "not planned: ", name);
    return found->second;
}

void Plan::add_sizes(int64_t bytes, uint8_t phases, int64_t count) {
    UNSLOTH_CHECK(!named_ && bytes >= 0, "sizes of buffers that have names");
    if (phases == always) {
        floor_ += count * aligned(bytes);
    } else {
        sizes_.push_back({bytes, phases, count});
    }
}

void Plan::place() {
    if (named_) return place_entries();
    std::stable_sort(sizes_.begin(), sizes_.end(), [](const Sizes& a, const Sizes& b) { return a.bytes > b.bytes; });
    Stack stack(floor_);
    for (const Sizes& alike : sizes_)
        stack.place(aligned(alike.bytes), alike.phases, alike.count, [](int64_t, int64_t) {});
    total_ = stack.top();
}

void Plan::place_entries() {
    std::vector<std::size_t> order(entries_.size());
    std::iota(order.begin(), order.end(), 0);
    // Buffers of all phases first: they form a solid floor, the shared ones stack above it.
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const bool a_always = entries_[a].phases == always, b_always = entries_[b].phases == always;
        return a_always != b_always ? a_always : entries_[a].bytes > entries_[b].bytes;
    });
    int64_t floor = 0;
    auto next = order.begin();
    for (; next != order.end() && entries_[*next].phases == always; ++next) {
        entries_[*next].offset = floor;
        floor += aligned(entries_[*next].bytes);
    }
    Stack stack(floor);
    while (next != order.end()) {
        const Entry& first = entries_[*next];
        const auto end = std::find_if(next, order.end(), [&](std::size_t other) {
            return entries_[other].bytes != first.bytes || entries_[other].phases != first.phases;
        });
        const int64_t bytes = aligned(first.bytes);
        stack.place(bytes, first.phases, end - next, [&](int64_t offset, int64_t count) {
            for (; count > 0; --count, offset += bytes) entries_[*next++].offset = offset;
        });
    }
    total_ = stack.top();
}

std::string Plan::table() const {
    struct Sum {
        int64_t bytes = 0, count = 0;
    };
    std::map<std::string, Sum> groups;
    int64_t sum = 0;
    for (const Entry& entry : entries_) {
        groups[entry.group].bytes += entry.bytes;
        groups[entry.group].count += 1;
        sum += entry.bytes;
    }
    std::vector<std::pair<std::string, Sum>> rows(groups.begin(), groups.end());
    std::stable_sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.second.bytes > b.second.bytes; });
    std::string text;
    char line[160];
    for (const auto& [name, group] : rows) {
        std::snprintf(line, sizeof line, "  %-28s %5lld buffers %12s\n", name.c_str(),
                      static_cast<long long>(group.count), human_bytes(group.bytes).c_str());
        text += line;
    }
    std::snprintf(line, sizeof line, "  %-28s %5zu buffers %12s (%s saved by sharing)", "total", entries_.size(),
                  human_bytes(total_).c_str(), human_bytes(std::max<int64_t>(0, sum - total_)).c_str());
    return text + line;
}

}  // namespace unsloth::memory
