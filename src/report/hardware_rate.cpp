#include "unsloth/report/hardware_rate.h"

#include <algorithm>
#include <sstream>
#include <vector>

namespace unsloth::report {
namespace {

struct CardRate {
    std::vector<std::string> words;  ///< all of which the name has
    double teraflops;
};

/// The first that fits holds.
const std::vector<CardRate>& rates() {
    static const std::vector<CardRate> all = {
        {{"B200"}, 2250},         {{"GH200"}, 989},       {{"H200", "NVL"}, 835},   {{"H200"}, 989},
        {{"H100", "PCIe"}, 756},  {{"H100", "NVL"}, 835}, {{"H100"}, 989},          {{"A100"}, 312},
        {{"A800"}, 312},          {{"A40"}, 149.7},       {{"A30"}, 165},           {{"A10"}, 125},
        {{"A10G"}, 70},           {{"L40S"}, 362},        {{"L40"}, 181},           {{"L4"}, 121},
        {{"6000", "Ada"}, 364.2}, {{"A6000"}, 154.8},     {{"RTX", "5090"}, 209.5}, {{"RTX", "4090"}, 165.2},
        {{"RTX", "3090"}, 71}};
    return all;
}

}  // namespace

double dense_bf16_rate(const std::string& device_name) {
    std::string spaced = device_name;
    std::replace(spaced.begin(), spaced.end(), '-', ' ');
    std::istringstream stream(spaced);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    const auto has = [&](const std::string& word) {
        return std::find(words.begin(), words.end(), word) != words.end();
    };
    if (has("MIG") || has("Laptop")) return 0;
    for (const CardRate& card : rates())
        if (std::all_of(card.words.begin(), card.words.end(), has)) return 1e12 * card.teraflops;
    return 0;
}

}  // namespace unsloth::report
