// SPDX-License-Identifier: Apache-2.0
// detect/loader.hpp: how the probes reach shared libraries and the environment. Tests hand in their own.
#pragma once

#include <functional>
#include <string>

namespace cynosure::detect {

/// What a probe asks of the dynamic loader. All members must be set. Nothing that was opened is closed again: drivers
/// leave handlers behind that must stay mapped.
struct Loader {
  /// Opens a library; null, and a text in `error`, when that fails.
  std::function<void*(const std::string& name, std::string& error)> open;
  /// Opens a library apart from all others of this process, with its own copies of what it needs, so that nothing in
  /// the process can bind to it later. A second call gives the same handle.
  std::function<void*(const std::string& path, std::string& error)> open_apart;
  /// A handle to a library that this process has loaded already; null otherwise. Never loads.
  std::function<void*(const std::string& name)> loaded;
  std::function<void*(void* library, const char* symbol)> symbol;
  /// The file that holds the code at an address; "" when unknown.
  std::function<std::string(void* address)> file;
  /// A variable of the environment; null when it is not set.
  std::function<const char*(const char* name)> variable;

  /// A function of an open library; null when it has none of that name.
  template <typename Function>
  [[nodiscard]] Function* function(void* library, const char* name) const {
    return reinterpret_cast<Function*>(symbol(library, name));
  }
};

/// dlopen (lazily bound, symbols kept local), dlmopen, dlsym, dladdr and getenv.
[[nodiscard]] const Loader& system_loader();

}  // namespace cynosure::detect
