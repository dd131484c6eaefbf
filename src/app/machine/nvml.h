// The driver's management library, opened where there is one. It knows GPUs without the cost of starting CUDA.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::app {

struct NvmlGpu {
    std::string name, uuid;
    std::string pci;                            ///< "0000:17:00.0", as in /sys/bus/pci/devices
    int64_t memory_total = 0, memory_used = 0;  ///< bytes
    bool mig = false;                           ///< split into instances
    uint64_t throttle = 0;                      ///< why the clocks are not the highest, bits as NVML has them
    int celsius = 0, watts = 0, clock_mhz = 0, clock_limit_mhz = 0;  ///< 0: unknown
    int watts_limit = 0, watts_usual = 0;  ///< as it is set, and as the card is made; likewise
    bool ecc = false;
    int64_t ecc_uncorrected = 0, ecc_uncorrected_ever = 0;  ///< since the driver was loaded, and in the card's life
    int64_t rows_remapped = 0;                              ///< of its memory, for uncorrectable errors
    bool remap_pending = false, remap_failed = false;
};

struct NvmlReport {
    std::string library;        ///< the file that was opened; empty: there is none
    std::string problem;        ///< why the library or its GPUs cannot be used; empty: nothing
    std::string driver;         ///< "580.65.06"
    int cuda = 0;               ///< newest CUDA that the driver supports: 13000 for 13.0; 0: unknown
    std::vector<NvmlGpu> gpus;  ///< by PCI address
    /// How GPU i reaches GPU j, [i][j]: "NVLink", or as nvidia-smi writes it PIX, PXB, PHB, NODE, SYS; "?" where it is
    /// not known.
    std::vector<std::vector<std::string>> links;
};

/// Opens the library, asks, and closes it. Never throws: what went wrong is `problem`. Links cost a call a pair.
NvmlReport ask_nvml(bool with_links = false);

/// "0000:17:00.0".
std::string pci_name(unsigned domain, unsigned bus, unsigned device);

}  // namespace unsloth::app
