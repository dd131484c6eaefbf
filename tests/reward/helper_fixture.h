// Reward functions of made-up files, in helpers with short deadlines.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/files.h"
#include "unsloth/core/error.h"
#include "unsloth/reward/rewards.h"

namespace unsloth::reward {

using nlohmann::json;
using namespace std::chrono_literals;

/// The interpreter itself: python3 may be a script that looks for it, a tenth of a second each time.
inline const std::string& python_itself() {
    static const std::string path = [] {
        const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
            ::popen("python3 -c 'import sys; sys.stdout.write(sys.executable)'", "r"), ::pclose);
        std::string text(4096, '\0');
        text.resize(std::fread(text.data(), 1, text.size(), pipe.get()));
        return text;
    }();
    return path;
}

class RewardHelpers : public testing::Test {
  protected:
    RewardHelpers() {
        settings_.folder = folder_.path();
        settings_.python = python_itself();
        settings_.limits.terminate = 100ms;
        settings_.limits.quit = 2s;
        settings_.log = [this](const std::string& line) {
            const std::lock_guard lock(mutex_);
            lines_.push_back(line);
        };
    }

    static Batch batch_of(std::size_t rows, int64_t step = 1) {
        Batch batch;
        for (std::size_t i = 0; i < rows; ++i) {
            batch.prompts.push_back(cat("prompt ", i));
            batch.completions.push_back(cat("completion ", i));
            batch.completion_ids.push_back(std::vector<int32_t>(i + 1, 7));
        }
        batch.num_generations = 2;
        batch.trainer_state.global_step = step;
        return batch;
    }
    /// Scores of the function f of this file.
    Scored score(const std::string& python, const Batch& batch, json entry = json::object()) {
        folder_.write("rewards.py", python);
        entry["py"] = entry.value("py", "rewards.py:f");
        return Rewards(json::array({entry}), settings_).score(batch);
    }
    Scores scores(const std::string& python, const Batch& batch, json entry = json::object()) {
        return score(python, batch, std::move(entry)).scores.at(0);
    }
    /// The error with which scoring ends.
    std::string failure(const std::string& python, const Batch& batch, json entry = json::object(),
                        test::Expected expected = ErrorKind::runtime) {
        try {
            score(python, batch, std::move(entry));
        } catch (const Error& error) {
            expected.check(error);
            return error.what();
        }
        ADD_FAILURE() << "nothing failed";
        return {};
    }
    std::string load_failure(const std::string& python, test::Expected expected = "reward.not-loaded") {
        return failure(python, batch_of(2), json::object(), expected);
    }
    std::string log() {
        const std::lock_guard lock(mutex_);
        std::string all;
        for (const std::string& line : lines_) all += line + "\n";
        return all;
    }

    test::ScratchFolder folder_;
    Settings settings_;

  private:
    std::mutex mutex_;
    std::vector<std::string> lines_;
};

inline void expect_has(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

}  // namespace unsloth::reward
