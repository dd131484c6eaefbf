// Rewards of HTTP servers, which are Python's here.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <nlohmann/json.hpp>

#include "reward/process.h"
#include "unsloth/core/error.h"
#include "unsloth/reward/rewards.h"

namespace unsloth::reward {
namespace {

using nlohmann::json;

/// Answers as the path says, writes a line with the path of each request to descriptor 3, ends with its other end.
constexpr const char* server_text = R"(
import http.server, json, os, socket, sys, threading, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        os.write(3, self.path.encode() + b"\n")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Content-Type"] == "application/json"
        status, answer = 200, getattr(self, "at_" + self.path[1:])(body)
        if isinstance(answer, tuple):
            status, answer = answer
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/score")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def at_score(self, body):
        assert body["prompts"] == ["prompt 0", "prompt 1"] and body["trainer_state"]["global_step"] == 4, body
        rewards = [len(i) + a for i, a in zip(body["completion_ids"], body["columns"]["answer"])]
        return {"rewards": rewards, "metrics": {"m": 3}, "extra": {"c": body["completions"]}}
    def at_list(self, body): return [True, None]
    def at_openrlhf(self, body):
        assert body["query"] == [p + "text" for p in body["prompts"]], body
        return {"rewards": body["labels"], "scores": [0, 0], "extra_logs": {"x": 1}}
    def at_slime(self, body):
        assert body["response"] == "text", body
        return {"score": body["label"]} if body["prompt"] == "prompt 0" else body["label"]
    def at_hang(self, body): time.sleep(1000)
    def at_error(self, body): return 500, b"no \x1b luck"
    def at_elsewhere(self, body): return 302, {}
    def at_garbage(self, body): return b"{"
    def at_wrong(self, body): return {"rewards": [1, "x"]}
    def log_message(self, *ignored): pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
os.write(3, b"%d\n" % server.server_port)
while os.read(3, 1): pass
)";

class Server {
  public:
    explicit Server(int port = 0)
        : process_({{"python3", "-c", server_text, std::to_string(port)}, {"PATH=/usr/bin:/bin"}, "/", true, 0}),
          port_(std::stoi(line())) {}

    std::string url(const std::string& path) const { return cat("http://127.0.0.1:", port_, path); }
    /// The next line that it wrote.
    std::string line() {
        while (text_.find('\n') == std::string::npos) {
            pollfd one{process_.from(), POLLIN, 0};
            ::poll(&one, 1, -1);
            char block[256];
            const ssize_t got = ::read(process_.from(), block, sizeof block);
            if (got == 0) throw std::runtime_error("the server ended");
            if (got > 0) text_.append(block, static_cast<std::size_t>(got));
        }
        const std::string first = text_.substr(0, text_.find('\n'));
        text_.erase(0, first.size() + 1);
        return first;
    }
    bool asked_again() const { return !text_.empty(); }

  private:
    Process process_;
    std::string text_;
    int port_;
};

Batch two_rows() {
    Batch batch;
    batch.prompts = {"prompt 0", "prompt 1"};
    batch.completions = {"text", "text"};
    batch.completion_ids = {{1}, {1, 2}};
    batch.columns = {{"answer", {5, 6}}};
    batch.trainer_state.global_step = 4;
    return batch;
}

Scored asked(const json& entry) {
    return Rewards(json::array({entry}), {}).score(two_rows());
}

std::string refused(const json& entry) {
    try {
        asked(entry);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::runtime);
        return error.what();
    }
    return "no error";
}

TEST(RewardServers, AreAskedInTheStylesOfOthers) {
    Server server;
    const Scored scored = asked({{"http", server.url("/score")}});
    EXPECT_EQ(scored.scores[0], (Scores{6, 8}));
    EXPECT_EQ(scored.metrics.at(0), (std::pair<std::string, std::optional<double>>("m", 3.0)));
    EXPECT_EQ(scored.extra.at(0), (Column{"c", {"text", "text"}}));
    EXPECT_EQ(asked({{"http", server.url("/list")}}).scores[0], (Scores{1, std::nullopt}));
    EXPECT_EQ(asked({{"http", server.url("/openrlhf")}, {"style", "openrlhf"}}).scores[0], (Scores{5, 6}));
    EXPECT_EQ(asked({{"http", server.url("/slime")}, {"style", "slime"}, {"label", "answer"}}).scores[0],
              (Scores{5, 6}));
}

TEST(RewardServers, AreAskedOnceWhateverTheyAnswer) {
    Server server;
    for (const auto& [path, words] :
         std::vector<std::pair<std::string, std::string>>{{"/error", R"(HTTP 500: 'no \x1b luck')"},
                                                          {"/elsewhere", "HTTP 302"},
                                                          {"/garbage", "no JSON: '{'"},
                                                          {"/wrong", "returned \"x\" for row 1"},
                                                          {"/hang", "did not answer in time"}}) {
        const std::string error = refused({{"http", server.url(path)}, {"timeout", path == "/hang" ? 0.2 : 30.0}});
        EXPECT_NE(error.find(words), std::string::npos) << error;
        EXPECT_EQ(server.line(), path);
        EXPECT_FALSE(server.asked_again());
    }
}

TEST(RewardServers, AreWaitedForUntilTheyListen) {
    Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    const int port = ntohs(address.sin_port);
    const std::string url = cat("http://127.0.0.1:", port, "/score");
    // Bound, but it does not listen: connections are refused.
    const std::string error = refused({{"http", url}, {"timeout", 0.15}});
    EXPECT_NE(error.find(url), std::string::npos) << error;
    auto scored = std::async(std::launch::async, [&] { return asked({{"http", url}}); });
    listener.close();
    Server server(port);
    EXPECT_EQ(scored.get().scores[0], (Scores{6, 8}));
}

}  // namespace
}  // namespace unsloth::reward
