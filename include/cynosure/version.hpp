// SPDX-License-Identifier: Apache-2.0
// cynosure/version.hpp: the version, in its one place. CMake and the Python build read it from here.
#pragma once

#define CYNOSURE_VERSION_MAJOR 0
#define CYNOSURE_VERSION_MINOR 1
#define CYNOSURE_VERSION_PATCH 0
