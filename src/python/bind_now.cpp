// SPDX-License-Identifier: Apache-2.0
// python/bind_now.cpp: what holds of the process now, remembered, so that an eager selection is one call. Everything
// here runs under the interpreter's lock.
#include <algorithm>
#include <array>
#include <vector>

#include <nanobind/nanobind.h>

#include <cynosure/select.hpp>

#include "python/convert.hpp"

namespace cynosure::python {
namespace {

/// What was last made of the environment, torch's flags and the added fault rows, and of which. Values of variables are
/// compared by identity: os.environ puts a new object in its dict whenever a variable is set, and those held here
/// cannot be replaced by others.
struct Now {
  std::vector<nb::object> keys;
  std::size_t isa = 0;                    ///< index of CYNOSURE_CPU_ISA
  std::size_t check = 0;                  ///< index of CYNOSURE_CHECK
  std::array<std::size_t, 3> log_keys{};  ///< indices of the variables that say what is logged
  nb::tuple values;
  nb::object added;
  nb::object deterministic_of, precision_of;  ///< torch's functions; None: torch is not imported
  bool deterministic = false;
  int precision = 0;
  nb::object word;                       ///< not valid: nothing is remembered
  std::array<nb::object, 3> log_values;  ///< those that `logged` was made from
  bool logged = true;                    ///< whether decisions are logged, or that is not known yet
  nb::object machine;                    ///< the packed form of this machine, or not valid
  nb::object current_of, current;        ///< the function that gives the current CUDA device, or None; and what it gave
};

Now& now() {
  static auto* last = new Now;  // never destroyed: the interpreter may be gone by then
  if (last->keys.empty()) {
    const auto index_of = [](std::string_view name) {
      const auto& names = environment();
      return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    };
    for (const std::string& name : environment()) last->keys.push_back(nb::bytes(name.data(), name.size()));
    last->isa = index_of("CYNOSURE_CPU_ISA");
    last->check = index_of("CYNOSURE_CHECK");
    last->log_keys = {index_of("CYNOSURE_LOG"), index_of("NVTE_DEBUG"), index_of("NVTE_DEBUG_LEVEL")};
  }
  return *last;
}

bool unchanged(const Now& last, PyObject* environ, std::size_t i) {
  PyObject* value = PyDict_GetItemWithError(environ, last.keys[i].ptr());
  return (value == nullptr ? Py_None : value) == PyTuple_GET_ITEM(last.values.ptr(), static_cast<Py_ssize_t>(i));
}

/// Torch has not been imported since it was not there.
bool torch_still_absent() {
  static PyObject* torch = PyUnicode_InternFromString("torch");
  return PyDict_GetItemWithError(PyImport_GetModuleDict(), torch) == nullptr;
}

bool flags_unchanged(const Now& last) {
  if (last.deterministic_of.is_none()) return torch_still_absent();
  return last.deterministic_of().is(last.deterministic ? Py_True : Py_False) &&
         (PyUnicode_CompareWithASCIIString(last.precision_of().ptr(), "highest") != 0 ? 1 : 0) == last.precision;
}

/// Whether the word is still that of now.
bool word_holds(const Now& last, PyObject* environ, PyObject* added) {
  if (!last.word.is_valid() || last.added.ptr() != added) return false;
  for (std::size_t i = 0; i < last.keys.size(); ++i)
    if (!unchanged(last, environ, i)) return false;
  return flags_unchanged(last);
}

/// This machine, where CYNOSURE_CPU_ISA is unchanged, or an invalid object.
nb::object machine_of(const Now& last) {
  nb::object machine = last.machine;  // before Python code runs, which may let another thread in
  if (!machine.is_valid() || (last.deterministic_of.is_none() && !torch_still_absent())) return {};
  return last.current_of.is_none() || last.current_of().equal(last.current) ? machine : nb::object();
}

/// Whether nothing is logged, by the values that were remembered for the word.
bool silent(const Now& last) {
  for (std::size_t i = 0; i < last.log_keys.size(); ++i)
    if (!last.log_values[i].is(last.values[last.log_keys[i]])) return false;
  return !last.logged;
}

/// Whether nothing is logged, by the variables of now.
bool silent_now(const Now& last, PyObject* environ) {
  for (std::size_t i = 0; i < last.log_keys.size(); ++i) {
    PyObject* value = PyDict_GetItemWithError(environ, last.keys[last.log_keys[i]].ptr());
    if ((value == nullptr ? Py_None : value) != last.log_values[i].ptr()) return false;
  }
  return !last.logged;
}

/// (the word, whether decisions may have to be logged, this machine or None), or None where something has changed.
nb::object recall(const nb::dict& environ, const nb::object& added) {
  const Now& last = now();
  if (!word_holds(last, environ.ptr(), added.ptr())) return nb::none();
  const nb::object word = last.word;
  const bool logged = !silent(last);
  const nb::object machine = machine_of(last);
  return nb::make_tuple(word, logged, machine.is_valid() ? machine : nb::object(nb::none()));
}

/// Whether every one of these functions of torch's gives 0 or False.
bool all_off(const nb::tuple& functions) {
  for (std::size_t i = 0; i < functions.size(); ++i) {
    const nb::object on = nb::steal(PyObject_CallNoArgs(PyTuple_GET_ITEM(functions.ptr(), static_cast<Py_ssize_t>(i))));
    if (!on.is_valid()) nb::raise_python_error();
    const bool off = on.is(Py_False) || (!on.is(Py_True) && PyObject_IsTrue(on.ptr()) == 0);
    if (!off) return false;
  }
  return true;
}

/// The word of now where a call needs nothing else of the process: nothing is logged, no variable changes how kernels
/// run, and `modes` and the level of forward-mode differentiation are off. Otherwise None.
nb::object plain_word(const nb::dict& environ, const nb::object& added, const nb::tuple& modes,
                      const nb::dict& forward_ad) {
  static PyObject* level_name = PyUnicode_InternFromString("_current_level");
  static PyObject* no_level = PyLong_FromLong(-1);
  const Now& last = now();
  if (!word_holds(last, environ.ptr(), added.ptr()) || !silent(last)) return nb::none();
  if (!last.values[last.isa].is_none() || !last.values[last.check].is_none()) return nb::none();
  if (PyDict_GetItemWithError(forward_ad.ptr(), level_name) != no_level || !all_off(modes)) return nb::none();
  return last.word;
}

/// The values are those that the word was made from, not those of now: another thread may have changed the environment.
void remember(const nb::tuple& values, const nb::object& added, const nb::object& flags, bool deterministic,
              int precision, const nb::object& word) {
  Now& last = now();
  if (values.size() != last.keys.size()) throw std::invalid_argument("remember: one value for each of ENVIRONMENT");
  last.values = values;
  last.added = added;
  last.deterministic_of = flags.is_none() ? nb::object(nb::none()) : nb::object(flags[0]);
  last.precision_of = flags.is_none() ? nb::object(nb::none()) : nb::object(flags[1]);
  last.deterministic = deterministic;
  last.precision = precision;
  last.word = word;
  last.machine.reset();
}

/// `values`: those of the variables that say what is logged.
void remember_logged(const nb::tuple& values, bool logged) {
  Now& last = now();
  if (values.size() != last.log_values.size()) throw std::invalid_argument("remember_logged: three values");
  for (std::size_t i = 0; i < last.log_values.size(); ++i) last.log_values[i] = values[i];
  last.logged = logged;
}

/// `isa`: the value of CYNOSURE_CPU_ISA that the machine was made with.
void remember_machine(const nb::object& isa, const nb::bytes& machine, const nb::object& current_of,
                      const nb::object& current) {
  Now& last = now();
  if (!last.word.is_valid() || !isa.is(last.values[last.isa])) return;
  last.machine = machine;
  last.current_of = current_of;
  last.current = current;
}

/// An attribute, or an invalid object where there is none; no exception is left.
nb::object attribute(nb::handle object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) PyErr_Clear();
  return nb::steal(value);
}

/// A Decision over known lengths, or None where only Python can tell: something has changed since the last call, the
/// decision is to be logged, or an argument is of another type.
nb::object select_now(const nb::type_object& decision_type, nb::handle problem, nb::handle device, nb::handle settings,
                      const nb::dict& environ, const nb::object& added) {
  static PyObject* value_name = PyUnicode_InternFromString("_value");
  static PyObject* key_name = PyUnicode_InternFromString("_key");
  static PyObject* word_name = PyUnicode_InternFromString("_word");
  static PyObject* made_name = PyUnicode_InternFromString("_made");

  const Now& last = now();
  nb::object word;
  if (settings.is_none()) {
    if (!word_holds(last, environ.ptr(), added.ptr())) return nb::none();
    if (!silent(last)) return nb::none();
    word = last.word;
  } else {
    if (!silent_now(last, environ.ptr())) return nb::none();
    word = attribute(settings, word_name);
    if (!word.is_valid()) return nb::none();
  }
  nb::object machine;
  if (device.is_none()) {
    machine = machine_of(last);
    if (!machine.is_valid() || !unchanged(last, environ.ptr(), last.isa)) return nb::none();
  } else {
    machine = attribute(device, key_name);
  }
  const nb::object value = attribute(problem, value_name);
  if (!machine.is_valid() || !value.is_valid() || !PyTuple_Check(value.ptr()) || PyTuple_GET_SIZE(value.ptr()) != 4)
    return nb::none();

  Lengths lengths;
  std::array<std::int64_t*, 3> parts{&lengths.batch, &lengths.seqlen_q, &lengths.seqlen_k};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    *parts[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(value.ptr(), static_cast<Py_ssize_t>(i + 1)));
    if (*parts[i] == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  }
  const auto features = from_bytes<Features>(nb::cast<nb::bytes>(value[0]));
  const Outcome outcome = cached_outcome({features, lengths}, settings_from(nb::cast<std::int64_t>(word)),
                                         from_bytes<Device>(nb::cast<nb::bytes>(machine)));

  auto* type = reinterpret_cast<PyTypeObject*>(decision_type.ptr());
  nb::object decision = nb::steal(type->tp_alloc(type, 0));
  if (!decision.is_valid()) nb::raise_python_error();
  const nb::tuple made =
      nb::make_tuple(problem, word, machine, nb::none(), static_cast<int>(outcome.eligible.bits()), outcome.chosen);
  if (PyObject_SetAttr(decision.ptr(), made_name, made.ptr()) != 0) nb::raise_python_error();
  return decision;
}

}  // namespace

void bind_now(nb::module_& m) {
  m.def("recall", &recall, nb::arg("environ"), nb::arg("added"),
        "(word, whether decisions may have to be logged, this machine or None), or None where something has changed.");
  m.def("remember", &remember, nb::arg("values"), nb::arg("added"), nb::arg("flags").none(), nb::arg("deterministic"),
        nb::arg("precision"), nb::arg("word"));
  m.def("plain_word", &plain_word, nb::arg("environ"), nb::arg("added"), nb::arg("modes"), nb::arg("forward_ad"),
        "The word of now, or None where a call has to look at more of the process than its arguments.");
  m.def("remember_logged", &remember_logged, nb::arg("values"), nb::arg("logged"));
  m.def("remember_machine", &remember_machine, nb::arg("isa").none(), nb::arg("machine"), nb::arg("current_of").none(),
        nb::arg("current").none());
  m.def("select_now", &select_now, nb::arg("decision_type"), nb::arg("problem").none(), nb::arg("device").none(),
        nb::arg("settings").none(), nb::arg("environ"), nb::arg("added"),
        "A Decision over known lengths, or None where only Python can tell.");
}

}  // namespace cynosure::python
