// SPDX-License-Identifier: Apache-2.0
// The real dynamic loader, on what every machine has and on what none has.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "detect/cuda.hpp"
#include "detect/cudnn.hpp"
#include "detect/loader.hpp"

namespace cynosure::detect {
namespace {

TEST(SystemLoader, OpensAndFindsFunctions) {
  const Loader& loader = system_loader();
  std::string error;
  void* const library = loader.open("libc.so.6", error);
  ASSERT_NE(library, nullptr) << error;
  EXPECT_EQ(loader.loaded("libc.so.6"), library);
  auto* const absolute = loader.function<int(int)>(library, "abs");
  ASSERT_NE(absolute, nullptr);
  EXPECT_EQ(absolute(-3), 3);
  EXPECT_NE(loader.file(reinterpret_cast<void*>(absolute)).find("libc"), std::string::npos);
  EXPECT_EQ(loader.function<int()>(library, "cynosure_has_no_such_function"), nullptr);
}

#if defined(__GLIBC__)
TEST(SystemLoader, OpensApart) {
  const Loader& loader = system_loader();
  std::string error;
  void* const apart = loader.open_apart("libm.so.6", error);
  ASSERT_NE(apart, nullptr) << error;
  EXPECT_EQ(loader.open_apart("libm.so.6", error), apart);
  EXPECT_NE(loader.open("libm.so.6", error), apart);
}
#endif

TEST(SystemLoader, SaysWhatIsMissing) {
  const Loader& loader = system_loader();
  std::string error;
  EXPECT_EQ(loader.loaded("libcynosure_absent.so"), nullptr);
  EXPECT_EQ(loader.open("libcynosure_absent.so", error), nullptr);
  EXPECT_NE(error.find("libcynosure_absent.so"), std::string::npos);
  error.clear();
  EXPECT_EQ(loader.open_apart("/absent/libcudnn.so.9", error), nullptr);
  EXPECT_NE(error.find("/absent/libcudnn.so.9"), std::string::npos);
}

TEST(SystemLoader, ReadsVariables) {
  ASSERT_EQ(setenv("CYNOSURE_TEST_VARIABLE", "", 1), 0);
  EXPECT_STREQ(system_loader().variable("CYNOSURE_TEST_VARIABLE"), "");
  ASSERT_EQ(unsetenv("CYNOSURE_TEST_VARIABLE"), 0);
  EXPECT_EQ(system_loader().variable("CYNOSURE_TEST_VARIABLE"), nullptr);
}

// Whatever this machine has, a probe finds it or says why not.
TEST(SystemLoader, TheProbesAnswer) {
  const FoundGpus gpus = find_gpus();
  EXPECT_EQ(gpus.gpus.empty(), !gpus.why_not.empty()) << gpus.why_not;
  const FoundCudnn cudnn = find_cudnn({});
  EXPECT_EQ(cudnn.version.installed(), cudnn.why_not.empty()) << cudnn.why_not;
}

}  // namespace
}  // namespace cynosure::detect
