// Follows a run in progress: its newest checkpoint, and its result at the end, answer under one name.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <thread>

namespace unsloth::serve {

class RunWatcher {
  public:
    /// Gets the folder of an adapter that is complete. Called from the watcher's thread, one at a time; may throw.
    using Load = std::function<void(const std::string& folder)>;

    /// Looks at once, and whenever the run's folder changes. runtime Error where it cannot be watched.
    RunWatcher(std::filesystem::path run, Load load);
    ~RunWatcher();
    RunWatcher(const RunWatcher&) = delete;
    RunWatcher& operator=(const RunWatcher&) = delete;

  private:
    void watch();
    void look();
    std::filesystem::path run_;
    Load load_;
    std::string loaded_;  ///< what the newest adapter was: its folder and when it was written
    int changes_ = -1, ends_ = -1;
    std::thread thread_;
};

}  // namespace unsloth::serve
