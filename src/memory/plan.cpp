#include "unsloth/memory/plan.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>

#include "unsloth/core/error.h"

namespace unsloth::memory {
namespace {

constexpr int64_t alignment = 512;  // what cuBLASLt and cuDNN like best, and a multiple of every element size

int64_t aligned(int64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

std::string human_bytes(int64_t bytes) {
    char text[32];
    const double mib = static_cast<double>(bytes) / (1 << 20);
    if (mib >= 1024) {
        std::snprintf(text, sizeof text, "%.2f GiB", mib / 1024);
    } else {
        std::snprintf(text, sizeof text, "%.1f MiB", mib);
    }
    return text;
}

BufferId Plan::add(std::string group, std::string name, int64_t bytes, uint8_t phases) {
    UNSLOTH_CHECK(bytes >= 0, name);
    UNSLOTH_CHECK(ids_.emplace(name, entries_.size()).second, "planned twice: ", name);
    entries_.push_back({std::move(group), std::move(name), bytes, phases, -1});
    return entries_.size() - 1;
}

BufferId Plan::find(const std::string& name) const {
    const auto found = ids_.find(name);
    UNSLOTH_CHECK(found != ids_.end(), "not planned: ", name);
    return found->second;
}

void Plan::place() {
    std::vector<std::size_t> order(entries_.size());
    std::iota(order.begin(), order.end(), 0);
    // Buffers of all phases first: they form a solid floor, the shared ones stack above it.
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const bool a_always = entries_[a].phases == always, b_always = entries_[b].phases == always;
        return a_always != b_always ? a_always : entries_[a].bytes > entries_[b].bytes;
    });
    int64_t floor = 0;
    std::vector<const Entry*> shared;  // by offset
    for (const std::size_t index : order) {
        Entry& entry = entries_[index];
        if (entry.phases == always) {
            entry.offset = floor;
            floor += aligned(entry.bytes);
            continue;
        }
        // Lowest gap between conflicting neighbours that is large enough.
        int64_t offset = floor;
        for (const Entry* placed : shared) {
            if ((placed->phases & entry.phases) == 0) continue;
            if (placed->offset - offset >= aligned(entry.bytes)) break;
            offset = std::max(offset, placed->offset + aligned(placed->bytes));
        }
        entry.offset = offset;
        const auto above = std::upper_bound(shared.begin(), shared.end(), offset,
                                            [](int64_t at, const Entry* placed) { return at < placed->offset; });
        shared.insert(above, &entry);
    }
    total_ = floor;
    for (const Entry& entry : entries_) total_ = std::max(total_, entry.offset + aligned(entry.bytes));
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
