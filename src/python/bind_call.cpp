// SPDX-License-Identifier: Apache-2.0
// python/bind_call.cpp: checks of a call by the shapes of its tensors, the operators' last error, and the ledger.
#include <array>
#include <optional>
#include <string>
#include <tuple>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cynosure/call.hpp>
#include <cynosure/ledger.hpp>

#include "python/convert.hpp"

namespace cynosure::python {
namespace {

/// (dtype name, sizes with -1 for an unknown one, torch's device type, device index), or None.
TensorInfo tensor_info(nb::handle object) {
  TensorInfo info;
  if (object.is_none()) return info;
  const auto row = nb::cast<nb::tuple>(object);
  info.given = true;
  const std::string_view name = nb::cast<nb::str>(row[0]).c_str();  // lives as long as the tuple
  for (std::size_t i = 0; i < kElementNames.size(); ++i)
    if (kElementNames[i] == name) info.element = static_cast<Element>(i);
  info.other_name = name;
  const auto sizes = nb::cast<nb::tuple>(row[1]);
  info.rank = static_cast<std::int8_t>(sizes.size());
  for (std::size_t i = 0; i < sizes.size() && i < 4; ++i) info.sizes[i] = nb::cast<std::int64_t>(sizes[i]);
  info.device_kind = nb::cast<std::int16_t>(row[2]);
  info.device_index = nb::cast<std::int16_t>(row[3]);
  return info;
}

std::optional<std::string> check_call(const nb::tuple& tensors, std::int64_t max_seqlen_q, std::int64_t max_seqlen_k,
                                      std::int64_t window_left, std::int64_t window_right, double scale, double softcap,
                                      double dropout_p, int dims, bool causal) {
  Call call;
  const std::array to{
      &call.q,     &call.k,         &call.v,         &call.attn_bias,   &call.attn_mask, &call.alibi_slopes,
      &call.sinks, &call.seqlens_q, &call.seqlens_k, &call.dropout_seed};
  for (std::size_t i = 0; i < to.size(); ++i) *to[i] = tensor_info(tensors[i]);
  call.max_seqlen_q = max_seqlen_q;
  call.max_seqlen_k = max_seqlen_k;
  call.window_left = window_left;
  call.window_right = window_right;
  call.scale = scale;
  call.softcap = softcap;
  call.dropout_p = dropout_p;
  call.dims = static_cast<Dims>(dims);
  call.causal = causal;
  const std::optional<CallError> error = check(call);
  return error ? std::optional(error->text) : std::nullopt;
}

// Borrowed from the module cynosure.log, which lives as long as the interpreter: no destructor may run after it.
nb::handle python_sink;

void call_sink(const Decision& decision, Direction direction) {
  if (Py_IsInitialized() == 0) return;
  const nb::gil_scoped_acquire gil;
  try {
    const Problem& p = decision.problem();
    python_sink(to_bytes(p.features), p.lengths.batch, p.lengths.seqlen_q, p.lengths.seqlen_k,
                word_of(decision.settings()), to_bytes(decision.device()), direction == Direction::backward);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("cynosure's log of decisions");
  }
}

/// (count, seconds, seconds of the longest).
nb::tuple plan_builds(const PlanBuilds& builds) {
  const auto seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
  return nb::make_tuple(builds.count, seconds(builds.total), seconds(builds.longest));
}

nb::tuple ledger_snapshot() {
  const LedgerSnapshot snapshot = ledger();
  nb::list rows;
  for (const LedgerEntry& entry : snapshot.entries) {
    const Problem& p = entry.decision.problem();
    rows.append(nb::make_tuple(to_bytes(p.features), p.lengths.batch, p.lengths.seqlen_q, p.lengths.seqlen_k,
                               word_of(entry.decision.settings()), to_bytes(entry.decision.device()), entry.forward,
                               entry.backward));
  }
  return nb::make_tuple(rows, snapshot.unlisted, plan_builds(snapshot.plan_builds[0]),
                        plan_builds(snapshot.plan_builds[1]));
}

}  // namespace

void bind_call(nb::module_& m) {
  m.def("check_call", &check_call, nb::arg("tensors"), nb::arg("max_seqlen_q"), nb::arg("max_seqlen_k"),
        nb::arg("window_left"), nb::arg("window_right"), nb::arg("scale"), nb::arg("softcap"), nb::arg("dropout_p"),
        nb::arg("dims"), nb::arg("causal"), "What is wrong with a call of these tensors, or None.");
  m.def(
      "take_error",
      [] {
        const CallError error = take_last_error();
        return std::tuple(static_cast<int>(error.kind), error.text);
      },
      "(0 none, 1 ValueError, 2 TypeError or 3 NoBackendError, the text) of what an operator of this thread threw "
      "last.");
  m.def("ledger_snapshot", &ledger_snapshot,
        "(rows, calls that are not listed, plan builds of forward, of backward), all of one moment.");
  m.def("clear_ledger", &clear_ledger);
  m.def(
      "set_ledger_sink",
      [](nb::handle sink) {
        python_sink = sink;
        set_ledger_sink(sink.is_none() ? nullptr : &call_sink);
      },
      nb::arg("sink").none(), "`sink` must live as long as the interpreter.");
}

}  // namespace cynosure::python
