// Keeping a rank on the NUMA node of its GPU: its threads run there, and its pages are allocated there first.
#pragma once

#include <filesystem>
#include <string>

#include "app/machine/cpu_list.h"

namespace unsloth::app {

struct Pin {
    int node = -1;       ///< -1: leave things as they are
    CpuList cpus;        ///< of the node, within those that were allowed; empty where node is -1
    std::string reason;  ///< for the log: what was done, or why nothing
};

/// What /sys says about the GPU at this PCI address ("" is unknown). A machine with one node, a GPU without node, and a
/// node none of whose CPUs are in `allowed` give no pin. `root` is put in front of /sys.
Pin plan_pin(const std::string& pci, const CpuList& allowed, const std::filesystem::path& root = "/");

/// Sets the calling thread's CPUs and preferred memory node for its lifetime, so that a process that is started
/// meanwhile inherits both; then puts back what was. A memory policy that was set already (by numactl) stays. What the
/// kernel refuses (a container may forbid the memory policy) is left, and said in `problem`.
class ScopedPin {
  public:
    explicit ScopedPin(const Pin& pin);
    ~ScopedPin();
    ScopedPin(const ScopedPin&) = delete;
    ScopedPin& operator=(const ScopedPin&) = delete;
    const std::string& problem() const { return problem_; }

  private:
    CpuList before_;
    bool memory_set_ = false;
    std::string problem_;
};

}  // namespace unsloth::app
