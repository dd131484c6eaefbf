#include "comm/rendezvous.h"

#include <c10/util/Flags.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <thread>

#include "unsloth/core/error.h"
#include "unsloth/core/hex.h"
#include "unsloth/core/log.h"

C10_DECLARE_int(caffe2_log_level);

namespace unsloth::comm {
namespace {

constexpr milliseconds pause(50), answer(1000);

std::string place_of(const LaunchEnvironment& e) {
    return cat(e.master_address, ":", e.master_port);
}

Error not_reached(const LaunchEnvironment& e) {
    return Error("rank.no-rendezvous",
                 cat("rank ", e.rank, " did not reach rank 0's store at ", place_of(e), " in time"),
                 "Is rank 0 running, and does MASTER_ADDR name a host that this machine can reach?");
}

/// c10d's client pauses longer and longer between its attempts: it, and ours, start when there is something to reach.
Socket reach(const LaunchEnvironment& e, Clock::time_point give_up, Address& address) {
    for (;;) {
        auto [socket, found] = connect_to(e.master_address, e.master_port, answer);
        address = found;
        if (socket.open()) return std::move(socket);
        if (Clock::now() >= give_up) throw not_reached(e);
        std::this_thread::sleep_for(pause);
    }
}

// --- torchrun's agent ----------------------------------------------------------------------------------------------

constexpr const char* note_key = "unsloth-train/store/";

c10::intrusive_ptr<c10d::Store> agents_store(const LaunchEnvironment& e, Clock::time_point give_up) {
    // What c10d prints about a store that does not answer, with its own stack, is said by our errors.
    if (log::level() > log::Level::debug) FLAGS_caffe2_log_level = 3;  // fatal ones alone
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(e.master_port);
    options.isServer = false;
    options.waitWorkers = false;
    options.timeout =
        std::chrono::duration_cast<milliseconds>(std::max(give_up - Clock::now(), Clock::duration(pause)));
    return c10::make_intrusive<c10d::TCPStore>(e.master_address, options);
}

/// "HOST PORT MAC": anybody may write into the agent's store.
std::string note_of(const LaunchEnvironment& e, const std::string& host, int port) {
    const std::string place = cat(host, " ", port);
    const Digest mac = Hmac(bytes_of(e.secret)).add(bytes_of(cat("place\n", e.restarts, "\n", place))).finish();
    return cat(place, " ", hex(std::as_bytes(std::span(mac))));
}

void leave_note(const LaunchEnvironment& e, int port, Clock::time_point give_up) {
    Address agent;
    const Socket to_agent = reach(e, give_up, agent);
    // Others reach this machine at the address that the agent sees; on the agent's own machine at the agent's own name.
    const Address own = own_address(to_agent);
    const std::string host = e.one_machine ? "127.0.0.1" : is_loopback(own) ? e.master_address : host_of(own);
    agents_store(e, give_up)->set(cat(note_key, e.restarts), note_of(e, host, port));
}

LaunchEnvironment read_note(const LaunchEnvironment& e, Clock::time_point give_up) {
    Address agent;
    reach(e, give_up, agent);
    const auto store = agents_store(e, give_up);
    LaunchEnvironment announced = e;
    for (bool found = false; !found;) {
        if (Clock::now() >= give_up)
            throw Error("rank.no-rendezvous",
                        cat("torchrun's store at ", place_of(e), " does not say where rank 0's store is"),
                        "Is rank 0 running, and is UNSLOTH_SECRET the same for all ranks?");
        const std::string key = cat(note_key, e.restarts);
        if (store->check({key})) {
            const std::vector<uint8_t> note = store->get(key);
            std::istringstream words(std::string(note.begin(), note.end()).substr(0, 512));
            words >> announced.master_address >> announced.master_port;
            found =
                note_of(e, announced.master_address, announced.master_port) == std::string(note.begin(), note.end());
        }
        if (!found) std::this_thread::sleep_for(pause);
    }
    return announced;
}

// --- both ends -----------------------------------------------------------------------------------------------------

std::unique_ptr<StoreServer> serve(const LaunchEnvironment& e) {
    const int port = e.agent_hosts_store ? 0 : e.master_port;
    try {
        Socket listening = e.store_fd >= 0 ? Socket(e.store_fd) : listen_at(port, /*anywhere=*/!e.one_machine);
        return std::make_unique<StoreServer>(
            std::move(listening), StoreServer::Settings{e.secret, e.world_size, e.restarts, /*seals=*/!e.one_machine});
    } catch (const std::exception& error) {
        throw Error("network.port", cat("rank 0 cannot serve the ranks' store at port ", port, ": ", error.what()),
                    "Is another run using the port? Choose another MASTER_PORT.");
    }
}

}  // namespace

Rendezvous meet(const LaunchEnvironment& e, Clock::time_point give_up, std::unique_ptr<StoreServer>& server) {
    Rendezvous rendezvous;
    rendezvous.rank = static_cast<uint32_t>(e.rank);
    rendezvous.size = static_cast<uint32_t>(e.world_size);
    rendezvous.run = static_cast<uint32_t>(e.restarts);
    rendezvous.secret = e.secret;
    try {
        if (e.rank == 0) {
            server = serve(e);
            rendezvous.address = loopback(server->port());
            if (e.agent_hosts_store) leave_note(e, server->port(), give_up);
            return rendezvous;
        }
        const LaunchEnvironment there = e.agent_hosts_store ? read_note(e, give_up) : e;
        if (e.one_machine)
            rendezvous.address = loopback(there.master_port);
        else
            reach(there, give_up, rendezvous.address);
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {
        log::debug("torchrun's store: ", error.what());
        throw Error("rank.no-rendezvous", cat("rank ", e.rank, " cannot use torchrun's store at ", place_of(e)));
    }
    return rendezvous;
}

}  // namespace unsloth::comm
