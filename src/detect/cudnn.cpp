// SPDX-License-Identifier: Apache-2.0
// detect/cudnn.cpp
#include "detect/cudnn.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace cynosure::detect {
namespace {

constexpr std::array kNames{"libcudnn.so.9", "libcudnn.so.8"};

/// The answer of an open library; else, nothing, and the reason added to `why_not`.
std::optional<FoundCudnn> ask(const Loader& loader, void* library, const std::string& name, std::string& why_not) {
  auto* const get_version = loader.function<std::size_t()>(library, "cudnnGetVersion");
  std::string problem = "has no cudnnGetVersion";
  if (get_version != nullptr) {
    const auto version = Version::from_cudnn_integer(static_cast<std::uint32_t>(get_version()));
    if (version.installed())
      return FoundCudnn{.version = version, .path = loader.file(reinterpret_cast<void*>(get_version)), .why_not = {}};
    problem = "cudnnGetVersion returned 0";
  }
  why_not += (why_not.empty() ? "" : "; ") + name + ": " + problem;
  return std::nullopt;
}

std::optional<FoundCudnn> ask_loaded(const Loader& loader, const std::string& name, std::string& why_not) {
  void* const library = loader.loaded(name);
  return library != nullptr ? ask(loader, library, name, why_not) : std::nullopt;
}

std::optional<FoundCudnn> ask_file(const Loader& loader, const std::string& path, std::string& why_not) {
  std::string error;
  if (void* const library = loader.open_apart(path, error); library != nullptr)
    return ask(loader, library, path, why_not);
  why_not += (why_not.empty() ? "" : "; ") + error;
  return std::nullopt;
}

}  // namespace

FoundCudnn find_cudnn(std::span<const std::string> candidates, const Loader& loader) {
  std::string why_not;
  for (const char* const name : kNames)
    if (auto found = ask_loaded(loader, name, why_not)) return *found;
  for (const std::string& path : candidates)
    if (auto found = ask_file(loader, path, why_not)) return *found;
  for (const char* const name : kNames)
    if (auto found = ask_file(loader, name, why_not)) return *found;
  return {.version = {}, .path = {}, .why_not = why_not};
}

}  // namespace cynosure::detect
