#include "app/launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/utf8.h"

namespace unsloth::app {
namespace {

using std::chrono::milliseconds;

// `timeout` and service managers signal a process and its group: the same request, twice within milliseconds.
constexpr auto one_request = milliseconds(200);
// What a rank's own children still write after its end.
constexpr auto last_words = milliseconds(500);

/// At the latest so long from now.
void bring_forward(Supervisor::Clock::time_point& deadline, milliseconds from_now) {
    deadline = std::min(deadline, Supervisor::Clock::now() + from_now);
}

RankEnd end_of(int rank, const siginfo_t& info) {
    RankEnd end;
    end.rank = rank;
    end.pid = info.si_pid;
    end.signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
    end.code = end.signal != 0 ? 128 + end.signal : info.si_status;
    end.when = Supervisor::Clock::now();
    return end;
}

}  // namespace

SignalInbox::SignalInbox() {
    sigset_t ours;
    sigemptyset(&ours);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) sigaddset(&ours, signal);
    for (const int signal : {SIGHUP, SIGTSTP}) {  // under nohup SIGHUP stays ignored, here and in the ranks
        struct sigaction present{};
        ::sigaction(signal, nullptr, &present);
        if (present.sa_handler != SIG_IGN) sigaddset(&ours, signal);
    }
    struct sigaction ignore{};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignore, &pipe_before_);
    struct sigaction usual{};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual,
                &child_before_);  // where the parent ignores it, ranks would vanish without a word about their end
    ::sigprocmask(SIG_BLOCK, &ours, &before_);
    fd_ = Descriptor(::signalfd(-1, &ours, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!fd_.open()) throw Error("process.system-call", cat("cannot receive signals: ", std::strerror(errno)));
}

SignalInbox::~SignalInbox() {
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    ::sigaction(SIGPIPE, &pipe_before_, nullptr);
    ::sigaction(SIGCHLD, &child_before_, nullptr);
}

int SignalInbox::take() {
    signalfd_siginfo info;
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

void Supervisor::add(int number, RunningProcess process, const std::string& prefix, bool shown) {
    Rank rank{number, process.pid};
    rank.shown = shown;
    if (process.out.open()) rank.streams.push_back({std::move(process.out), LineCutter(prefix), &out_});
    if (process.err.open()) rank.streams.push_back({std::move(process.err), LineCutter(prefix), &err_});
    ranks_.push_back(std::move(rank));
}

void Supervisor::listen(Descriptor ranks) {
    reports_ = std::move(ranks);
    ::fcntl(reports_.get(), F_SETFL, ::fcntl(reports_.get(), F_GETFL) | O_NONBLOCK);
    heard_.clear();
    stepping_ = false;
}

std::vector<RankEnd> Supervisor::run() {
    ends_.clear();
    deadlines_ = {};
    failed_ = lost_ = terminated_ = killed_ = left_one_ = false;
    while (any_left()) {
        wait_for_events(std::min({deadlines_.terminate, deadlines_.kill, deadlines_.leave}));
        handle_signals();
        bury();
        enforce_deadlines();
    }
    const auto give_up = Clock::now() + last_words;
    while (any_stream() && Clock::now() < give_up && !leaving_) wait_for_events(give_up);
    for (Rank& rank : ranks_)
        for (Stream& stream : rank.streams) {
            std::string rest;
            stream.cutter.finish(rest);
            if (rank.shown)
                stream.to->put(rest);
            else
                rank.unseen.add(rest);
        }
    const auto patience = leaving_ ? last_words : milliseconds(5000);
    out_.drain(Clock::now() + patience);
    err_.drain(Clock::now() + patience);
    return ends_;
}

void Supervisor::kill_all() {
    kill_ranks();
    while (any_left() && Clock::now() < deadlines_.leave) {
        wait_for_events(deadlines_.leave);
        handle_signals();
        bury();
    }
    ranks_.clear();
}

std::string Supervisor::unseen(int number) const {
    std::string text;
    for (const Rank& rank : ranks_)
        if (rank.number == number) text = rank.unseen.text();
    return text;
}

void Supervisor::say(const std::string& text) {
    err_.put(printable_message(cat("unsloth-train launch: ", text, "\n")));
    err_.write_some();
}

void Supervisor::wait_for_events(Clock::time_point until) {
    std::vector<pollfd> waits{{inbox_.fd(), POLLIN, 0}};
    if (reports_.open()) waits.push_back({reports_.get(), POLLIN, 0});
    for (Outlet* outlet : {&out_, &err_})
        if (outlet->waiting()) waits.push_back({outlet->fd(), POLLOUT, 0});
    for (const Rank& rank : ranks_)
        for (const Stream& stream : rank.streams)
            if (stream.from.open() && !stream.to->full()) waits.push_back({stream.from.get(), POLLIN, 0});
    if (::poll(waits.data(), waits.size(), milliseconds_to(until)) <= 0) return;
    read_reports();
    out_.write_some();
    err_.write_some();
    for (Rank& rank : ranks_)
        for (Stream& stream : rank.streams)
            if (stream.from.open() && !stream.to->full()) read_stream(rank, stream);
    out_.write_some();
    err_.write_some();
}

void Supervisor::read_reports() {
    if (!reports_.open()) return;
    char bytes[4096];
    const ssize_t got = ::read(reports_.get(), bytes, sizeof bytes);
    if (got == 0) reports_.close();
    if (got <= 0) return;
    heard_.append(bytes, static_cast<std::size_t>(got));
    for (std::size_t end; (end = heard_.find('\n')) != std::string::npos; heard_.erase(0, end + 1))
        hear(heard_.substr(0, end));
    if (heard_.size() > sizeof bytes) heard_.clear();  // no line of ours
}

void Supervisor::hear(const std::string& line) {
    constexpr std::string_view lost = "lost ";
    if (line == "step") stepping_ = true;
    if (!line.starts_with(lost)) return;
    int number = -1;
    const char* const end = line.data() + line.size();
    if (std::from_chars(line.data() + lost.size(), end, number).ptr == end) end_lost(number);
}

/// A rank without heartbeats does not save anything within a grace period. The others, which may wait for it within
/// a driver, have a deadline also where it is another machine's.
void Supervisor::end_lost(int number) {
    lost_ = true;
    bring_forward(deadlines_.kill, options_.after_loss);
    for (Rank& rank : ranks_) {
        if (rank.number != number || rank.state != Rank::State::running || rank.lost) continue;
        rank.lost = true;
        say(cat("rank ", number, " (pid ", rank.pid, ") sends no heartbeat, as the other ranks report; it is killed"));
        ::kill(-rank.pid, SIGKILL);
    }
}

void Supervisor::read_stream(Rank& rank, Stream& stream) {
    char bytes[64 << 10];
    const ssize_t got = ::read(stream.from.get(), bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    std::string lines;
    if (got > 0) {
        stream.cutter.feed({bytes, static_cast<std::size_t>(got)}, lines);
    } else {
        stream.cutter.finish(lines);
        stream.from.close();
    }
    if (rank.shown)
        stream.to->put(lines);
    else
        rank.unseen.add(lines);
}

void Supervisor::handle_signals() {
    while (const int signal = inbox_.take()) {
        if (signal == SIGCHLD) continue;  // bury() looks at every turn
        if (signal == SIGTSTP) {
            suspend();
            continue;
        }
        if (std::find(std::begin(stop_signals), std::end(stop_signals), signal) != std::end(stop_signals)) {
            handle_request(signal);
        } else {
            signal_ranks(signal);
        }
    }
}

void Supervisor::handle_request(int signal) {
    const auto now = Clock::now();
    if (asked_ == signal && now - asked_at_ < one_request) return;
    const bool again = asked_ != 0;
    asked_ = signal;
    asked_at_ = now;
    if (!again) {
        const std::chrono::duration<double> seconds = options_.until_stopped;
        say(cat("signal ", signal, " (", ::strsignal(signal), ") goes to all ranks, which stop in order within ",
                seconds.count(), " s, or are killed; once more ends them at once"));
        signal_ranks(signal);
        bring_forward(deadlines_.kill, options_.until_stopped);
        return;
    }
    leaving_ = true;
    kill_ranks();
}

/// Ctrl-Z reaches the launcher alone: ranks have process groups of their own. They stop with it, and continue with it.
void Supervisor::suspend() {
    signal_ranks(SIGSTOP);
    ::raise(SIGSTOP);
    signal_ranks(SIGCONT);
}

void Supervisor::bury() {
    for (Rank& rank : ranks_) {
        if (rank.state == Rank::State::orphans) {
            while (::waitpid(-rank.pid, nullptr, WNOHANG) > 0) {
            }  // they are this process' children where it is a container's first
            if (::kill(-rank.pid, 0) != 0) rank.state = Rank::State::ended;
        }
        siginfo_t info{};
        if (rank.state != Rank::State::running ||
            ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            continue;
        note_end(rank, end_of(rank.number, info));
    }
}

void Supervisor::note_end(Rank& rank, RankEnd end) {
    const bool escalated = terminated_ || killed_;
    const bool as_asked = end.signal != 0 && end.signal == asked_;
    end.stuck = end.signal == SIGKILL && (rank.lost || (lost_ && killed_));
    end.stopped_by_us = escalated || as_asked || rank.lost;
    // Not reaped yet, so no other group has this number: what a failed rank started must not keep its GPU.
    if (!in_order(end) && (!as_asked || escalated)) ::kill(-rank.pid, SIGKILL);
    ::waitpid(rank.pid, nullptr, 0);
    rank.state = as_asked && !escalated ? Rank::State::orphans : Rank::State::ended;
    ends_.push_back(end);
    if (in_order(end) || end.stopped_by_us || failed_ || escalated) return;
    failed_ = true;
    const auto grace = stepping_ ? options_.grace : std::min(options_.grace, options_.early_grace);
    bring_forward(deadlines_.terminate, grace);
    if (any_left())
        say(cat("rank ", end.rank, " (pid ", end.pid, ") ended with ", words(end), "; the others have ",
                std::chrono::duration<double>(grace).count(), " s to stop"));
}

void Supervisor::enforce_deadlines() {
    const auto now = Clock::now();
    if (now >= deadlines_.leave) {
        leave_ranks();
    } else if (now >= deadlines_.kill) {
        kill_ranks();
    } else if (now >= deadlines_.terminate) {
        signal_ranks(SIGTERM);
        terminated_ = true;
        deadlines_.terminate = Deadlines::never;
        bring_forward(deadlines_.kill, stepping_ ? options_.until_kill : options_.early_grace);
    }
}

void Supervisor::kill_ranks() {
    signal_ranks(SIGKILL);
    killed_ = true;
    deadlines_ = {};
    bring_forward(deadlines_.leave, options_.until_left);
}

void Supervisor::leave_ranks() {
    for (Rank& rank : ranks_) {
        if (rank.state == Rank::State::running) {
            say(cat("rank ", rank.number, " (pid ", rank.pid,
                    ") does not end, not even by SIGKILL: it waits within the kernel, as for its GPU's driver. It is "
                    "left there, and may hold its GPU"));
            ends_.push_back({.rank = rank.number,
                             .pid = rank.pid,
                             .code = 128 + SIGKILL,
                             .signal = SIGKILL,
                             .stopped_by_us = true,
                             .when = Clock::now(),
                             .stuck = true});
            left_one_ = true;
        }
        rank.state = Rank::State::ended;
        rank.streams.clear();
    }
}

// To the groups: a rank that a shell script started is reached too.
void Supervisor::signal_ranks(int signal) {
    for (const Rank& rank : ranks_)
        if (rank.state != Rank::State::ended) ::kill(-rank.pid, signal);
}

bool Supervisor::any(Rank::State state) const {
    return std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.state == state; });
}

bool Supervisor::any_stream() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
        return std::any_of(rank.streams.begin(), rank.streams.end(),
                           [](const Stream& stream) { return stream.from.open(); });
    });
}

int Supervisor::milliseconds_to(Clock::time_point until) const {
    constexpr int look_again = 50;  // no signal tells the end of orphans
    constexpr int at_most = 1000;   // should a thread of some library swallow a signal all the same
    const int longest = any(Rank::State::orphans) ? look_again : at_most;
    if (until == Deadlines::never) return longest;
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now()).count();
    return static_cast<int>(std::clamp<long>(left + 1, 0, longest));
}

}  // namespace unsloth::app
