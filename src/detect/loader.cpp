// SPDX-License-Identifier: Apache-2.0
// detect/loader.cpp: the dynamic loader of the system.
#include "detect/loader.hpp"

#include <cstdlib>
#include <map>
#include <mutex>

#include <dlfcn.h>

namespace cynosure::detect {
namespace {

void* or_error(void* handle, const std::string& name, std::string& error) {
  if (handle == nullptr) {
    const char* const text = dlerror();
    error = text != nullptr ? text : name + ": cannot be opened";
  }
  return handle;
}

void* open(const std::string& name, std::string& error) {
  return or_error(dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL), name, error);
}

#if defined(__GLIBC__)
void* open_apart(const std::string& path, std::string& error) {
  // glibc has 16 namespaces, and a library may keep its own for good: one for each path, never more.
  static std::mutex mutex;
  static std::map<std::string, void*> handles;
  const std::lock_guard lock(mutex);
  if (const auto known = handles.find(path); known != handles.end()) return known->second;
  void* const handle = or_error(dlmopen(LM_ID_NEWLM, path.c_str(), RTLD_LAZY | RTLD_LOCAL), path, error);
  if (handle != nullptr) handles.emplace(path, handle);
  return handle;
}
#else
void* open_apart(const std::string& path, std::string& error) {
  error = path + ": not loaded yet, and this C library cannot open it apart";
  return nullptr;
}
#endif

std::string file(void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace

const Loader& system_loader() {
  static const Loader loader{
      .open = open,
      .open_apart = open_apart,
      .loaded = [](const std::string& name) { return dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD); },
      .symbol = [](void* library, const char* symbol) { return dlsym(library, symbol); },
      .file = file,
      .variable = [](const char* name) -> const char* { return std::getenv(name); },
  };
  return loader;
}

}  // namespace cynosure::detect
