// Values for the keys that come most often.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

namespace unsloth {

/// Holds a value for each of at most `room` keys: those that came most often of late. What it remembers of others is
/// bounded too.
template <class Key, class Value>
class MostUsed {
  public:
    explicit MostUsed(std::size_t room) : room_(room) {}

    /// Counts a use of `key`. Its value, or nullptr: at its first use, and while others come as often. A key takes
    /// another's place, with a fresh value, once it came more than twice as often: keys that come equally often do not
    /// drive each other out.
    Value* use(const Key& key) {
        if (++uses_ % (window * static_cast<int64_t>(room_)) == 0) fade();
        const int64_t count = ++counts_[key];
        if (const auto held = values_.find(key); held != values_.end()) return &held->second;
        if (count < 2) return nullptr;
        if (values_.size() == room_) {
            const auto least = std::min_element(values_.begin(), values_.end(), [&](const auto& a, const auto& b) {
                return counts_.at(a.first) < counts_.at(b.first);
            });
            if (count <= 2 * counts_.at(least->first)) return nullptr;
            values_.erase(least);
        }
        return &values_[key];
    }

    std::size_t size() const { return values_.size(); }
    std::size_t known_keys() const { return counts_.size(); }

  private:
    static constexpr int64_t window = 256;  ///< uses for each place, after which counts are halved

    /// What came long ago counts for less, and what came once is forgotten.
    void fade() {
        for (auto known = counts_.begin(); known != counts_.end();) {
            known->second /= 2;
            known = known->second == 0 && values_.count(known->first) == 0 ? counts_.erase(known) : std::next(known);
        }
    }

    std::size_t room_;
    int64_t uses_ = 0;
    std::map<Key, int64_t> counts_;
    std::map<Key, Value> values_;
};

}  // namespace unsloth
