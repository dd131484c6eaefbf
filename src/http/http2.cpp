// HTTP/2 on one connection, by nghttp2: it keeps the protocol and its limits against floods; exchanges are ours.
#include "http/http2.h"

#include <algorithm>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::http {

template <class Call>
int Http2::guarded(void* user, const Call& call) {
    try {
        return call(*static_cast<Http2*>(user));
    } catch (const std::exception& error) {
        log::error("http: an HTTP/2 connection failed: ", error.what());
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
}

static std::string_view view(const uint8_t* bytes, size_t size) {
    return {reinterpret_cast<const char*>(bytes), size};
}

nghttp2_session_callbacks* Http2::callbacks() {
    nghttp2_session_callbacks* made = nullptr;
    UNSLOTH_CHECK(::nghttp2_session_callbacks_new(&made) == 0, "no memory");
    ::nghttp2_session_callbacks_set_on_begin_headers_callback(
        made, [](nghttp2_session*, const nghttp2_frame* frame, void* user) {
            return guarded(user, [&](Http2& self) { return self.begin_headers(*frame); });
        });
    ::nghttp2_session_callbacks_set_on_header_callback(
        made, [](nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_size,
                 const uint8_t* value, size_t value_size, uint8_t, void* user) {
            return guarded(
                user, [&](Http2& self) { return self.header(*frame, view(name, name_size), view(value, value_size)); });
        });
    ::nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        made, [](nghttp2_session*, uint8_t, int32_t id, const uint8_t* bytes, size_t size, void* user) {
            return guarded(user, [&](Http2& self) { return self.data(id, view(bytes, size)); });
        });
    ::nghttp2_session_callbacks_set_on_frame_recv_callback(
        made, [](nghttp2_session*, const nghttp2_frame* frame, void* user) {
            return guarded(user, [&](Http2& self) { return self.frame_received(*frame); });
        });
    ::nghttp2_session_callbacks_set_on_frame_send_callback(
        made, [](nghttp2_session*, const nghttp2_frame* frame, void* user) {
            return guarded(user, [&](Http2& self) { return self.frame_sent(*frame); });
        });
    ::nghttp2_session_callbacks_set_on_stream_close_callback(
        made, [](nghttp2_session*, int32_t id, uint32_t, void* user) {
            return guarded(user, [&](Http2& self) { return self.stream_closed(id); });
        });
    return made;
}

Http2::Http2(Shared& shared, Carrier& carrier, std::string peer)
    : shared_(shared), carrier_(carrier), peer_(std::move(peer)) {
    nghttp2_option* option = nullptr;
    UNSLOTH_CHECK(::nghttp2_option_new(&option) == 0, "no memory");
    ::nghttp2_option_set_max_outbound_ack(option, 1000);  // PING and SETTINGS floods
    ::nghttp2_option_set_max_settings(option, 32);        // entries of one frame
    ::nghttp2_option_set_stream_reset_rate_limit(option, reset_burst, resets_per_second);
    nghttp2_session_callbacks* made = callbacks();
    const int status = ::nghttp2_session_server_new2(&session_, made, this, option);
    ::nghttp2_session_callbacks_del(made);
    ::nghttp2_option_del(option);
    UNSLOTH_CHECK(status == 0, ::nghttp2_strerror(status));
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, static_cast<uint32_t>(shared.options.streams)},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<uint32_t>(shared.options.header_bytes)},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, stream_window},
    };
    ::nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
    ::nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, connection_window);
    if (shared.draining) go_away();
}

Http2::~Http2() {
    close();
    ::nghttp2_session_del(session_);
}

Stream* Http2::find(int32_t id) {
    const auto found = streams_.find(id);
    return found == streams_.end() ? nullptr : &found->second;
}

int Http2::begin_headers(const nghttp2_frame& frame) {
    if (frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST) {
        streams_.try_emplace(frame.hd.stream_id, shared_).first->second.request.peer = peer_;
    }
    return 0;
}

int Http2::header(const nghttp2_frame& frame, std::string_view name, std::string_view value) {
    Stream* stream = find(frame.hd.stream_id);
    if (stream == nullptr || stream->refusal.status != 0) return 0;
    Request& request = stream->request;
    stream->header_bytes += name.size() + value.size() + 32;  // as RFC 9113 counts them
    if (stream->header_bytes > shared_.options.header_bytes || request.headers.size() == most_fields_h2) {
        refuse(*stream, frame.hd.stream_id, 431, "the header is too large");
        return 0;
    }
    if (frame.headers.cat != NGHTTP2_HCAT_REQUEST) return 0;  // trailers
    if (name == ":method")
        request.method = value;
    else if (name == ":authority")
        request.headers.emplace_back("host", value);
    else if (name == ":path") {
        if (!split_target(value, request.path, request.query))
            refuse(*stream, frame.hd.stream_id, 400, "the path is malformed");
    } else if (name == "host" && !request.headers.empty() && request.headers[0].first == "host") {
        if (request.headers[0].second != value)
            refuse(*stream, frame.hd.stream_id, 400, "there must be one valid Host field");
    } else if (name[0] != ':')
        request.headers.emplace_back(name, value);
    return 0;
}

int Http2::data(int32_t id, std::string_view bytes) {
    Stream* stream = find(id);
    if (stream == nullptr || stream->refusal.status != 0) return 0;
    stream->body_bytes += bytes.size();
    std::string& kept = stream->in_pieces ? stream->piece : stream->request.body;
    if (stream->body_bytes > shared_.options.body_bytes) {
        refuse(*stream, id, 413, "the body is too large");
    } else if (!stream->held.set(stream->header_bytes + kept.size() + bytes.size())) {
        refuse(*stream, id, 503, too_much_held);
    } else {
        kept.append(bytes);
        if (stream->in_pieces) ready_.push_back(id);
    }
    return 0;
}

int Http2::frame_received(const nghttp2_frame& frame) {
    if (frame.hd.type != NGHTTP2_HEADERS && frame.hd.type != NGHTTP2_DATA) return 0;
    Stream* stream = find(frame.hd.stream_id);
    if (stream == nullptr || stream->refusal.status != 0) return 0;
    const bool is_head = frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST;
    if (is_head && stream->request.path.empty()) {
        refuse(*stream, frame.hd.stream_id, 501, "this server is no proxy");
        return 0;
    }
    if (is_head && shared_.options.takes_pieces) stream->in_pieces = shared_.options.takes_pieces(stream->request);
    stream->body_ends = (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (stream->body_ends || (is_head && stream->in_pieces))
        ready_.push_back(frame.hd.stream_id);
    else if (!stream->in_pieces && !stream->held.set(stream->header_bytes + stream->request.body.size()))
        refuse(*stream, frame.hd.stream_id, 503, too_much_held);
    return 0;
}

/// nghttp2 limits the client's own resets. This limits those that the client's errors cause (CVE-2025-8671).
void Http2::count_client_error() {
    const std::chrono::duration<double> since = Clock::now() - std::exchange(last_client_error_, Clock::now());
    client_errors_left_ = std::min<double>(client_errors_left_ + since.count() * resets_per_second, reset_burst) - 1;
    if (client_errors_left_ < 0) failed_ = true;
}

/// An answered request may still be on its way; the client shall stop sending it (RFC 9113, 8.1).
int Http2::frame_sent(const nghttp2_frame& frame) {
    if (frame.hd.type == NGHTTP2_RST_STREAM && frame.rst_stream.error_code != NGHTTP2_NO_ERROR &&
        frame.rst_stream.error_code != NGHTTP2_INTERNAL_ERROR)
        count_client_error();
    if ((frame.hd.type != NGHTTP2_HEADERS && frame.hd.type != NGHTTP2_DATA) ||
        (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
        return 0;
    if (const Stream* stream = find(frame.hd.stream_id);
        stream != nullptr && (stream->refusal.status != 0 || (stream->in_pieces && !stream->body_ends)))
        ::nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, frame.hd.stream_id, NGHTTP2_NO_ERROR);
    return 0;
}

int Http2::stream_closed(int32_t id) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return 0;
    if (found->second.exchange) left_.push_back(std::move(found->second.exchange));
    streams_.erase(found);
    if (streams_.empty()) idle_since_ = Clock::now();
    return 0;
}

void Http2::refuse(Stream& stream, int32_t id, int status, const char* message) {
    stream.refusal = {status, message};
    const bool is_head = stream.request.method == "HEAD";
    stream.request = {};
    if (is_head) stream.request.method = "HEAD";
    if (!stream.complete) stream.in_pieces = false;  // no handler has it
    stream.piece.clear();
    stream.held.set(0);
    ready_.push_back(id);
}

size_t Http2::receive(std::string_view bytes) {
    const auto taken =
        ::nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    if (taken < 0) {
        log::debug("http: ", peer_, ": ", ::nghttp2_strerror(static_cast<int>(taken)));
        failed_ = true;
    }
    settle();
    return bytes.size();
}

/// What came of a body whose exchange takes it in pieces.
void Http2::hand_over(Stream& stream, int32_t id) {
    stream.held.set(0);
    if (stream.refusal.status != 0) return drop(stream, id);
    stream.exchange->body(std::exchange(stream.piece, {}), stream.body_ends);
}

/// Calls the handler and on_gone's functions, outside nghttp2's callbacks.
void Http2::settle() {
    for (const int32_t id : std::exchange(ready_, {})) {
        Stream* stream = find(id);
        if (stream == nullptr || failed_) continue;
        if (stream->complete) {
            if (stream->exchange && stream->in_pieces) hand_over(*stream, id);
            continue;
        }
        stream->complete = true;
        stream->held.set(0);
        stream->progress = Clock::now();
        const bool head_only = stream->request.method == "HEAD";
        stream->exchange =
            stream->refusal.status != 0
                ? refuse_exchange(shared_, carrier_, id, head_only, stream->refusal.status, stream->refusal.message)
                : start_exchange(shared_, carrier_, id, std::exchange(stream->request, {}));
        if (stream->in_pieces && (!stream->piece.empty() || stream->body_ends)) hand_over(*stream, id);
    }
    for (const auto& exchange : std::exchange(left_, {})) exchange->leave();
}

void Http2::changed(Exchange& exchange) {
    Stream* stream = find(exchange.stream());
    if (stream == nullptr || stream->exchange.get() != &exchange) return;
    if (exchange.broken()) return drop(*stream, exchange.stream());
    if (auto head = exchange.take_head())
        submit(exchange, std::move(*head));
    else
        ::nghttp2_session_resume_data(session_, exchange.stream());
}

void Http2::drop(Stream& stream, int32_t id) {
    ::nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, id, NGHTTP2_INTERNAL_ERROR);
    if (const auto exchange = std::exchange(stream.exchange, nullptr)) exchange->leave();
}

static std::vector<nghttp2_nv> field_list(const Headers& headers) {
    std::vector<nghttp2_nv> list;
    for (const auto& [name, value] : headers) {
        // nghttp2 copies them; its interface has them without const.
        list.push_back({reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
                        reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
                        NGHTTP2_NV_FLAG_NONE});
    }
    return list;
}

void Http2::submit(Exchange& exchange, Head head) {
    Headers fields{{":status", std::to_string(head.status)}, {"date", date_now()}};
    for (auto& field : head.headers)
        if (!is_connection_field(field.first)) fields.push_back(std::move(field));
    const bool bodiless = exchange.head_only() || head.status == 204 || head.status == 304;
    if (head.length && head.status != 204 && head.status != 304)
        fields.emplace_back("content-length", std::to_string(*head.length));
    const auto list = field_list(fields);
    nghttp2_data_provider body{};
    body.read_callback = [](nghttp2_session*, int32_t id, uint8_t* buffer, size_t size, uint32_t* flags,
                            nghttp2_data_source*, void* user) -> ssize_t {
        ssize_t count = 0;
        const int status = guarded(user, [&](Http2& self) {
            count = self.read(id, buffer, size, flags);
            return 0;
        });
        return status == 0 ? count : status;
    };
    const bool empty = bodiless || (head.length && *head.length == 0);
    const int status =
        ::nghttp2_submit_response(session_, exchange.stream(), list.data(), list.size(), empty ? nullptr : &body);
    if (status != 0) log::error("http: an answer cannot be sent: ", ::nghttp2_strerror(status));
}

ssize_t Http2::read(int32_t id, uint8_t* buffer, size_t size, uint32_t* flags) {
    Stream* stream = find(id);
    if (stream == nullptr || !stream->exchange || stream->exchange->broken())
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    std::string piece;
    const bool end = stream->exchange->read(piece, size);
    std::memcpy(buffer, piece.data(), piece.size());
    stream->progress = Clock::now();
    if (!end) return piece.empty() ? ssize_t{NGHTTP2_ERR_DEFERRED} : static_cast<ssize_t>(piece.size());
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (const Headers trailers = stream->exchange->take_trailers(); !trailers.empty()) {
        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        const auto list = field_list(trailers);
        ::nghttp2_submit_trailer(session_, id, list.data(), list.size());
    }
    return static_cast<ssize_t>(piece.size());
}

void Http2::fill(std::string& out) {
    while (!failed_ && out.size() < high_water) {
        const uint8_t* bytes = nullptr;
        const auto count = ::nghttp2_session_mem_send(session_, &bytes);
        if (count < 0) failed_ = true;
        if (count <= 0) break;
        out += view(bytes, static_cast<size_t>(count));
    }
    settle();
}

void Http2::close() {
    failed_ = true;
    for (auto& [id, stream] : streams_)
        if (stream.exchange) left_.push_back(std::move(stream.exchange));
    streams_.clear();
    settle();
}

void Http2::go_away() {
    if (std::exchange(leaving_, true)) return;
    ::nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, ::nghttp2_session_get_last_proc_stream_id(session_),
                            NGHTTP2_NO_ERROR, nullptr, 0);
}

void Http2::check_time(Clock::time_point now) {
    const auto& options = shared_.options;
    if (streams_.empty() && now - idle_since_ > options.idle_time) {
        if (leaving_) failed_ = true;
        go_away();
    }
    for (auto& [id, stream] : streams_) {
        if (!stream.complete && stream.refusal.status == 0) {
            if (now - stream.progress > options.header_time + options.body_time)
                refuse(stream, id, 408, "the request took too long to arrive");
        } else if (stream.exchange && now - stream.progress > options.idle_time && stream.exchange->available() > 0) {
            drop(stream, id);
        }
    }
    settle();
}

std::unique_ptr<Protocol> make_http2(Shared& shared, Carrier& carrier, std::string peer) {
    return std::make_unique<Http2>(shared, carrier, std::move(peer));
}

}  // namespace unsloth::http
