#include "unsloth/core/nvml.h"

#include <dlfcn.h>

#include <type_traits>

namespace unsloth::nvml {

Library::Library() : handle_(::dlopen(library_name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
        const char* const reason = ::dlerror();
        const std::string said = reason != nullptr ? reason : "";
        if (said.find("cannot open shared object file: No such file") == std::string::npos) problem_ = said;
        return;
    }
    const auto find = [&](auto& call, const char* symbol) {
        call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(handle_, symbol));
    };
    find(calls.init, "nvmlInit_v2"), find(calls.shutdown, "nvmlShutdown");
    find(calls.error_text, "nvmlErrorString");
    find(calls.driver, "nvmlSystemGetDriverVersion"), find(calls.cuda, "nvmlSystemGetCudaDriverVersion_v2");
    find(calls.count, "nvmlDeviceGetCount_v2"), find(calls.handle, "nvmlDeviceGetHandleByIndex_v2");
    find(calls.by_pci, "nvmlDeviceGetHandleByPciBusId_v2"), find(calls.pci, "nvmlDeviceGetPciInfo_v3");
    find(calls.name, "nvmlDeviceGetName"), find(calls.uuid, "nvmlDeviceGetUUID");
    find(calls.memory, "nvmlDeviceGetMemoryInfo"), find(calls.utilization, "nvmlDeviceGetUtilizationRates");
    find(calls.mig, "nvmlDeviceGetMigMode");
    find(calls.ancestor, "nvmlDeviceGetTopologyCommonAncestor"), find(calls.p2p, "nvmlDeviceGetP2PStatus");
    find(calls.throttle, "nvmlDeviceGetCurrentClocksThrottleReasons");
    find(calls.temperature, "nvmlDeviceGetTemperature"), find(calls.power, "nvmlDeviceGetPowerUsage");
    find(calls.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(calls.usual_power_limit, "nvmlDeviceGetPowerManagementDefaultLimit");
    find(calls.clock, "nvmlDeviceGetClockInfo"), find(calls.clock_limit, "nvmlDeviceGetMaxClockInfo");
    find(calls.ecc_mode, "nvmlDeviceGetEccMode"), find(calls.ecc_errors, "nvmlDeviceGetTotalEccErrors");
    find(calls.remapped, "nvmlDeviceGetRemappedRows");
}

Library::~Library() {
    if (started_) calls.shutdown();
    if (handle_ != nullptr) ::dlclose(handle_);
}

Result Library::start() {
    const Result result = calls.init();
    started_ = result == success;
    return result;
}

}  // namespace unsloth::nvml
