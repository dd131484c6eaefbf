#include "comm/wire.h"

#include <algorithm>
#include <cstring>

namespace unsloth::comm {
namespace {

template <class T>
Bytes raw(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return {reinterpret_cast<const uint8_t*>(&value), sizeof value};
}

}  // namespace

Digest derive(const std::string& secret, const char* purpose, const Hello& hello, const Welcome& welcome) {
    return Hmac(bytes_of(secret))
        .add(bytes_of(purpose))
        .add(raw(hello))
        .add(raw(welcome).first(sizeof welcome - sizeof welcome.proof))
        .finish();
}

Hmac Seal::begin(char what, const Head& head) const {
    Hmac mac(*key_);
    mac.add(raw(number_)).add(raw(what)).add(raw(head));
    return mac;
}

// --- taking in -----------------------------------------------------------------------------------------------------

std::size_t FrameReader::size_of(Stage stage) const {
    switch (stage) {
        case Stage::front:
            return sizeof(Head) + (seal_.on() ? sizeof(Digest) : 0);
        case Stage::key:
            return head_.key_size;
        case Stage::body:
            return head_.size;
        case Stage::mac:
            return seal_.on() ? sizeof(Digest) : 0;
        case Stage::whole:
            break;
    }
    return 0;
}

std::span<uint8_t> FrameReader::room() {
    const std::size_t left = size_of(stage_) - got_;
    switch (stage_) {
        case Stage::front:
            return {front_.data() + got_, left};
        case Stage::key:
            return {reinterpret_cast<uint8_t*>(key_.data()) + got_, left};
        case Stage::mac:
            return {mac_.data() + got_, left};
        default:
            break;
    }
    if (body_.size() == got_) body_.resize(got_ + std::min(left, piece_bytes));
    return {body_.data() + got_, body_.size() - got_};
}

bool FrameReader::filled(std::size_t count) {
    if (content_ && stage_ == Stage::key) content_->add(bytes_of(key_).subspan(got_, count));
    if (content_ && stage_ == Stage::body) content_->add(Bytes(body_).subspan(got_, count));
    got_ += count;
    while (stage_ != Stage::whole && got_ == size_of(stage_)) {
        if (stage_ == Stage::front) take_front();
        if (stage_ == Stage::mac && seal_.on() && !same(content_->finish(), mac_))
            throw Garbled("a message does not carry the run's secret");
        stage_ = static_cast<Stage>(static_cast<int>(stage_) + 1);
        got_ = 0;
    }
    return stage_ == Stage::whole;
}

void FrameReader::take_front() {
    std::memcpy(&head_, front_.data(), sizeof head_);
    if (seal_.on()) {
        Digest mac;
        std::memcpy(mac.data(), front_.data() + sizeof head_, sizeof mac);
        if (!same(seal_.of_head(head_), mac)) throw Garbled("a message does not carry the run's secret");
        content_.emplace(seal_.of_content(head_));
    }
    const bool request = head_.op <= Op::signs, reply = head_.op == Op::done || head_.op == Op::absent;
    const bool signs = head_.op == Op::signs && takes_requests_;
    if (!(takes_requests_ ? request : reply) || head_.key_size > longest_key ||
        head_.size > (signs ? longest_sign : largest_value))
        throw Garbled("a message of no known kind or size");
    key_.resize(head_.key_size);
    body_.reserve(std::min<uint64_t>(head_.size, uint64_t{64} * piece_bytes));
}

void FrameReader::reset() {
    seal_.next();
    stage_ = Stage::front;
    got_ = 0;
    key_.clear();
    body_ = {};
    content_.reset();
}

// --- giving out ----------------------------------------------------------------------------------------------------

FrameWriter::FrameWriter(Seal& seal, Head head, const std::string& key, Bytes body) : body_(body) {
    start(seal, head, key);
}

FrameWriter::FrameWriter(Seal& seal, Head head, Value body) : kept_(std::move(body)) {
    if (kept_) body_ = *kept_;
    start(seal, head, "");
}

void FrameWriter::start(Seal& seal, Head head, const std::string& key) {
    head.key_size = static_cast<uint16_t>(key.size());
    head.size = body_.size();
    const Bytes head_bytes = raw(head);
    front_.assign(head_bytes.begin(), head_bytes.end());
    if (seal.on()) {
        const Digest mac = seal.of_head(head);
        front_.insert(front_.end(), mac.begin(), mac.end());
        content_.emplace(seal.of_content(head));
        content_->add(bytes_of(key));
    }
    front_.insert(front_.end(), key.begin(), key.end());
    seal.next();
    now_ = front_;
}

Bytes FrameWriter::next() {
    if (!now_.empty()) return now_;
    if (given_ < body_.size()) {
        now_ = body_.subspan(given_, std::min(piece_bytes, body_.size() - given_));
        given_ += now_.size();
        if (content_) content_->add(now_);
    } else if (content_ && !ends_) {
        ends_ = true;
        mac_ = content_->finish();
        now_ = mac_;
    }
    return now_;
}

void FrameWriter::sent(std::size_t count) {
    now_ = now_.subspan(count);
}

}  // namespace unsloth::comm
