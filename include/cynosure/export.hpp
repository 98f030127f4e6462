// SPDX-License-Identifier: Apache-2.0
// cynosure/export.hpp: CYNOSURE_API marks what the shared library exports; everything else is hidden.
#pragma once

#if defined(_WIN32)
#if defined(CYNOSURE_BUILDING)  // set by the build, for the library's own sources only
#define CYNOSURE_API __declspec(dllexport)
#else
#define CYNOSURE_API __declspec(dllimport)
#endif
#else
#define CYNOSURE_API __attribute__((visibility("default")))
#endif
