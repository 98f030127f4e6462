// SPDX-License-Identifier: Apache-2.0
// A dynamic loader of made-up libraries, for the probes of src/detect.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "detect/loader.hpp"

namespace cynosure::detect {

struct FakeLibrary {
  std::string file;
  std::map<std::string, void*> symbols;

  template <typename Function>
  FakeLibrary& with(const std::string& name, Function* function) {
    symbols[name] = reinterpret_cast<void*>(function);
    return *this;
  }
};

/// Libraries by the name they are opened with, and the record of what a probe opened.
struct FakeMachine {
  std::map<std::string, FakeLibrary> libraries;  ///< can be opened
  std::map<std::string, FakeLibrary> loaded;     ///< are in the process
  std::map<std::string, std::string> variables;
  std::vector<std::string> opened;
  std::vector<std::string> opened_apart;

  [[nodiscard]] Loader loader() {
    return {
        .open = [this](const std::string& name, std::string& error) { return find(name, opened, error); },
        .open_apart = [this](const std::string& name, std::string& error) { return find(name, opened_apart, error); },
        .loaded = [this](const std::string& name) -> void* {
          const auto found = loaded.find(name);
          return found != loaded.end() ? &found->second : nullptr;
        },
        .symbol = [](void* library, const char* symbol) -> void* {
          const auto& symbols = static_cast<FakeLibrary*>(library)->symbols;
          const auto found = symbols.find(symbol);
          return found != symbols.end() ? found->second : nullptr;
        },
        .file = [this](void* address) { return file_of(address); },
        .variable = [this](const char* name) -> const char* {
          const auto found = variables.find(name);
          return found != variables.end() ? found->second.c_str() : nullptr;
        },
    };
  }

 private:
  void* find(const std::string& name, std::vector<std::string>& record, std::string& error) {
    record.push_back(name);
    const auto found = libraries.find(name);
    if (found != libraries.end()) return &found->second;
    error = name + ": cannot open shared object file: No such file or directory";
    return nullptr;
  }

  [[nodiscard]] std::string file_of(void* address) const {
    for (const auto* libraries_of : {&loaded, &libraries})
      for (const auto& [name, library] : *libraries_of)
        for (const auto& [symbol, function] : library.symbols)
          if (function == address) return library.file;
    return {};
  }
};

}  // namespace cynosure::detect
