// SPDX-License-Identifier: Apache-2.0
// attend: runs an exported model without Python, and compares with what eager code gave.
//   attend libcynosure_torch.so attend.pt2 cases.pt
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

namespace {

constexpr double kTolerance = 1e-5;

/// The operators register themselves when their library is loaded; a package that names them cannot be loaded before.
void load_operators(const char* library) {
  if (dlopen(library, RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
}

std::vector<char> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string(path) + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs one case; whether the result is what eager code gave.
bool agrees(torch::inductor::AOTIModelPackageLoader& model, const at::Tensor& x, const at::Tensor& lengths,
            const at::Tensor& expected) {
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor out = model.run({x, lengths}).at(0);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  const double difference = (out - expected).abs().max().item<double>();
  std::printf("batch %3ld, length %5ld: largest difference to eager %.1e, %.2f ms\n", static_cast<long>(x.size(0)),
              static_cast<long>(x.size(1)), difference, took.count());
  return out.sizes() == expected.sizes() && difference <= kTolerance;
}

int run(const char* library, const char* package, const char* cases) {
  load_operators(library);
  torch::inductor::AOTIModelPackageLoader model(package);
  bool good = true;
  const c10::IValue all = torch::jit::pickle_load(read(cases));
  for (const c10::IValue& item : all.toListRef()) {
    const auto& values = item.toTupleRef().elements();
    good = agrees(model, values.at(0).toTensor(), values.at(1).toTensor(), values.at(2).toTensor()) && good;
  }
  return good ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fputs("usage: attend libcynosure_torch.so attend.pt2 cases.pt\n", stderr);
    return 2;
  }
  try {
    return run(arguments[1], arguments[2], arguments[3]);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "attend: %s\n", error.what_without_backtrace());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attend: %s\n", error.what());
    return 2;
  }
}
