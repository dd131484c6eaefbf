// model.device_map and model.max_memory.
#include "unsloth/config/device_map.h"

#include "tests/config/support.h"

namespace unsloth::testing {
namespace {

using config::DeviceMap;
using config::max_memory;
using config::ModelOptions;
using spec::Place;

DeviceMap map_of(const std::string& json) {
    ModelOptions model;
    model.device_map = json;
    return DeviceMap(model);
}

/// What is wrong with the map, for a run on GPU `gpu`; empty: nothing.
std::string mistake(const std::string& json, int gpu = 0) {
    try {
        const DeviceMap map = map_of(json);
        (void)map.layers(4, gpu);
        (void)map.embedding_on_host(gpu);
        return "";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "model.device-map");
        return error.what();
    }
}

TEST(DeviceMap, AWordLeavesTheChoiceToTheProgram) {
    EXPECT_TRUE(DeviceMap(ModelOptions{}).automatic());
    EXPECT_TRUE(map_of(R"("balanced")").automatic());
    EXPECT_FALSE(map_of(R"({"": 0})").automatic());
}

TEST(DeviceMap, TheLongestNameThatFitsHolds) {
    const auto device = Place::device, host = Place::host, disk = Place::disk;
    EXPECT_EQ(map_of(R"({"": 0})").layers(3, 0), (std::vector{device, device, device}));
    EXPECT_EQ(map_of(R"({"model.layers.1-2": "disk", "model.layers": "cpu"})").layers(4, 0),
              (std::vector{host, disk, disk, host}));
    EXPECT_EQ(map_of(R"({"": "disk", "model": "cpu", "model.layers.3": "cuda:0", "lm_head": 0})").layers(4, 0),
              (std::vector{host, host, host, device}));
    EXPECT_EQ(map_of(R"({"model.embed_tokens": "cpu", "model.layers.0": "0", "model.layers.1": "cuda"})").layers(2, 0),
              (std::vector{device, device}));
}

TEST(DeviceMap, Embeddings) {
    EXPECT_TRUE(map_of(R"({"model.embed_tokens": "cpu", "model.layers": 0})").embedding_on_host(0));
    EXPECT_TRUE(map_of(R"({"": "cpu", "lm_head": 0, "model.norm": 0})").embedding_on_host(0));
    EXPECT_FALSE(map_of(R"({"": "cpu", "model.embed_tokens": 0})").embedding_on_host(0));
    EXPECT_FALSE(map_of(R"({"model.layers": "cpu"})").embedding_on_host(0));
    EXPECT_FALSE(map_of(R"("auto")").embedding_on_host(0));
}

TEST(DeviceMap, OnTheCpuItsMemoryIsTheDevices) {
    EXPECT_EQ(map_of(R"({"model.layers.0": "cpu", "model.layers.1": "disk"})").layers(2, -1),
              (std::vector{Place::device, Place::disk}));
    EXPECT_FALSE(map_of(R"({"": "cpu"})").embedding_on_host(-1));
    const std::string on_gpu = mistake(R"({"": 0})", -1);
    EXPECT_CONTAINS(on_gpu, "the run is on the CPU");
    EXPECT_CONTAINS(on_gpu, "leave model.device_map out");  // there need not be a GPU
}

TEST(DeviceMap, SeveralGpusAreStages) {
    using Ranges = std::vector<spec::LayerRange>;
    EXPECT_EQ(map_of(R"({"": 0})").gpus(), 1);
    const DeviceMap map = map_of(R"({"model.embed_tokens": 0, "model.layers.0-1": 0, "model.layers.2-3": 1,
                                     "model.norm": 1, "lm_head": "cuda:1"})");
    EXPECT_EQ(map.gpus(), 2);
    EXPECT_EQ(map.stages(4), (Ranges{{0, 2}, {2, 4}}));
    EXPECT_EQ(map.layers(4, 1), std::vector(4, Place::device));
    EXPECT_FALSE(map.embedding_on_host(0));
    EXPECT_EQ(map_of(R"({"": 0, "model.layers.3": 1})").stages(4), (Ranges{{0, 3}, {3, 4}}));
    const auto refusal = [](const std::string& json) -> std::string {
        try {
            (void)map_of(json).stages(4);
            return "";
        } catch (const Error& error) {
            return error.what();
        }
    };
    EXPECT_CONTAINS(refusal(R"({"": 1, "model.layers.3": 0})"), "in their own order");
    EXPECT_CONTAINS(refusal(R"({"": 0, "model.layers.1": 1})"), "in their own order");
    EXPECT_CONTAINS(refusal(R"({"model.layers": 0, "lm_head": 1})"), "names 2 GPUs, but layers of 1");
    EXPECT_CONTAINS(refusal(R"({"": 0, "model.layers.3": 1, "lm_head": 0})"), "not with the last layers");
    EXPECT_CONTAINS(refusal(R"({"model.layers.0-2": 0, "model.layers.3": 1, "model.embed_tokens": 1})"),
                    "not with the first layers");
    EXPECT_CONTAINS(refusal(R"({"model.layers.0-1": 0, "model.layers.2-9": 1})"),
                    "'model.layers.2-9', but the model has layers 0 to 3");
}

TEST(DeviceMap, SaysHowManyProcessesARunBecomes) {
    const auto processes = [](const std::string& json, const std::string& device, int visible) {
        config::Config config;
        config.model.device_map = json;
        config.hardware.device = device;
        return config::processes_of(config, [&] { return visible; });
    };
    EXPECT_EQ(processes(R"({"": 0, "model.layers.3": 1})", "auto", 8), 2);
    EXPECT_EQ(processes(R"({"": 0})", "auto", 8), 1);
    EXPECT_EQ(processes(R"("balanced")", "cuda", 4), 4);
    EXPECT_EQ(processes(R"("sequential")", "auto", 0), 1);
    EXPECT_EQ(processes(R"("balanced")", "cpu", 4), 1);
    EXPECT_EQ(processes(R"("auto")", "auto", 4), 1) << "one GPU, and host memory where that is too small";
}

TEST(DeviceMap, SaysWhatIsWrong) {
    EXPECT_EQ(mistake(R"({"model.layers.0-3": "cpu"})"), "");
    EXPECT_CONTAINS(mistake(R"({"": 0, "model.layers.3": 1, "model.layers.2": "cpu"})"), "is not on a GPU");
    EXPECT_CONTAINS(mistake(R"({"": 0, "model.layers.3": 2})"), "Number them 0 to 1");
    EXPECT_CONTAINS(mistake(R"({"": 2})", 1), "the run's is 1");
    EXPECT_EQ(mistake(R"({"": 0})", 1), "") << "0 is each process' own";
    EXPECT_CONTAINS(mistake(R"({"model.layers.0-4": "cpu"})"), "the model has layers 0 to 3");
    EXPECT_CONTAINS(mistake(R"({"model.layers.0-2": "cpu"})"), "does not say where model.layers.3 is");
    EXPECT_CONTAINS(mistake(R"({"model.layers.0-2": "cpu", "model.layers.2-3": 0})"), "name layer 2");
    EXPECT_CONTAINS(mistake(R"({"": 0, "model.layers.2.mlp": "cpu"})"), "a part of a layer");
    EXPECT_CONTAINS(mistake(R"({"": 0, "transformer.h": "cpu"})"), "no module 'transformer.h'");
    EXPECT_CONTAINS(mistake(R"({"": 0, "model.layers.2-1": "cpu"})"), "no range");
    EXPECT_CONTAINS(mistake(R"({"": "tpu"})"), "no place");
    EXPECT_CONTAINS(mistake(R"({"": -1})"), "no place");
    EXPECT_CONTAINS(mistake(R"({"": 0, "lm_head": "cpu"})"), "'lm_head' can only be on the GPU");
    EXPECT_CONTAINS(mistake(R"({"": 0, "model.embed_tokens": "disk"})"), "cannot be on the disk");
    EXPECT_CONTAINS(mistake("{}"), "empty object");
}

TEST(MaxMemory, ByDevice) {
    ModelOptions model;
    EXPECT_EQ(max_memory(model, 0), std::nullopt);
    model.max_memory = {{"0", "12GiB"}, {"cpu", "1000000"}};
    EXPECT_EQ(max_memory(model, 0), int64_t{12} << 30);
    EXPECT_EQ(max_memory(model, 1), std::nullopt);
    EXPECT_EQ(max_memory(model, -1), 1000000);
    for (const char* slip : {"12", "64000", "80KB"}) {
        model.max_memory = {{"0", slip}};
        try {
            (void)max_memory(model, 0);
            ADD_FAILURE() << slip;
        } catch (const Error& error) {
            EXPECT_CONTAINS(std::string(error.what()), "A number without a unit is in bytes");
        }
    }
    model.max_memory = {{"disk", "1GiB"}};
    EXPECT_THROW(max_memory(model, 0), Error);
    model.max_memory = {{"1", "much"}};
    EXPECT_THROW(max_memory(model, 0), Error);
}

TEST(DeviceMap, AsAnOption) {
    const auto map_after = [](const std::vector<std::string>& flags) {
        return config::load_config({}, flags).config.model.device_map;
    };
    EXPECT_EQ(map_after({}), R"("auto")");
    EXPECT_EQ(map_after({"--device_map", "sequential"}), R"("sequential")");
    EXPECT_EQ(map_after({"--model.device_map", R"({"": "cpu"})"}), R"({"":"cpu"})");
    for (const char* one_gpu : {"0", "cuda", "cuda:0"})
        EXPECT_EQ(map_after({"--device_map", one_gpu}), R"({"":0})") << one_gpu;
    EXPECT_EQ(load_text(R"({"model": {"device_map": 0}})").config.model.device_map, R"({"":0})");
    EXPECT_EQ(load_text(R"({"training": {"objective": "distill"},
                            "distill": {"teacher": "large", "teacher_device_map": "cuda:0"}})")
                  .config.distill.teacher_device_map,
              R"({"":0})");
    EXPECT_CONTAINS(flag_error({"--device_map", "evenly"}), "expected one of auto");
    for (const char* other : {"cuda:1", "cpu", "mps", "1"})
        EXPECT_CONTAINS(flag_error({"--device_map", other}), "on another GPU, --hardware.device cuda:1; on the CPU, ")
            << other;
    EXPECT_CONTAINS(flag_error({"--device_map", R"({"": 0, "model.layers.0": 1, "model.layers.1": "cpu"})"}),
                    "is not on a GPU");
    EXPECT_CONTAINS(flag_error({"--max_memory", R"({"cpu": "none"})"}), "expected a size");
    EXPECT_EQ(load_text(R"({"model": {"device_map": null}})").config.model.device_map, R"("auto")");
    EXPECT_EQ(load_text(R"({"model": {"device_map": {"": "disk"}}})").config.model.device_map, R"({"":"disk"})");
}

}  // namespace
}  // namespace unsloth::testing
