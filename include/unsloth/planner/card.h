// What a GPU does in a second: the figures that predicted times come from. They are data, cards/*.json, and part of the
// program; a file of the same form describes a card that is not among them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace unsloth::planner {

/// A rate that depends on a size: between two entries it is interpolated over the size's logarithm, beyond them it is
/// that of the nearest.
using RateBySize = std::map<double, double>;
double rate_at(const RateBySize& rates, double size);

struct Card {
    std::string name;       ///< as the driver says it: "NVIDIA H200"
    std::string source;     ///< of the figures
    bool measured = false;  ///< by this project; else from what is published
    double compute_capability = 0;
    int64_t memory_bytes = 0;                ///< in all
    int64_t context_bytes = 0;               ///< that the driver and the libraries take before the first buffer
    RateBySize products;                     ///< TFLOP/s of 16-bit products, by tokens
    RateBySize fp8_products, int8_products;  ///< empty: the card has none that we use
    RateBySize nf4_products;  ///< ms of forward products by 10^9 parameters in 4 bit, by tokens; empty: not measured
    RateBySize attention_forward;  ///< TFLOP/s over the causal half, by tokens of a row
    RateBySize attention_backward;
    double copy = 0;        ///< GB/s of a kernel over memory, read and written bytes together
    double thin = 0;        ///< the same of the adapters' LoRA GEMMs
    double dequantise = 0;  ///< GB/s of 4-bit weights' expansion, read and written
    double link = 0;        ///< GB/s to and from pinned host memory, each way
    /// Between GPUs of a machine: GB/s that gathers and sums reach, of a GPU each way, and what one takes to begin.
    /// Where a file does not say it, they are taken to go by the link.
    double peer = 0, peer_us = 50;
    std::string peer_over = "PCIe";
    bool peer_reach = false;  ///< whether a GPU reads another's memory
    double disk = 0;  ///< GB/s of reading layers from the disk: of the machine that was measured, or a usual NVMe
    double layer_gap_us = 0;  ///< of a layer's pass, in addition to its operators
};

/// The built-in card of that name, without regard to case, "NVIDIA" and "GeForce": "h200", "RTX 4090"; or the one that
/// a JSON file describes (a path that ends in .json). usage Error that lists the names; input Error for a file that is
/// no such card.
Card find_card(const std::string& name_or_file);
std::vector<std::string> card_names();
/// The built-in card whose memory is nearest to `bytes`; of several the newest.
Card card_of_memory(int64_t bytes);
/// The built-in card that the driver's name says; for one that is not among them the card of the next lower compute
/// capability, with `name` kept. `known`: whether it was among them.
Card card_of_driver(const std::string& name, double compute_capability, bool& known);
/// From a JSON text; `source` names it in messages.
Card parse_card(const std::string& text, const std::string& source);

}  // namespace unsloth::planner
