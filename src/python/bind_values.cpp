// SPDX-License-Identifier: Apache-2.0
// python/bind_values.cpp: Backend, and Problem, Device and Settings in their packed forms.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cynosure/backend.hpp>
#include <cynosure/errors.hpp>

#include "python/convert.hpp"

namespace cynosure::python {

std::int64_t field_value(Field field, nb::handle object) {
  const FieldInfo& field_info = info(field);
  const auto refuse = [&] {
    const std::string given = nb::cast<std::string>(nb::repr(object));
    std::string expected;
    switch (field_info.type) {
      case FieldType::boolean:
        expected = "True or False";
        break;
      case FieldType::integer:
        expected = "an integer";
        break;
      case FieldType::choice:
        for (const std::string_view name : field_info.choices)
          expected += (expected.empty() ? "one of " : ", ") + std::string(name);
        break;
      case FieldType::version:
        expected = "a version such as '9.19.0', or None";
        break;
      case FieldType::backends:
        expected = "a list of backend names";
        break;
    }
    throw InvalidField(field_info.name, "got " + given + ", expected " + expected);
  };
  if (field_info.type == FieldType::boolean) {
    if (!nb::isinstance<nb::bool_>(object)) refuse();
    return nb::cast<bool>(object) ? 1 : 0;
  }
  if (field_info.type == FieldType::version && object.is_none()) return 0;
  if (field_info.type == FieldType::backends && !nb::isinstance<nb::str>(object)) {
    if (!PySequence_Check(object.ptr()) && !PyAnySet_Check(object.ptr())) refuse();
    BackendSet set;
    for (const nb::handle item : object) {
      const std::string text = nb::cast<std::string>(nb::str(item));
      set |= BackendSet::from_bits(static_cast<std::uint32_t>(parse_value(field, text)));
    }
    return set.bits();
  }
  if (nb::isinstance<nb::str>(object) && field_info.type != FieldType::integer)
    return parse_value(field, nb::cast<std::string>(object));
  if (field_info.type != FieldType::integer || nb::isinstance<nb::bool_>(object)) refuse();
  // operator.index: NumPy integers and single-value SymInts pass, floats and tensors with grad do not.
  if (!PyIndex_Check(object.ptr()) || nb::hasattr(object, "device")) refuse();
  nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) nb::raise_python_error();
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) refuse();
  return number;
}

nb::object field_object(Field field, std::int64_t value) {
  switch (info(field).type) {
    case FieldType::boolean:
      return nb::bool_(value != 0);
    case FieldType::integer:
      return nb::int_(value);
    case FieldType::choice:
      return nb::cast(value_text(field, value));
    case FieldType::version:
      if (value == 0) return nb::none();
      return nb::cast(value_text(field, value));
    case FieldType::backends: {
      nb::list names;
      for (const Backend backend : BackendSet::from_bits(static_cast<std::uint32_t>(value)))
        names.append(nb::cast(std::string(name(backend))));
      return names;
    }
  }
  return nb::none();
}

namespace {

Field named(std::string_view name, std::string_view what) {
  const std::optional<Field> field = field_named(name);
  if (!field) throw InvalidField(name, "is no field of a " + std::string(what));
  return *field;
}

nb::bytes pack_features(const nb::dict& values) {
  Problem problem;
  for (const auto& [key, item] : values) {
    const Field field = named(nb::cast<std::string>(key), "Problem");
    set_value(problem, field, field_value(field, item));
  }
  return to_bytes(problem.features);
}

nb::bytes pack_device(const nb::bytes& base, const nb::dict& values) {
  Device device = from_bytes<Device>(base);
  for (const auto& [key, item] : values) {
    const Field field = named(nb::cast<std::string>(key), "Device");
    set_value(device, field, field_value(field, item));
  }
  // A compute capability alone says that it is a CUDA device.
  if (values.contains("sm") && device.sm != 0 && !values.contains("device_kind")) device.kind = DeviceKind::cuda;
  if (device.kind == DeviceKind::cuda && device.sm == 0)
    throw InvalidField("sm", "got 0 with device_kind cuda, expected the compute capability times 10, such as 90");
  return to_bytes(device);
}

nb::dict features_dict(const nb::bytes& key) {
  const Problem problem{from_bytes<Features>(key), {}};
  nb::dict values;
  for (const FieldInfo& field : fields().subspan(3, kFirstDeviceField - 3))
    values[nb::cast(std::string(field.name))] =
        field_object(field.field, value(field.field, problem, Device{}, Settings{}));
  return values;
}

nb::dict device_dict(const nb::bytes& key) {
  const Device device = from_bytes<Device>(key);
  nb::dict values;
  for (const FieldInfo& field : fields().subspan(kFirstDeviceField, kFirstSettingsField - kFirstDeviceField))
    values[nb::cast(std::string(field.name))] =
        field_object(field.field, value(field.field, Problem{}, device, Settings{}));
  return values;
}

nb::dict settings_dict(std::int64_t word) {
  const Settings settings = settings_from(word);
  nb::dict values;
  for (const FieldInfo& field : fields().subspan(kFirstSettingsField))
    values[nb::cast(std::string(field.name))] =
        field_object(field.field, value(field.field, Problem{}, Device{}, settings));
  nb::list list;
  for (const Backend backend : settings.named()) list.append(nb::cast(std::string(name(backend))));
  values["named"] = list;
  values["rules_digest"] = nb::int_(settings.rules_digest());
  return values;
}

/// A word with some parts replaced; None keeps a part.
std::int64_t settings_with(std::int64_t word, std::optional<std::vector<std::string>> enabled,
                           std::optional<std::string> contract, const std::optional<std::vector<std::string>>& names,
                           std::optional<std::string> policy, std::optional<bool> deterministic,
                           std::optional<int> matmul_precision, std::optional<int> rules_digest,
                           std::optional<bool> enforce, std::optional<bool> emulate_fp8) {
  Settings settings = settings_from(word);
  const auto choice = [](std::string_view field, const std::string& text, const auto& allowed) {
    std::string known;
    for (std::size_t i = 0; i < allowed.size(); ++i) {
      if (allowed[i] == text) return i;
      known += (known.empty() ? "" : ", ") + std::string(allowed[i]);
    }
    throw InvalidField(field, "got '" + text + "', expected one of " + known);
  };
  const auto backend = [&](std::string_view field, const std::string& text) {
    return static_cast<Backend>(choice(field, text, kBackendNames));
  };
  if (enabled) {
    BackendSet set;
    for (const std::string& text : *enabled) set |= backend("enabled", text);
    settings = settings.with_enabled(set);
  }
  if (contract) {
    BackendList list;
    for (const std::string& text : names.value_or(std::vector<std::string>{})) {
      const Backend item = backend("backend", text);
      if (list.set().contains(item)) throw InvalidField("backend", "names '" + text + "' twice");
      list.push_back(item);
    }
    settings = settings.with_contract(static_cast<Contract>(choice("contract", *contract, kContractNames)), list);
  }
  if (policy) settings = settings.with_policy(static_cast<Policy>(choice("policy", *policy, kPolicyNames)));
  if (deterministic) settings = settings.with_deterministic(*deterministic);
  if (matmul_precision) settings = settings.with_matmul_precision(static_cast<MatmulPrecision>(*matmul_precision));
  if (rules_digest) settings = settings.with_rules_digest(static_cast<std::uint16_t>(*rules_digest));
  if (enforce) settings = settings.with_switch(Settings::enforce, *enforce);
  if (emulate_fp8) settings = settings.with_switch(Settings::emulate_fp8, *emulate_fp8);
  return word_of(settings);
}

nb::list field_table() {
  nb::list table;
  for (std::size_t i = 0; i < kFieldCount; ++i) {
    const FieldInfo& field = fields()[i];
    nb::dict row;
    row["name"] = nb::cast(std::string(field.name));
    row["of"] =
        i < 3 ? "lengths" : (i < kFirstDeviceField ? "features" : (i < kFirstSettingsField ? "device" : "settings"));
    row["type"] =
        std::array{"integer", "boolean", "choice", "version", "backends"}[static_cast<std::size_t>(field.type)];
    nb::list choices;
    for (const std::string_view choice : field.choices) choices.append(nb::cast(std::string(choice)));
    row["choices"] = choices;
    row["doc"] = nb::cast(std::string(field.doc));
    table.append(row);
  }
  return table;
}

nb::object version_parts(std::string_view text) {
  const std::optional<Version> version = Version::parse(text);
  if (!version) return nb::none();
  return nb::make_tuple(version->major(), version->minor(), version->micro(), static_cast<int>(version->phase()),
                        version->number(), version->to_string());
}

}  // namespace

void bind_values(nb::module_& m) {
  // A std::invalid_argument is a ValueError already; an InvalidField too, with its text.
  nb::enum_<Backend>(m, "Backend", nb::is_arithmetic(), "The attention backends; an enum.IntEnum.")
      .value("cpu", Backend::cpu)
      .value("cudnn", Backend::cudnn)
      .value("cudnn_fp8", Backend::cudnn_fp8)
      .value("flash2", Backend::flash2)
      .value("aten_flash", Backend::aten_flash)
      .value("flash3", Backend::flash3)
      .value("flash4", Backend::flash4)
      .value("unfused", Backend::unfused);
  nb::list isas;
  for (const std::string_view isa : kCpuIsaNames) isas.append(nb::cast(std::string(isa)));
  m.attr("CPU_ISAS") = nb::tuple(isas);
  m.attr("TE_SUB_BACKENDS") = nb::make_tuple(nb::make_tuple("No_Backend", -1),
                                             nb::make_tuple("F16_arbitrary_seqlen", 1), nb::make_tuple("FP8", 2));
  m.def("pack_features", &pack_features, nb::arg("values"),
        "The bytes of a Problem's features, from field names and values.");
  m.def("features_dict", &features_dict, nb::arg("key"));
  m.def(
      "validate",
      [](const nb::bytes& key, std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k) {
        validate(Problem{from_bytes<Features>(key), {batch, seqlen_q, seqlen_k}});
      },
      nb::arg("key"), nb::arg("batch"), nb::arg("seqlen_q"), nb::arg("seqlen_k"),
      "Raises ValueError for a problem that cannot be.");
  m.def("pack_device", &pack_device, nb::arg("base"), nb::arg("values"));
  m.def("device_dict", &device_dict, nb::arg("key"));
  m.def("default_device", [] { return to_bytes(Device{}); });
  m.def("named_device", [](std::string_view name) -> nb::object {
    const std::optional<Device> device = named_device(name);
    if (!device) throw InvalidField("device", "got '" + std::string(name) + "', expected one of " + device_names());
    return to_bytes(*device);
  });
  m.def("device_names", &device_names);
  m.def("default_settings", [] { return word_of(Settings{}); });
  m.def("check_settings", [](std::int64_t word) { return word_of(settings_from(word)); });
  m.def("settings_dict", &settings_dict, nb::arg("word"));
  m.def("settings_describe", [](std::int64_t word) { return settings_from(word).describe(); });
  m.def("settings_with", &settings_with, nb::arg("word"), nb::kw_only(), nb::arg("enabled") = nb::none(),
        nb::arg("contract") = nb::none(), nb::arg("names") = nb::none(), nb::arg("policy") = nb::none(),
        nb::arg("deterministic") = nb::none(), nb::arg("matmul_precision") = nb::none(),
        nb::arg("rules_digest") = nb::none(), nb::arg("enforce") = nb::none(), nb::arg("emulate_fp8") = nb::none());
  m.def("field_table", &field_table);
  m.def("version_parts", &version_parts, nb::arg("text"),
        "(major, minor, micro, phase, number, canonical text), or None.");
}

}  // namespace cynosure::python
