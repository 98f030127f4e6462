// SPDX-License-Identifier: Apache-2.0
// python/bind_detect.cpp: the probes of src/detect, as plain values. python/cynosure/_detect.py makes facts of them.
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "detect/cpu.hpp"
#include "detect/cuda.hpp"
#include "detect/cudnn.hpp"
#include "detect/flash.hpp"
#include "python/convert.hpp"

namespace cynosure::python {
namespace {

using Text = std::optional<std::string>;

[[nodiscard]] Text text_or_none(std::string text) { return text.empty() ? Text() : Text(std::move(text)); }

std::tuple<std::string, std::string> detect_cpu() {
  const auto isa = static_cast<std::size_t>(detect::best_cpu_isa());
  return {std::string(kCpuIsaNames.at(isa)), detect::cpu_name()};
}

std::tuple<std::vector<std::tuple<std::string, unsigned, unsigned>>, Text> detect_cuda() {
  detect::FoundGpus found = detect::find_gpus();
  std::vector<std::tuple<std::string, unsigned, unsigned>> gpus;
  gpus.reserve(found.gpus.size());
  for (detect::Gpu& gpu : found.gpus) gpus.emplace_back(std::move(gpu.name), gpu.sm, gpu.sm_count);
  return {std::move(gpus), text_or_none(std::move(found.why_not))};
}

std::tuple<Text, Text, Text> detect_cudnn(const std::vector<std::string>& paths) {
  detect::FoundCudnn found = detect::find_cudnn(paths);
  return {text_or_none(found.version.to_string()), text_or_none(std::move(found.path)),
          text_or_none(std::move(found.why_not))};
}

[[nodiscard]] std::string unreadable(const std::string& package, const std::string& version) {
  return package + ": the version \"" + version + "\" cannot be read";
}

Text refuse_flash2(const std::string& version_text, unsigned sm) {
  const std::optional<Version> version = Version::parse(version_text);
  return version ? detect::refuse_flash2(*version, sm) : unreadable("flash-attn", version_text);
}

Text refuse_flash4(const std::string& version_text, const Text& cutlass_dsl_text) {
  const std::optional<Version> version = Version::parse(version_text);
  if (!version) return unreadable("flash-attn-4", version_text);
  if (!cutlass_dsl_text) return detect::refuse_flash4(*version, {});
  const std::optional<Version> cutlass_dsl = Version::parse(*cutlass_dsl_text);
  return cutlass_dsl ? detect::refuse_flash4(*version, *cutlass_dsl)
                     : unreadable("nvidia-cutlass-dsl", *cutlass_dsl_text);
}

}  // namespace

void bind_detect(nb::module_& m) {
  // Loading a driver takes long enough that other threads should run meanwhile.
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;
  m.def("detect_cpu", detect_cpu, "The best usable instruction set, and the processor's name.");
  m.def("detect_cuda", detect_cuda, Unlocked(),
        "(name, compute capability times 10, multiprocessors) of each visible GPU, and why there are none.");
  m.def("detect_cudnn", detect_cudnn, nb::arg("paths"), Unlocked(),
        "Version, file, and why not, of the cuDNN that is loaded or would be; `paths` are tried first.");
  m.def("refuse_flash2", refuse_flash2, nb::arg("version"), nb::arg("sm"),
        "Why this flash-attn is not accepted on that compute capability times 10 (0: no GPU), or None.");
  m.def("refuse_flash4", refuse_flash4, nb::arg("version"), nb::arg("cutlass_dsl").none(),
        "Why this flash-attn-4 is not accepted beside that nvidia-cutlass-dsl (None: not installed), or None.");
}

}  // namespace cynosure::python
