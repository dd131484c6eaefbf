#include "grammar/states.h"

#include <algorithm>
#include <set>

#include "unsloth/core/error.h"

namespace unsloth::grammar {
namespace {

constexpr int32_t unknown = -2;
constexpr int32_t deepest_call = 400;        ///< JSON nests two calls deep for each bracket
constexpr std::size_t most_places = 4'000;   ///< at which a text may stand at a time
constexpr std::size_t most_of_mask = 5'000;  ///< states that one mask may add

}  // namespace

States::States(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary)
    : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)) {}

int32_t States::frame_of(int32_t back, int32_t outer) {
    const auto [known, is_new] = frame_numbers_.try_emplace({back, outer}, static_cast<int32_t>(frames_.size()));
    if (is_new) frames_.push_back({back, outer, frames_[static_cast<std::size_t>(outer)].depth + 1});
    return known->second;
}

/// Includes all that is reached without a byte. Drops what nests too deep, or exceeds the limit of places: texts that
/// the rest allows are still valid.
int32_t States::state_of(const std::vector<Place>& reached) {
    const Nodes& all = grammar_->nodes();
    std::vector<Place> open = reached;
    std::set<Place> seen;
    bool may_end = false;
    std::vector<Place> places;
    while (!open.empty()) {
        const Place here = open.back();
        open.pop_back();
        if (seen.size() >= most_places || !seen.insert(here).second) continue;
        const Nodes::Node& node = all.nodes[static_cast<std::size_t>(here.node)];
        const Frame frame = frames_[static_cast<std::size_t>(here.frame)];
        if (!node.bytes.empty()) places.push_back(here);
        for (const int32_t to : node.empty) open.push_back({to, here.frame});
        if (frame.depth < deepest_call)
            for (const Nodes::Call& call : node.calls)
                open.push_back({all.rules[static_cast<std::size_t>(call.rule)].begin, frame_of(call.back, here.frame)});
        if (!node.ends_rule) continue;
        if (here.frame == 0)
            may_end = true;
        else
            open.push_back({frame.back, frame.outer});
    }
    if (places.empty() && !may_end) return dead;
    std::sort(places.begin(), places.end());
    const auto [known, is_new] =
        numbers_.try_emplace({std::move(places), may_end}, static_cast<int32_t>(states_.size()));
    if (is_new) {
        states_.push_back(std::make_unique<State>());
        states_.back()->places = known->first.first;
        states_.back()->may_end = may_end;
        states_.back()->next.fill(unknown);
    }
    return known->second;
}

int32_t States::step(int32_t state, uint8_t byte) {
    if (const int32_t next = states_[static_cast<std::size_t>(state)]->next[byte]; next != unknown) return next;
    std::vector<Place> reached;
    for (const Place& place : states_[static_cast<std::size_t>(state)]->places)
        for (const Nodes::Bytes& bytes : grammar_->nodes().nodes[static_cast<std::size_t>(place.node)].bytes)
            if (bytes.first <= byte && byte <= bytes.last) reached.push_back({bytes.to, place.frame});
    const int32_t next = reached.empty() ? dead : state_of(reached);
    states_[static_cast<std::size_t>(state)]->next[byte] = next;
    return next;
}

int32_t States::begin() {
    const std::lock_guard lock(mutex_);
    const Nodes& all = grammar_->nodes();
    return state_of({{all.rules[static_cast<std::size_t>(all.root)].begin, 0}});
}

int32_t States::advance(int32_t state, std::string_view bytes) {
    const std::lock_guard lock(mutex_);
    for (const char c : bytes)
        if (state != dead) state = step(state, static_cast<uint8_t>(c));
    return state;
}

bool States::may_end(int32_t state) {
    const std::lock_guard lock(mutex_);
    return states_[static_cast<std::size_t>(state)]->may_end;
}

bool States::is_full() {
    const std::lock_guard lock(mutex_);
    return states_.size() > most_states || mask_bytes_ > most_mask_bytes;
}

/// Visits tokens in byte order: each starts at the state that the previous one reached after their shared bytes. Tokens
/// whose first bytes lead nowhere are skipped. A pattern with too many states for one mask gets the single bytes, and
/// as many of the other tokens as there is room for.
void States::make_mask(int32_t state) {
    auto mask = std::make_unique<std::vector<uint32_t>>(vocabulary_->words());
    mask_bytes_ += 4 * mask->size();
    const auto allow = [&](int32_t id) {
        (*mask)[static_cast<std::size_t>(id) / 32] |= 1U << (static_cast<uint32_t>(id) % 32);
    };
    for (const int32_t id : vocabulary_->single_bytes())
        if (step(state, static_cast<uint8_t>(vocabulary_->bytes(id).front())) != dead) allow(id);
    const std::size_t most = states_.size() + most_of_mask;
    std::vector<int32_t> along = {state};  // after each byte of the token
    const auto& sorted = vocabulary_->sorted();
    for (std::size_t i = 0; i < sorted.size() && states_.size() < most;) {
        const std::string_view bytes(vocabulary_->text().data() + sorted[i].begin, sorted[i].size);
        along.resize(std::min<std::size_t>(along.size(), sorted[i].common + std::size_t{1}));
        std::size_t at = along.size() - 1;
        while (at < bytes.size()) {
            const auto byte = static_cast<uint8_t>(bytes[at]);
            const int32_t known = states_[static_cast<std::size_t>(along.back())]->next[byte];
            const int32_t next = known != unknown ? known : step(along.back(), byte);
            if (next == dead) break;
            along.push_back(next);
            ++at;
        }
        if (at == bytes.size()) {
            allow(sorted[i].id);
            ++i;
            continue;
        }
        do {
            ++i;
        } while (i < sorted.size() && sorted[i].common > at);
    }
    states_[static_cast<std::size_t>(state)]->mask = std::move(mask);
}

void States::allowed(int32_t state, std::vector<uint32_t>& mask) {
    const std::lock_guard lock(mutex_);
    if (!states_[static_cast<std::size_t>(state)]->mask) make_mask(state);
    mask = *states_[static_cast<std::size_t>(state)]->mask;
}

int32_t States::take_over(States& from, int32_t state) {
    UNSLOTH_CHECK(this != &from && grammar_ == from.grammar_, "states of another grammar");
    const std::scoped_lock lock(mutex_, from.mutex_);
    std::vector<Place> places;
    for (const Place& place : from.states_[static_cast<std::size_t>(state)]->places) {
        std::vector<int32_t> backs;  // the innermost first
        for (int32_t frame = place.frame; frame != 0; frame = from.frames_[static_cast<std::size_t>(frame)].outer)
            backs.push_back(from.frames_[static_cast<std::size_t>(frame)].back);
        int32_t frame = 0;
        for (auto back = backs.rbegin(); back != backs.rend(); ++back) frame = frame_of(*back, frame);
        places.push_back({place.node, frame});
    }
    if (from.states_[static_cast<std::size_t>(state)]->may_end) {
        const Nodes& all = grammar_->nodes();
        places.push_back({all.rules[static_cast<std::size_t>(all.root)].end, 0});
    }
    return state_of(places);
}

Vocabulary::Vocabulary(std::vector<std::string> bytes) : bytes_(std::move(bytes)) {
    for (std::size_t id = 0; id < bytes_.size(); ++id)
        if (!bytes_[id].empty()) sorted_.push_back({static_cast<int32_t>(id)});
    for (const Entry& entry : sorted_)
        if (this->bytes(entry.id).size() == 1) single_bytes_.push_back(entry.id);
    std::sort(sorted_.begin(), sorted_.end(), [&](const Entry& a, const Entry& b) {
        const int order = this->bytes(a.id).compare(this->bytes(b.id));
        return order != 0 ? order < 0 : a.id < b.id;
    });
    for (Entry& entry : sorted_) {
        entry.size = static_cast<uint32_t>(this->bytes(entry.id).size());
        entry.begin = text_.size();
        text_ += this->bytes(entry.id);
    }
    for (std::size_t i = 1; i < sorted_.size(); ++i) {
        const std::string &before = this->bytes(sorted_[i - 1].id), &here = this->bytes(sorted_[i].id);
        const auto differs = std::mismatch(before.begin(), before.end(), here.begin(), here.end());
        sorted_[i].common = static_cast<uint32_t>(differs.second - here.begin());
    }
}

struct MaskCache::Inner {
    std::shared_ptr<const Grammar> grammar;
    std::shared_ptr<const Vocabulary> vocabulary;
    std::mutex mutex;
    std::shared_ptr<States> states;
};

MaskCache::MaskCache(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary)
    : inner_(std::make_unique<Inner>()) {
    inner_->grammar = std::move(grammar);
    inner_->vocabulary = std::move(vocabulary);
}
MaskCache::~MaskCache() = default;

std::shared_ptr<States> MaskCache::states() {
    const std::lock_guard lock(inner_->mutex);
    if (!inner_->states || inner_->states->is_full())
        inner_->states = std::make_shared<States>(inner_->grammar, inner_->vocabulary);
    return inner_->states;
}

Matcher::Matcher(std::shared_ptr<MaskCache> cache)
    : cache_(std::move(cache)), states_(cache_->states()), state_(states_->begin()) {}
Matcher::~Matcher() = default;

/// What others made is left to them.
void Matcher::make_room() {
    if (!states_->is_full()) return;
    const std::shared_ptr<States> others = cache_->states();
    if (others == states_) return;
    state_ = others->take_over(*states_, state_);
    states_ = others;
}

std::span<const uint32_t> Matcher::allowed() {
    make_room();
    states_->allowed(state_, mask_);
    return mask_;
}

bool Matcher::advance(int32_t id) {
    const std::string& bytes = states_->vocabulary().bytes(id);
    return !bytes.empty() && advance(bytes);
}

bool Matcher::advance(std::string_view bytes) {
    const int32_t next = states_->advance(state_, bytes);
    if (next == States::dead) return false;
    state_ = next;
    return true;
}

bool Matcher::may_end() const {
    return states_->may_end(state_);
}

}  // namespace unsloth::grammar
