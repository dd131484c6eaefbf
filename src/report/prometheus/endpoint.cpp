#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "report/prometheus_library.h"

struct UnslothMetrics {
    explicit UnslothMetrics(const std::string& address) : exposer(address, 1) { exposer.RegisterCollectable(registry); }

    std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
    prometheus::Exposer exposer;
    std::map<std::string, prometheus::Family<prometheus::Gauge>*> gauges;
    std::map<std::string, prometheus::Family<prometheus::Counter>*> counters;
};

namespace {

prometheus::Labels labels_of(const char* name, const char* value) {
    return name == nullptr ? prometheus::Labels{} : prometheus::Labels{{name, value}};
}

}  // namespace

UnslothMetrics* unsloth_metrics_open(const char* address, char* error, std::size_t size) {
    try {
        return std::make_unique<UnslothMetrics>(address).release();
    } catch (const std::exception& failure) {
        std::snprintf(error, size, "%s", failure.what());
        return nullptr;
    }
}

void unsloth_metrics_set(UnslothMetrics* metrics, const char* name, const char* help, int is_counter, const char* label,
                         const char* label_value, double value) {
    try {
        if (is_counter != 0) {
            auto& family = metrics->counters[name];
            if (family == nullptr)
                family = &prometheus::BuildCounter().Name(name).Help(help).Register(*metrics->registry);
            prometheus::Counter& counter = family->Add(labels_of(label, label_value));
            if (value > counter.Value()) counter.Increment(value - counter.Value());
        } else {
            auto& family = metrics->gauges[name];
            if (family == nullptr)
                family = &prometheus::BuildGauge().Name(name).Help(help).Register(*metrics->registry);
            family->Add(labels_of(label, label_value)).Set(value);
        }
    } catch (const std::exception&) {  // only memory can be lacking here; the next row tries again
    }
}

void unsloth_metrics_close(UnslothMetrics* metrics) {
    delete metrics;
}
