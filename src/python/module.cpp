// SPDX-License-Identifier: Apache-2.0
// python/module.cpp: the module _core.
#include <cynosure/version.hpp>

#include "python/convert.hpp"

NB_MODULE(_core, m) {
  m.doc() = "The native core of Cynosure. Use the package cynosure; names here may change between releases.";
  m.attr("VERSION") = CYNOSURE_VERSION;
  m.attr("CUDNN_BUILT") = CYNOSURE_CUDNN_BUILT != 0;  // libcynosure_torch has the backend
  cynosure::python::bind_values(m);
  cynosure::python::bind_select(m);
  cynosure::python::bind_now(m);
  cynosure::python::bind_records(m);
  cynosure::python::bind_detect(m);
  cynosure::python::bind_call(m);
}
