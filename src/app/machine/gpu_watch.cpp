#include "app/machine/gpu_watch.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

namespace unsloth::app {

GpuWatch::GpuWatch(std::chrono::milliseconds interval) : before_(ask_nvml().gpus), since_(before_) {
    if (before_.empty()) return;
    thread_ = std::jthread([this, interval](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any stopped;
        std::unique_lock lock(mutex);
        while (!stopped.wait_for(lock, stop, interval, [&] { return stop.stop_requested(); })) {
            const std::vector<NvmlGpu> now = ask_nvml().gpus;
            for (std::size_t i = 0; i < std::min(now.size(), since_.size()); ++i) {
                since_[i].throttle |= now[i].throttle;
                since_[i].celsius = std::max(since_[i].celsius, now[i].celsius);
                since_[i].watts = std::max(since_[i].watts, now[i].watts);
                since_[i].clock_mhz = std::max(since_[i].clock_mhz, now[i].clock_mhz);
            }
        }
    });
}

std::vector<NvmlGpu> GpuWatch::end() {
    if (thread_.joinable()) thread_.request_stop(), thread_.join();
    return since_;
}

}  // namespace unsloth::app
