// SPDX-License-Identifier: Apache-2.0
// rules/common.hpp: rows about what is switched on, installed and built, and which device a backend needs.
#pragma once

#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

/// `Id` holds the row ids, one for each backend, because a string cannot be put together at compile time without cost.
struct PerBackendIds {
  std::string_view switched_off, not_required, not_built;
};
template <Backend B>
constexpr auto per_backend(const PerBackendIds& ids) {
  return std::tuple{
      row({.id = ids.switched_off,
           .backends = B,
           .way = Way::switched_off,
           .reads = {Field::switched_off},
           .required = "switched on",
           .evidence = "NVTE_FLASH_ATTN*, NVTE_FUSED_ATTN, NVTE_UNFUSED_ATTN, sdpa_kernel; TE spec 1.4",
           .te_stage = 0},
          [](const auto& c) { return !c.s.enabled().contains(B); }),
      row({.id = ids.not_required,
           .backends = B,
           .way = Way::not_required,
           .reads = {Field::contract},
           .required = "named in require(...)",
           .evidence = "backend=, CYNOSURE_BACKEND",
           .te_stage = 0},
          [](const auto& c) { return c.s.contract() == Contract::require && !c.s.names(B); }),
      row({.id = ids.not_built,
           .backends = B,
           .policies = Policies::fastest,
           .way = Way::not_built,
           .reads = {Field::built},
           .required = "built in this release of Cynosure",
           .evidence = "cynosure env"},
          [](const auto& c) { return !c.d.built_backends().contains(B); }),
  };
}

inline constexpr auto kCommonRows = std::tuple_cat(
    per_backend<Backend::cpu>({"cpu.switched_off", "cpu.not_required", "cpu.not_built"}),
    per_backend<Backend::cudnn>({"cudnn.switched_off", "cudnn.not_required", "cudnn.not_built"}),
    per_backend<Backend::cudnn_fp8>({"cudnn_fp8.switched_off", "cudnn_fp8.not_required", "cudnn_fp8.not_built"}),
    per_backend<Backend::flash2>({"flash2.switched_off", "flash2.not_required", "flash2.not_built"}),
    per_backend<Backend::aten_flash>({"aten_flash.switched_off", "aten_flash.not_required", "aten_flash.not_built"}),
    per_backend<Backend::flash3>({"flash3.switched_off", "flash3.not_required", "flash3.not_built"}),
    per_backend<Backend::flash4>({"flash4.switched_off", "flash4.not_required", "flash4.not_built"}),
    per_backend<Backend::unfused>({"unfused.switched_off", "unfused.not_required", "unfused.not_built"}),
    std::tuple{row({.id = "cudnn.not_installed",
                    .backends = kCudnnBackends,
                    .way = Way::not_installed,
                    .reads = {Field::cudnn},
                    .required = "cuDNN",
                    .evidence = "runtime version"},
                   [](const auto& c) { return !c.d.cudnn.installed(); }),
               row({.id = "flash2.not_installed",
                    .backends = Backend::flash2,
                    .way = Way::not_installed,
                    .reads = {Field::flash2},
                    .required = "the flash-attn package, 2.1.1 to 2.8.3 (2.7.3 or newer on sm 10.0 and up)",
                    .evidence = "TE spec 1.3",
                    .te_stage = 21},
                   [](const auto& c) { return !c.d.flash2.installed(); }),
               row({.id = "flash3.not_installed",
                    .backends = Backend::flash3,
                    .way = Way::not_installed,
                    .reads = {Field::flash3},
                    .required = "the flash-attn-3 package",
                    .evidence = "TE spec 1.3",
                    .te_stage = 21},
                   [](const auto& c) { return !c.d.flash3.installed(); }),
               row({.id = "flash4.not_installed",
                    .backends = Backend::flash4,
                    .way = Way::not_installed,
                    .reads = {Field::flash4},
                    .required = "the flash-attn-4 package with nvidia-cutlass-dsl",
                    .evidence = "TE spec 1.3",
                    .te_stage = 21},
                   [](const auto& c) { return !c.d.flash4.installed(); }),
               row({.id = "aten_flash.not_installed",
                    .backends = Backend::aten_flash,
                    .way = Way::not_installed,
                    .reads = {Field::torch},
                    .required = "torch, built with CUDA",
                    .evidence = "torch ships it"},
                   [](const auto& c) { return !c.d.torch.installed(); }),
               row({.id = "flash4.interpreter",
                    .backends = Backend::flash4,
                    .policies = Policies::fastest,
                    .way = Way::not_installed,
                    .reads = {Field::interpreter},
                    .required = "a Python interpreter in the process",
                    .evidence = "flash-attn-4 is compiled by Python code at run time"},
                   [](const auto& c) { return !c.d.interpreter; }),
               row({.id = "cpu.device",
                    .backends = Backend::cpu,
                    .reads = {Field::device_kind},
                    .required = "tensors on the CPU",
                    .evidence = "these kernels run on the CPU"},
                   [](const auto& c) { return c.d.kind != DeviceKind::cpu; }),
               row({.id = "cuda.device",
                    .backends = kCudnnBackends | kFlashBackends,
                    .reads = {Field::device_kind},
                    .required = "tensors on a CUDA device",
                    .evidence = "these kernels run on CUDA devices"},
                   [](const auto& c) { return c.d.kind != DeviceKind::cuda; })});

}  // namespace cynosure::rules
