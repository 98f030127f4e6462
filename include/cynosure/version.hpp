// SPDX-License-Identifier: Apache-2.0
// cynosure/version.hpp: the version, in its one place. CMake and the Python build read it from here.
#pragma once

#define CYNOSURE_VERSION_MAJOR 0
#define CYNOSURE_VERSION_MINOR 1
#define CYNOSURE_VERSION_PATCH 0

#define CYNOSURE_STRINGIFY_(x) #x
#define CYNOSURE_STRINGIFY(x) CYNOSURE_STRINGIFY_(x)
#define CYNOSURE_VERSION                     \
  CYNOSURE_STRINGIFY(CYNOSURE_VERSION_MAJOR) \
  "." CYNOSURE_STRINGIFY(CYNOSURE_VERSION_MINOR) "." CYNOSURE_STRINGIFY(CYNOSURE_VERSION_PATCH)
