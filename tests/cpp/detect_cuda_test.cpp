// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "detect/cuda.hpp"
#include "detect/nvml.hpp"
#include "detect_fakes.hpp"

namespace cynosure::detect {
namespace {

using Indices = std::optional<std::vector<std::size_t>>;

struct FakeGpu {
  const char* name;
  int major, minor, multiprocessors;
  const char* uuid;
  unsigned cores;
  unsigned mig = 0;
};
const FakeGpu kH200{"NVIDIA H200", 9, 0, 132, "GPU-aa11", 16896};
const FakeGpu kAnotherH200{"NVIDIA H200", 9, 0, 132, "GPU-ab22", 16896};
const FakeGpu kA100{"NVIDIA A100-SXM4-80GB", 8, 0, 108, "GPU-cc33", 6912};

// What the fake driver and the fake NVML know and are asked.
struct State {
  std::vector<FakeGpu> driver;  // in CUDA's order, after CUDA_VISIBLE_DEVICES
  std::vector<FakeGpu> nvml;    // all, in the order of the bus
  bool initialized = false;
  int init_error = 0;
  int attribute_error = 0;
  int nvml_error = 0;
  int init_calls = 0;
  int nvml_open = 0;  // initialised and not shut down
};
State state;

int init(unsigned) {
  ++state.init_calls;
  state.initialized = state.init_error == 0;
  return state.init_error;
}
int count(int* n) {
  if (!state.initialized) return 3;
  *n = static_cast<int>(state.driver.size());
  return 0;
}
int get(int* device, int index) {
  *device = index + 100;  // a handle, not the index
  return 0;
}
int device_name(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "%s",
                state.driver.at(static_cast<std::size_t>(device - 100)).name);
  return 0;
}
int attribute(int* value, int which, int device) {
  const FakeGpu& gpu = state.driver.at(static_cast<std::size_t>(device - 100));
  *value = which == 75 ? gpu.major : which == 76 ? gpu.minor : which == 16 ? gpu.multiprocessors : -1;
  return state.attribute_error;
}
int driver_version(int* version) {
  *version = 13020;
  return 0;
}
int error_string(int error, const char** text) {
  *text = "no CUDA-capable device is detected";
  return error == 100 ? 0 : 1;
}

int nvml_init() {
  state.nvml_open += state.nvml_error == 0 ? 1 : 0;
  return state.nvml_error;
}
int nvml_shutdown() {
  --state.nvml_open;
  return 0;
}
int nvml_count(unsigned* n) {
  *n = static_cast<unsigned>(state.nvml.size());
  return 0;
}
int nvml_get(unsigned index, const FakeGpu** gpu) {
  *gpu = &state.nvml.at(index);
  return 0;
}
int nvml_name(const FakeGpu* gpu, char* text, unsigned size) {
  std::snprintf(text, size, "%s", gpu->name);
  return 0;
}
int nvml_uuid(const FakeGpu* gpu, char* text, unsigned size) {
  std::snprintf(text, size, "%s", gpu->uuid);
  return 0;
}
int nvml_capability(const FakeGpu* gpu, int* major, int* minor) {
  *major = gpu->major;
  *minor = gpu->minor;
  return 0;
}
int nvml_cores(const FakeGpu* gpu, unsigned* cores) {
  *cores = gpu->cores;
  return 0;
}
int nvml_mig(const FakeGpu* gpu, unsigned* current, unsigned* pending) {
  *current = *pending = gpu->mig;
  return gpu->major < 8 ? 3 : 0;
}

class DetectCuda : public testing::Test {
 protected:
  void SetUp() override {
    state = {};
    machine.libraries["libcuda.so.1"]
        .with("cuInit", init)
        .with("cuDeviceGetCount", count)
        .with("cuDeviceGet", get)
        .with("cuDeviceGetName", device_name)
        .with("cuDeviceGetAttribute", attribute)
        .with("cuDriverGetVersion", driver_version)
        .with("cuGetErrorString", error_string);
    machine.libraries["libnvidia-ml.so.1"]
        .with("nvmlInit_v2", nvml_init)
        .with("nvmlShutdown", nvml_shutdown)
        .with("nvmlDeviceGetCount_v2", nvml_count)
        .with("nvmlDeviceGetHandleByIndex_v2", nvml_get)
        .with("nvmlDeviceGetName", nvml_name)
        .with("nvmlDeviceGetUUID", nvml_uuid)
        .with("nvmlDeviceGetCudaComputeCapability", nvml_capability)
        .with("nvmlDeviceGetNumGpuCores", nvml_cores)
        .with("nvmlDeviceGetMigMode", nvml_mig);
  }
  void TearDown() override { EXPECT_EQ(state.nvml_open, 0) << "NVML was left open"; }

  /// Both libraries know these GPUs.
  static void has(const std::vector<FakeGpu>& gpus) { state.driver = state.nvml = gpus; }
  [[nodiscard]] FoundGpus found() { return find_gpus(machine.loader()); }

  FakeMachine machine;
};

const Gpu kFoundH200{.name = "NVIDIA H200", .sm = 90, .sm_count = 132};
const Gpu kFoundA100{.name = "NVIDIA A100-SXM4-80GB", .sm = 80, .sm_count = 108};

TEST_F(DetectCuda, WithoutADriverTheReasonSaysSo) {
  machine.libraries.clear();
  const FoundGpus none = found();
  EXPECT_TRUE(none.gpus.empty());
  EXPECT_EQ(none.why_not, "libcuda.so.1 not found");
  EXPECT_FALSE(none.cuda.installed());
}

TEST_F(DetectCuda, NvmlAnswersAndCudaStaysUninitialised) {
  has({kH200, kAnotherH200});
  const FoundGpus gpus = found();
  EXPECT_EQ(gpus.gpus, (std::vector{kFoundH200, kFoundH200}));
  EXPECT_EQ(gpus.why_not, "");
  EXPECT_EQ(gpus.cuda, Version(13, 2));
  EXPECT_EQ(state.init_calls, 0);
}

TEST_F(DetectCuda, AnInitialisedDriverAnswersAndNvmlIsNotOpened) {
  has({kH200});
  state.initialized = true;
  EXPECT_EQ(found().gpus, std::vector{kFoundH200});
  EXPECT_EQ(machine.opened, std::vector<std::string>{"libcuda.so.1"});
}

TEST_F(DetectCuda, WithoutNvmlTheDriverIsInitialised) {
  has({kA100});
  machine.libraries.erase("libnvidia-ml.so.1");
  EXPECT_EQ(found().gpus, std::vector{kFoundA100});
  EXPECT_EQ(state.init_calls, 1);
}

TEST_F(DetectCuda, AnswersThatNvmlCannotGiveCertainlyAreTheDrivers) {
  FakeGpu split = kH200;
  split.mig = 1;
  FakeGpu unknown = kH200;
  unknown.major = 42;
  for (const FakeGpu& gpu : {split, unknown}) {
    state = {};
    has({gpu});
    EXPECT_EQ(found().gpus.size(), 1U);
    EXPECT_EQ(state.init_calls, 1);
  }
  state = {};
  has({kH200});
  state.nvml_error = 9;
  EXPECT_EQ(found().gpus, std::vector{kFoundH200});
  machine.libraries["libnvidia-ml.so.1"].symbols.erase("nvmlDeviceGetNumGpuCores");
  state.nvml_error = 0;
  state.initialized = false;
  EXPECT_EQ(found().gpus, std::vector{kFoundH200});
  EXPECT_EQ(state.init_calls, 2);
}

TEST_F(DetectCuda, TheOrderOfDifferentGpusIsTheDriversUnlessItIsTheBus) {
  state.nvml = {kA100, kH200};
  state.driver = {kH200, kA100};  // the fastest first
  EXPECT_EQ(found().gpus, (std::vector{kFoundH200, kFoundA100}));
  EXPECT_EQ(state.init_calls, 1);
  state.initialized = false;
  machine.variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  EXPECT_EQ(found().gpus, (std::vector{kFoundA100, kFoundH200}));
  EXPECT_EQ(state.init_calls, 1);
}

TEST_F(DetectCuda, CudaVisibleDevicesIsApplied) {
  state.nvml = {kA100, kH200};
  machine.variables = {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES", "1"}};
  EXPECT_EQ(found().gpus, std::vector{kFoundH200});
  machine.variables["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_EQ(found().why_not, "CUDA_VISIBLE_DEVICES=\"\" hides every GPU");
  machine.variables["CUDA_VISIBLE_DEVICES"] = "-1";
  EXPECT_EQ(found().why_not, "CUDA_VISIBLE_DEVICES=\"-1\" hides every GPU");
  EXPECT_EQ(state.init_calls, 0);
}

TEST_F(DetectCuda, AnUnusualCudaVisibleDevicesIsTheDriversToRead) {
  has({kH200});
  machine.variables["CUDA_VISIBLE_DEVICES"] = "0,0";
  state.driver.clear();
  EXPECT_EQ(found().why_not, "the CUDA driver has no device");
  EXPECT_EQ(state.init_calls, 1);
}

TEST_F(DetectCuda, FailuresOfTheDriverAreNamed) {
  state.init_error = 100;
  EXPECT_EQ(found().why_not, "cuInit: error 100 (no CUDA-capable device is detected)");
  state.init_error = 34;
  EXPECT_EQ(found().why_not, "cuInit: error 34");
  state = {};
  state.driver = {kH200};
  state.attribute_error = 1;
  EXPECT_EQ(found().why_not, "cuDeviceGetAttribute: error 1");
  EXPECT_TRUE(found().gpus.empty());
  machine.libraries["libcuda.so.1"].symbols.erase("cuDeviceGetName");
  EXPECT_EQ(found().why_not, "libcuda.so.1 lacks functions that list devices");
}

TEST(VisibleDevices, NumbersAndBeginningsOfUuids) {
  const std::vector<std::string> uuids{"GPU-aa11", "GPU-ab22", "GPU-cc33"};
  EXPECT_EQ(visible_devices("2,0", uuids), (Indices{{2, 0}}));
  EXPECT_EQ(visible_devices(" 1 , 2 ", uuids), (Indices{{1, 2}}));
  EXPECT_EQ(visible_devices("GPU-cc33,GPU-aa", uuids), (Indices{{2, 0}}));
  EXPECT_EQ(visible_devices("1,-1,0", uuids), (Indices{{1}}));
  EXPECT_EQ(visible_devices("", uuids), (Indices{std::vector<std::size_t>{}}));
}

TEST(VisibleDevices, OtherFormsAreNotGuessed) {
  const std::vector<std::string> uuids{"GPU-aa11", "GPU-ab22", "GPU-cc33"};
  for (const char* text : {"3", "0,0", "GPU-a", "GPU-ff", "MIG-aa11", "0x1", "1gpu", "0,", ",", "-2", "all", "0;1",
                           "99999999999999999999"})
    EXPECT_EQ(visible_devices(text, uuids), std::nullopt) << text;
}

}  // namespace
}  // namespace cynosure::detect
