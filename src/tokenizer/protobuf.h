// Reads Protocol Buffers' wire format (protobuf.dev, "Encoding"), field by field.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer {

/// One message within a file's bytes, which outlive it. Every member gives an input Error that names the file
/// and the byte for what is cut off or malformed.
class ProtobufReader {
  public:
    ProtobufReader(std::string_view message, std::string where) : ProtobufReader(message, std::move(where), 0) {}

    /// Moves on to the next field, over the value of the one before if nobody read it. False at the end.
    bool next() {
        if (pending_) skip();
        if (at_ == message_.size()) return false;
        const uint64_t tag = varint();
        field_ = tag >> 3;
        type_ = static_cast<unsigned>(tag & 7);
        if (field_ == 0 || field_ > 0x1FFFFFFF) fail("a field number");
        pending_ = true;
        return true;
    }
    uint64_t field() const { return field_; }

    // The value of the field that `next` found.
    uint64_t integer() {
        expect(0, "an integer");
        return varint();
    }
    int32_t signed_integer() { return static_cast<int32_t>(integer()); }
    bool boolean() { return integer() != 0; }
    float real() {
        expect(5, "a float");
        return std::bit_cast<float>(static_cast<uint32_t>(little_endian(4)));
    }
    std::string_view bytes() {
        expect(2, "bytes");
        return take(varint());
    }
    ProtobufReader message() {
        const std::string_view inner = bytes();
        return {inner, where_, base_ + at_ - inner.size()};
    }
    /// Input Error that says what was expected at the current byte.
    [[noreturn]] void fail(const char* expected) const {
        throw input_error(cat(where_, ": byte ", base_ + at_, ": expected ", expected));
    }

  private:
    ProtobufReader(std::string_view message, std::string where, std::size_t base)
        : message_(message), where_(std::move(where)), base_(base) {}

    void expect(unsigned type, const char* what) {
        if (!pending_ || type_ != type) fail(what);
        pending_ = false;
    }
    uint64_t varint() {
        uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const auto byte = static_cast<uint8_t>(take(1)[0]);
            value |= uint64_t{byte & 0x7Fu} << shift;
            if (byte < 0x80) return value;
        }
        fail("an integer of at most ten bytes");
    }
    uint64_t little_endian(std::size_t size) {
        const std::string_view raw = take(size);
        uint64_t value = 0;
        for (std::size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<uint8_t>(raw[i])} << (8 * i);
        return value;
    }
    std::string_view take(uint64_t size) {
        if (size > message_.size() - at_) fail("more bytes: the file is cut off or is no such message");
        const std::string_view out = message_.substr(at_, size);
        at_ += size;
        return out;
    }
    void skip() {
        pending_ = false;
        switch (type_) {
            case 0:
                varint();
                break;
            case 1:
                take(8);
                break;
            case 2:
                take(varint());
                break;
            case 5:
                take(4);
                break;
            default:
                fail("a field of a known wire type");
        }
    }

    std::string_view message_;
    std::string where_;
    std::size_t base_;  ///< the message's place in the file
    std::size_t at_ = 0;
    uint64_t field_ = 0;
    unsigned type_ = 0;
    bool pending_ = false;  ///< the value of the current field was not read yet
};

}  // namespace unsloth::tokenizer
