// NVML, the driver's management library, opened where there is one. Its calls are declared as its reference has them:
// nvml.h is no part of the wheels that builds fetch.
#pragma once

#include <string>

namespace unsloth::nvml {

using Result = int;
using Device = void*;
inline constexpr Result success = 0;
inline constexpr const char* library_name = "libnvidia-ml.so.1";

struct PciInfo {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct MemoryInfo {
    unsigned long long total, free, used;
};
struct Utilization {
    unsigned gpu, memory;  // per cent
};

/// Null: this driver has no such call.
struct Calls {
    Result (*init)();
    Result (*shutdown)();
    const char* (*error_text)(Result);
    Result (*driver)(char*, unsigned);
    Result (*cuda)(int*);
    Result (*count)(unsigned*);
    Result (*handle)(unsigned, Device*);
    Result (*by_pci)(const char*, Device*);
    Result (*pci)(Device, PciInfo*);
    Result (*name)(Device, char*, unsigned);
    Result (*uuid)(Device, char*, unsigned);
    Result (*memory)(Device, MemoryInfo*);
    Result (*utilization)(Device, Utilization*);
    Result (*mig)(Device, unsigned*, unsigned*);
    Result (*ancestor)(Device, Device, int*);
    Result (*p2p)(Device, Device, int, int*);
    Result (*throttle)(Device, unsigned long long*);
    Result (*temperature)(Device, int, unsigned*);
    Result (*power)(Device, unsigned*);  // milliwatts
    Result (*power_limit)(Device, unsigned*);
    Result (*usual_power_limit)(Device, unsigned*);
    Result (*clock)(Device, int, unsigned*);
    Result (*clock_limit)(Device, int, unsigned*);
    Result (*ecc_mode)(Device, unsigned*, unsigned*);
    Result (*ecc_errors)(Device, int, int, unsigned long long*);
    Result (*remapped)(Device, unsigned*, unsigned*, unsigned*, unsigned*);
};

/// The library, from its opening until it is closed. Never throws.
class Library {
  public:
    Library();
    ~Library();
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    bool opened() const { return handle_ != nullptr; }
    /// Why it is not; empty: there is none on this machine.
    const std::string& problem() const { return problem_; }
    /// Init and shutdown are there. Others are checked by those who call them.
    bool starts() const { return calls.init != nullptr && calls.shutdown != nullptr; }
    /// To be called once; the destructor shuts down what was started.
    Result start();

    Calls calls{};

  private:
    void* handle_ = nullptr;
    bool started_ = false;
    std::string problem_;
};

}  // namespace unsloth::nvml
