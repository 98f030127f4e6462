// SPDX-License-Identifier: Apache-2.0
// eager/plain.cpp: the module _eager. A plain eager call, forward and backward, without Python between the call and the
// operators: torch's autograd node of a Python class costs more host time than SDPA's whole forward at small sizes.
//
// The only source that needs torch's unstable C++ types, so it is bound to one version of torch. It holds no meaning of
// its own: without it, and wherever a call meets something unusual, the same operators are called from _operators.py.
#include <Python.h>

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <exception>
#include <utility>

namespace cynosure::eager {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kTraining = 1 << 4;  // torch/arguments.hpp has the table of options

/// backward(grad_out, q, k, v, out, lse, options, settings) and forward(q, k, v, options, settings), in Python. Never
/// released: a backward pass may outlive the interpreter.
PyObject* python_backward = nullptr;
PyObject* python_forward = nullptr;

const c10::OperatorHandle& operator_of(const char* name, const char* overload) {
  return *new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

torch::jit::Stack call(const c10::OperatorHandle& op, std::initializer_list<Tensor> tensors, std::int64_t options,
                       std::int64_t settings) {
  const at::AutoDispatchBelowADInplaceOrView below;  // the operators have no derivative of their own
  torch::jit::Stack stack;
  stack.reserve(tensors.size() + 2);
  for (const Tensor& t : tensors) stack.emplace_back(t);
  stack.emplace_back(options);
  stack.emplace_back(settings);
  op.callBoxed(stack);
  return stack;
}

Tensor output(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t options, std::int64_t settings) {
  static const auto& op = operator_of("cynosure::attention_forward", "output");
  return std::move(call(op, {q, k, v}, options, settings)[0]).toTensor();
}

/// Whether Python has to see the backward call: second derivatives, counters of FLOPs and other modes, subclasses.
bool unusual(const variable_list& tensors) {
  return at::GradMode::is_enabled() || at::areAnyTensorSubclassLike(tensors);
}

/// The same by _operators.py, which also gives an error its type.
variable_list backward_in_python(const variable_list& tensors, std::int64_t options, std::int64_t settings) {
  const pybind11::gil_scoped_acquire gil;
  auto arguments = THPObjectPtr(PyTuple_New(static_cast<Py_ssize_t>(tensors.size()) + 2));
  if (!arguments) throw python_error();
  Py_ssize_t i = 0;
  for (const Tensor& t : tensors) PyTuple_SET_ITEM(arguments.get(), i++, THPVariable_Wrap(t));
  PyTuple_SET_ITEM(arguments.get(), i++, PyLong_FromLongLong(options));
  PyTuple_SET_ITEM(arguments.get(), i, PyLong_FromLongLong(settings));
  auto result = THPObjectPtr(PyObject_CallObject(python_backward, arguments));
  if (!result) {
    python_error error;
    error.persist();
    throw error;  // NOLINT(hicpp-exception-baseclass): torch's engine hands it to the caller of backward
  }
  variable_list grads;
  for (Py_ssize_t n = 0; n < 3; ++n) {
    PyObject* grad = PyTuple_GetItem(result.get(), n);
    if (grad == nullptr) throw python_error();
    grads.push_back(grad == Py_None ? Tensor() : THPVariable_Unpack(grad));
  }
  return grads;
}

struct CynosureAttention : torch::autograd::Function<CynosureAttention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t options,
                        std::int64_t settings) {
    static const auto& op = operator_of("cynosure::attention_forward", "plain");
    torch::jit::Stack stack = call(op, {q, k, v}, options, settings);
    Tensor out = std::move(stack[0]).toTensor();
    ctx->save_for_backward({q, k, v, out, std::move(stack[1]).toTensor()});
    ctx->saved_data["call"] = std::make_tuple(options, settings);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    static const auto& op = operator_of("cynosure::attention_backward", "plain");
    const variable_list saved = ctx->get_saved_variables();
    const auto [options, settings] = ctx->saved_data["call"].to<std::tuple<std::int64_t, std::int64_t>>();
    variable_list grads;
    const variable_list all{grad_outputs[0], saved[0], saved[1], saved[2], saved[3], saved[4]};
    if (unusual(all)) {
      grads = backward_in_python(all, options, settings);
    } else {
      try {
        for (c10::IValue& grad : call(op, {all[0], all[1], all[2], all[3], all[4], all[5]}, options, settings))
          grads.push_back(std::move(grad).toTensor());
      } catch (const std::exception&) {
        grads = backward_in_python(all, options, settings);  // fails again, with the type of the error
      }
    }
    grads.resize(5);  // options and settings have none
    return grads;
  }
};

Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t options, std::int64_t settings) {
  if (at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad()))
    return CynosureAttention::apply(q, k, v, options | kTraining, settings);
  return output(q, k, v, options, settings);
}

/// attention(q, k, v, options, settings) -> out.
PyObject* attention(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 5 || python_backward == nullptr) {
    PyErr_SetString(PyExc_TypeError, "attention: expected q, k, v, options, settings, after register()");
    return nullptr;
  }
  if (!THPVariable_CheckExact(given[0]) || !THPVariable_CheckExact(given[1]) || !THPVariable_CheckExact(given[2]) ||
      at::impl::torch_function_mode_enabled())
    return PyObject_Vectorcall(python_forward, given, static_cast<std::size_t>(count), nullptr);
  const std::int64_t options = PyLong_AsLongLong(given[3]);
  const std::int64_t settings = PyLong_AsLongLong(given[4]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const Tensor& q = THPVariable_Unpack(given[0]);
  const Tensor& k = THPVariable_Unpack(given[1]);
  const Tensor& v = THPVariable_Unpack(given[2]);
  Tensor out;
  {
    const pybind11::gil_scoped_release released;
    out = run(q, k, v, options, settings);
  }
  return THPVariable_Wrap(std::move(out));
  END_HANDLE_TH_ERRORS
}

/// register(forward, backward): what runs the unusual calls.
PyObject* set_python(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "register: expected forward and backward");
    return nullptr;
  }
  Py_INCREF(given[0]);
  Py_INCREF(given[1]);
  python_forward = given[0];
  python_backward = given[1];
  Py_RETURN_NONE;
}

template <class Function>
PyCFunction fast(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"attention", fast(&attention), METH_FASTCALL, "attention(q, k, v, options, settings) -> out: a plain call."},
    {"register", fast(&set_python), METH_FASTCALL, "register(forward, backward): what runs the unusual calls."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module{PyModuleDef_HEAD_INIT, "_eager", "Plain eager calls, bound to one version of torch.", -1, methods,
                   nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace cynosure::eager

PyMODINIT_FUNC PyInit__eager() { return PyModule_Create(&cynosure::eager::module); }
