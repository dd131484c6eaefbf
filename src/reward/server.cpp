#include "reward/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include "reward/keeper.h"
#include "unsloth/core/awake_clock.h"
#include "unsloth/core/error.h"
#include "unsloth/core/json_reader.h"
#include "unsloth/core/utf8.h"
#include "unsloth/hub/post.h"

namespace unsloth::reward {
namespace {

using nlohmann::json;
using Clock = AwakeClock;

constexpr std::chrono::milliseconds first_pause{100}, longest_pause{5'000};
constexpr std::size_t most_requests = 8;  // at the same time, of the style that asks row by row

std::string dumped(const json& value) {
    return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// How a server is asked.
struct Asking {
    const Entry& entry;
    Clock::time_point deadline;
    const std::function<bool()>& give_up;
};

/// The body of the answer as JSON.
json posted(const Asking& asking, const json& body) {
    const auto& [entry, deadline, give_up] = asking;
    const std::string& url = entry.url;
    hub::PostRequest request;
    request.url = url;
    request.stopped = give_up;
    request.body = dumped(body);
    for (auto pause = first_pause;; pause = std::min(pause * 2, longest_pause)) {
        request.timeout = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        if (request.timeout.count() <= 0) throw Failure(cat(url, " did not answer in time"));
        const hub::PostReply reply = hub::post(request);
        if (give_up && give_up()) throw GivenUp(cat("rewards: ", url, " is waited for no longer"));
        if (!reply.failure.empty()) {
            // Once the server has the request, asking again might make it work twice.
            const bool again = !reply.connected && !reply.timed_out && Clock::now() + pause < deadline;
            if (!again) throw Failure(cat(url, reply.timed_out ? " did not answer in time: " : ": ", reply.failure));
            std::this_thread::sleep_for(pause);
            continue;
        }
        if (reply.status < 200 || reply.status >= 300)
            throw Failure(cat(url, ": HTTP ", reply.status, ": ", escaped(reply.body)));
        json answer = json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
        if (answer.is_discarded()) throw Failure(cat(url, " sent what is no JSON: ", escaped(reply.body)));
        return answer;
    }
}

Answer of_openrlhf(const Asking& asking, const Batch& batch) {
    const std::vector<std::string> prompts = prompt_texts(batch);
    json body{{"query", json::array()}, {"prompts", prompts}, {"labels", labels_of(batch, asking.entry.label)}};
    for (std::size_t i = 0; i < prompts.size(); ++i)
        body["query"].push_back(prompts[i] + repair_utf8(batch.completions[i]));
    const json reply = posted(asking, body);
    if (!reply.is_object()) throw Failure(cat("returned ", shown(reply), ", not an object with 'rewards'"));
    Answer answer = read_answer({{"rewards", reply.value("rewards", json())}}, prompts.size());
    if (reply.contains("extra_logs") && reply["extra_logs"].is_object()) {
        for (const auto& [name, value] : reply["extra_logs"].items()) {
            if (value.is_number())
                answer.metrics.emplace_back(name, value.get<double>());
            else if (value.is_array() && value.size() == prompts.size())
                answer.extra.emplace_back(name, value.get<std::vector<json>>());
        }
    }
    return answer;
}

/// A request a row; the answer is a number, or an object with one as score or reward.
Answer of_slime(const Asking& asking, const Batch& batch) {
    const std::vector<std::string> prompts = prompt_texts(batch);
    const std::vector<json> labels = labels_of(batch, asking.entry.label);
    Answer answer;
    answer.scores.resize(prompts.size());
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;
    std::exception_ptr failure;
    const auto work = [&] {
        for (std::size_t row = next++; row < prompts.size(); row = next++) {
            try {
                const json reply = posted(asking, {{"prompt", prompts[row]},
                                                   {"response", repair_utf8(batch.completions[row])},
                                                   {"label", labels[row]}});
                json value = reply;
                for (const char* const key : {"reward", "score"})
                    if (reply.is_object() && reply.contains(key)) value = reply[key];
                answer.scores[row] = read_rewards(json::array({value}), 1).front();
            } catch (const Failure& error) {
                const std::lock_guard lock(mutex);
                if (!failure) failure = std::make_exception_ptr(Failure(error.what(), row));
                next = prompts.size();
            } catch (...) {
                const std::lock_guard lock(mutex);
                failure = std::current_exception();
                next = prompts.size();
            }
        }
    };
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < std::min(most_requests, prompts.size()); ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    if (failure) std::rethrow_exception(failure);
    return answer;
}

}  // namespace

std::vector<std::string> prompt_texts(const Batch& batch) {
    if (!batch.prompt_texts.empty()) return batch.prompt_texts;
    std::vector<std::string> texts;
    for (const json& prompt : batch.prompts)
        texts.push_back(prompt.is_string() ? prompt.get<std::string>() : dumped(prompt));
    return texts;
}

std::vector<json> labels_of(const Batch& batch, const std::string& label) {
    static constexpr std::array usual{"label", "labels", "ground_truth", "answer", "solution"};
    const auto column = [&](std::string_view name) { return std::ranges::find(batch.columns, name, &Column::first); };
    if (!label.empty()) {
        if (column(label) == batch.columns.end()) throw Failure(cat("the data has no column '", label, "'"));
        return column(label)->second;
    }
    for (const char* const name : usual)
        if (column(name) != batch.columns.end()) return column(name)->second;
    return std::vector<json>(batch.completions.size());
}

std::string rows_json(const Batch& batch, std::size_t first, std::size_t last) {
    const auto part = [&](const auto& values) {
        json list = json::array();
        for (std::size_t i = first; i < std::min(last, values.size()); ++i) list.push_back(values[i]);
        return list;
    };
    json columns = json::object();
    for (const auto& [name, values] : batch.columns) columns[name] = part(values);
    json completions = json::array();
    for (std::size_t i = first; i < last; ++i) completions.push_back(repair_utf8(batch.completions[i]));
    const TrainerState& state = batch.trainer_state;
    const json rows{{"prompts", part(batch.prompts)},
                    {"texts", part(prompt_texts(batch))},
                    {"completions", completions},
                    {"columns", columns},
                    {"trainer_state",
                     {{"global_step", state.global_step},
                      {"max_steps", state.max_steps},
                      {"epoch", state.epoch},
                      {"num_train_epochs", state.num_train_epochs}}}};
    const std::string text = dumped(rows);
    return text.substr(1, text.size() - 2);
}

std::string ids_json(const Batch& batch, std::size_t first, std::size_t last) {
    json list = json::array();
    for (std::size_t i = first; i < last; ++i) list.push_back(batch.completion_ids[i]);
    return list.dump();
}

Answer ask_server(const Entry& entry, const Batch& batch, Limits::Time timeout, const std::function<bool()>& give_up) {
    const Asking asking{entry, Clock::now() + timeout, give_up};
    if (entry.style == "openrlhf") return of_openrlhf(asking, batch);
    if (entry.style == "slime") return of_slime(asking, batch);
    const std::size_t rows = batch.completions.size();
    json body = json::parse(cat('{', rows_json(batch, 0, rows), ",\"completion_ids\":", ids_json(batch, 0, rows), '}'));
    body["type"] = "score";
    body["name"] = entry.name;
    const json reply = posted(asking, body);
    return reply.is_array() ? Answer{read_rewards(reply, rows), {}, {}} : read_answer(reply, rows);
}

}  // namespace unsloth::reward
