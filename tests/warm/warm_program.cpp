// The program, with the engine's libraries loaded before it is asked for: loading them takes a third of a second, which
// end-to-end tests would spend some thousand times. `unsloth-train-warm --serve FD` reads requests from a socket,
// answers each with a forked copy of itself that runs main() as exec would, and sends its wait status. A request
// without arguments asks for a copy that reads requests from the first of its streams (tests/e2e/warm.py).
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "unsloth/core/host.h"

int program_main(int argc, char** argv);  // main() of src/app/main.cpp, renamed for this executable

namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const char* what) {
    std::perror(what);
    std::_Exit(125);
}

/// One request: its length, its JSON text and the three standard streams. False when the other end is closed.
bool receive(int socket, Json& request, int (&streams)[3]) {
    uint32_t length = 0;
    iovec part{&length, sizeof length};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof streams)];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket, &message, MSG_WAITALL);
    if (got == 0) return false;
    const cmsghdr* const descriptors = CMSG_FIRSTHDR(&message);
    if (got != sizeof length || descriptors == nullptr) fail("request");
    std::copy_n(CMSG_DATA(descriptors), sizeof streams, reinterpret_cast<unsigned char*>(streams));
    std::string text(length, '\0');
    if (::recv(socket, text.data(), text.size(), MSG_WAITALL) != static_cast<ssize_t>(length)) fail("request");
    request = Json::parse(text);
    return true;
}

[[noreturn]] void run_program(const Json& request, const int (&streams)[3]) {
    for (int i = 0; i < 3; ++i)
        if (::dup2(streams[i], i) < 0) fail("dup2");
    for (const int stream : streams) ::close(stream);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::chdir(request.at("cwd").get<std::string>().c_str()) != 0) fail("chdir");
    ::clearenv();
    for (const auto& [name, value] : request.at("env").items())
        ::setenv(name.c_str(), value.get<std::string>().c_str(), 1);
    auto words = request.at("arguments").get<std::vector<std::string>>();
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int code = program_main(static_cast<int>(words.size()), arguments.data());
    // Without the destructors of LibTorch: in a forked copy they take longer than all the rest of a short run.
    std::cout.flush();
    std::fflush(nullptr);
    std::_Exit(code);
}

bool load_engine() {
    const auto engine = unsloth::own_executable().parent_path() / "libunsloth_engine.so";
    if (::dlopen(engine.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return true;
    std::fprintf(stderr, "%s\n", ::dlerror());
    return false;
}

/// Answers requests until the other end of the socket is closed.
int serve(int socket) {
    Json request;
    int streams[3];
    while (receive(socket, request, streams)) {
        const pid_t child = ::fork();
        if (child < 0) fail("fork");
        const bool is_copy = !request.contains("arguments");
        if (child == 0) {
            ::close(socket);
            if (!is_copy) run_program(request, streams);
            ::close(streams[1]);
            ::close(streams[2]);
            std::_Exit(serve(streams[0]));
        }
        for (const int stream : streams) ::close(stream);
        if (is_copy) continue;
        int32_t answer[2] = {child, 0};
        if (::send(socket, &answer[0], sizeof answer[0], MSG_NOSIGNAL) < 0) return 0;
        while (::waitpid(child, &answer[1], 0) < 0 && errno == EINTR) {
        }
        if (::send(socket, &answer[1], sizeof answer[1], MSG_NOSIGNAL) < 0) return 0;
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 3 && std::string(argv[1]) == "--serve") return load_engine() ? serve(std::atoi(argv[2])) : 125;
    return program_main(argc, argv);  // `launch` starts its ranks by this executable's path
}
