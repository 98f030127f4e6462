// SPDX-License-Identifier: Apache-2.0
// torch/aten.hpp: tensors and torch's own operators through the stable ABI: handles, no C++ type of torch's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

namespace cynosure::torch_abi {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Sizes = std::vector<std::int64_t>;

/// A failed call into torch, whose text torch has logged or will raise.
inline void ok(AOTITorchError error, const char* what) {
  if (error != AOTI_TORCH_SUCCESS) throw std::runtime_error(std::string("cynosure: torch refused ") + what);
}

/// Any operator of torch's by name. Every argument of its schema is given; a Scalar is a double.
template <class... Arguments>
Tensor aten(const char* name, const char* overload, const Arguments&... arguments) {
  std::array<StableIValue, sizeof...(Arguments)> stack{torch::stable::detail::from(arguments)...};
  ok(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION), name);
  return torch::stable::detail::to<Tensor>(stack[0]);
}

inline const std::int64_t* sizes(const Tensor& t) {
  std::int64_t* result = nullptr;
  ok(aoti_torch_get_sizes(t.get(), &result), "sizes");
  return result;
}
inline const std::int64_t* strides(const Tensor& t) {
  std::int64_t* result = nullptr;
  ok(aoti_torch_get_strides(t.get(), &result), "strides");
  return result;
}
inline std::int64_t rank(const Tensor& t) {
  std::int64_t result = 0;
  ok(aoti_torch_get_dim(t.get(), &result), "dim");
  return result;
}
inline void* data(const Tensor& t) {
  void* result = nullptr;
  ok(aoti_torch_get_data_ptr(t.get(), &result), "data_ptr");
  return result;
}
inline std::int32_t dtype(const Tensor& t) {
  std::int32_t result = 0;
  ok(aoti_torch_get_dtype(t.get(), &result), "dtype");
  return result;
}
inline std::int32_t device_type(const Tensor& t) {
  std::int32_t result = 0;
  ok(aoti_torch_get_device_type(t.get(), &result), "device");
  return result;
}
inline std::int32_t device_index(const Tensor& t) {
  std::int32_t result = 0;
  ok(aoti_torch_get_device_index(t.get(), &result), "device");
  return result;
}

/// Uninitialised memory on the device of another tensor.
inline Tensor empty(const Tensor& like, std::int32_t dtype, const std::int64_t* sizes, const std::int64_t* strides,
                    std::int64_t rank) {
  AtenTensorHandle result = nullptr;
  ok(aoti_torch_empty_strided(rank, sizes, strides, dtype, device_type(like), device_index(like), &result), "memory");
  return Tensor(result);
}
inline Tensor empty(const Tensor& like, std::int32_t dtype, const Sizes& sizes) {
  Sizes strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i] > 0 ? sizes[i] : 1;
  }
  return empty(like, dtype, sizes.data(), strides.data(), static_cast<std::int64_t>(sizes.size()));
}
/// The same size and dtype, in one piece.
inline Tensor empty_like(const Tensor& t) { return empty(t, dtype(t), Sizes(sizes(t), sizes(t) + rank(t))); }
/// The tensor with its last dimension in one piece, as kernels take it by pointer: copied where it is not.
inline Tensor rows_in_one_piece(const Tensor& t) {
  const std::int64_t last = rank(t) - 1;
  if (last < 0 || strides(t)[last] == 1 || sizes(t)[last] < 2) return t;
  return aten("aten::contiguous", "", t, aoti_torch_memory_format_contiguous_format());
}
/// What Python sees as None.
inline Tensor undefined() {
  AtenTensorHandle result = nullptr;
  ok(aoti_torch_new_uninitialized_tensor(&result), "memory");
  return Tensor(result);
}

/// Nothing that runs inside is recorded by autograd.
class NoGrad {
 public:
  NoGrad() : before_(aoti_torch_grad_mode_is_enabled()) { aoti_torch_grad_mode_set_enabled(false); }
  ~NoGrad() { aoti_torch_grad_mode_set_enabled(before_); }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

}  // namespace cynosure::torch_abi
