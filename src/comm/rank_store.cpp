#include "comm/rank_store.h"

#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

std::string key_of(const std::string& key) {
    return "c10d/" + key;
}

}  // namespace

RankStore::RankStore(const Rendezvous& rendezvous, std::chrono::seconds timeout)
    : c10d::Store(std::chrono::duration_cast<milliseconds>(timeout)),
      rendezvous_(rendezvous),
      client_(rendezvous, Clock::now() + timeout) {}

c10::intrusive_ptr<c10d::Store> RankStore::clone() {
    return c10::make_intrusive<RankStore>(rendezvous_, std::chrono::duration_cast<std::chrono::seconds>(timeout_));
}

void RankStore::set(const std::string& key, const std::vector<uint8_t>& value) {
    client_.set(key_of(key), value);
}

/// In slices: c10d's threads share the connection.
std::optional<std::vector<uint8_t>> RankStore::get_within(const std::string& key, milliseconds timeout) {
    constexpr milliseconds slice(200);
    const auto give_up = Clock::now() + timeout;
    for (;;) {
        if (auto value = client_.get(key_of(key), timeout.count() == 0 ? timeout : slice)) return value;
        if (Clock::now() >= give_up) return std::nullopt;
    }
}

std::vector<uint8_t> RankStore::get(const std::string& key) {
    if (auto value = get_within(key, timeout_)) return std::move(*value);
    throw StoreGone(cat("another rank did not write ", key, " within ", timeout_.count() / 1000, " s"));
}

int64_t RankStore::add(const std::string& key, int64_t value) {
    return client_.add(key_of(key), value);
}

bool RankStore::deleteKey(const std::string& key) {
    return client_.remove(key_of(key));
}

bool RankStore::check(const std::vector<std::string>& keys) {
    for (const std::string& key : keys)
        if (!get_within(key, milliseconds(0))) return false;
    return true;
}

int64_t RankStore::getNumKeys() {
    throw StoreGone("this store does not count its keys");
}

void RankStore::wait(const std::vector<std::string>& keys) {
    wait(keys, timeout_);
}

void RankStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
    const auto give_up = Clock::now() + timeout;
    for (const std::string& key : keys)
        if (!get_within(key,
                        std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(give_up - Clock::now()))))
            throw StoreGone(cat("another rank did not write ", key, " within ", timeout.count() / 1000, " s"));
}

}  // namespace unsloth::comm
