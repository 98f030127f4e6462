// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "detect/cudnn.hpp"
#include "detect_fakes.hpp"

namespace cynosure::detect {
namespace {

template <std::size_t value>
std::size_t version() {
  return value;
}
template <std::size_t value>
FakeLibrary cudnn(const std::string& file) {
  return FakeLibrary{.file = file, .symbols = {}}.with("cudnnGetVersion", version<value>);
}

const std::vector<std::string> kWheel{"/site-packages/nvidia/cudnn/lib/libcudnn.so.9"};

TEST(DetectCudnn, TheLoadedLibraryComesFirstAndNothingIsOpened) {
  FakeMachine machine;
  machine.loaded["libcudnn.so.9"] = cudnn<92100>("/loaded/libcudnn.so.9");
  machine.libraries[kWheel[0]] = cudnn<91900>(kWheel[0]);
  const FoundCudnn found = find_cudnn(kWheel, machine.loader());
  EXPECT_EQ(found.version, Version(9, 21, 0));
  EXPECT_EQ(found.path, "/loaded/libcudnn.so.9");
  EXPECT_EQ(found.why_not, "");
  EXPECT_TRUE(machine.opened_apart.empty());
}

TEST(DetectCudnn, ACandidateComesBeforeTheSearchPathAndIsOpenedApart) {
  FakeMachine machine;
  machine.libraries[kWheel[0]] = cudnn<91900>(kWheel[0]);
  machine.libraries["libcudnn.so.9"] = cudnn<90100>("/usr/lib/libcudnn.so.9");
  const FoundCudnn found = find_cudnn(kWheel, machine.loader());
  EXPECT_EQ(found.version, Version(9, 19, 0));
  EXPECT_EQ(found.path, kWheel[0]);
  EXPECT_EQ(machine.opened_apart, kWheel);
  EXPECT_TRUE(machine.opened.empty());
}

TEST(DetectCudnn, TheSearchPathKnowsVersion8) {
  FakeMachine machine;
  machine.libraries["libcudnn.so.8"] = cudnn<8907>("/usr/lib/libcudnn.so.8");
  EXPECT_EQ(find_cudnn({}, machine.loader()).version, Version(8, 9, 7));
}

TEST(DetectCudnn, EveryFailureIsTold) {
  FakeMachine machine;
  machine.loaded["libcudnn.so.9"] = FakeLibrary{};
  machine.libraries["libcudnn.so.8"] = cudnn<0>("/usr/lib/libcudnn.so.8");
  const FoundCudnn found = find_cudnn(kWheel, machine.loader());
  EXPECT_FALSE(found.version.installed());
  EXPECT_EQ(found.path, "");
  EXPECT_EQ(found.why_not,
            "libcudnn.so.9: has no cudnnGetVersion; "
            "/site-packages/nvidia/cudnn/lib/libcudnn.so.9: cannot open shared object file: No such file or directory; "
            "libcudnn.so.9: cannot open shared object file: No such file or directory; "
            "libcudnn.so.8: cudnnGetVersion returned 0");
}

}  // namespace
}  // namespace cynosure::detect
