// SPDX-License-Identifier: Apache-2.0
// tests/cpp/fields_test.cpp: every named value: set, read, printed and parsed; the checks name the field.
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <cynosure/errors.hpp>
#include <cynosure/fields.hpp>

#include "random_calls.hpp"

namespace cynosure {
namespace {

bool of_problem(const FieldInfo& info) { return static_cast<std::size_t>(info.field) < kFirstDeviceField; }
bool of_device(const FieldInfo& info) {
  return !of_problem(info) && static_cast<std::size_t>(info.field) < kFirstSettingsField;
}

/// Values at the ends and in the middle of what a field takes.
std::vector<std::int64_t> samples(const FieldInfo& info) {
  switch (info.type) {
    case FieldType::boolean:
      return {0, 1};
    case FieldType::integer:
      return {info.min, info.min + 1, (info.min + info.max) / 2, info.max};
    case FieldType::choice: {
      std::vector<std::int64_t> all;
      for (std::int64_t i = 0; i <= info.max; ++i) all.push_back(i);
      return all;
    }
    case FieldType::version:
      return {0, static_cast<std::int64_t>(Version(9, 19, 0).bits()),
              static_cast<std::int64_t>(Version(3, 0, 0, Version::Phase::beta, 2).bits())};
    case FieldType::backends:
      return {0, 1, 0x55, 0xff};
  }
  return {};
}

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const InvalidField& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with(error.field() + ": ")) << error.what();
    return error.field();
  }
  return "accepted";
}

TEST(Fields, NamesAreUniqueAndFound) {
  std::set<std::string_view> names;
  for (const FieldInfo& info : fields()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_EQ(field_named(info.name), info.field);
    EXPECT_FALSE(info.doc.empty()) << info.name;
    EXPECT_EQ(static_cast<std::int64_t>(info.choices.size()), info.type == FieldType::choice ? info.max + 1 : 0);
  }
  EXPECT_EQ(names.size(), kFieldCount);
  EXPECT_EQ(field_named("no_such_field"), std::nullopt);
  EXPECT_EQ(field_named(""), std::nullopt);
}

TEST(Fields, ValuesComeBack) {
  for (const FieldInfo& info : fields()) {
    for (const std::int64_t sample : samples(info)) {
      Problem problem;
      Device device;
      if (of_problem(info)) {
        set_value(problem, info.field, sample);
      } else if (of_device(info)) {
        set_value(device, info.field, sample);
      } else {
        continue;
      }
      EXPECT_EQ(value(info.field, problem, device, {}), sample) << info.name;
    }
  }
}

TEST(Fields, SettingOneLeavesTheOthers) {
  for (const FieldInfo& info : fields()) {
    if (!of_problem(info)) continue;
    Problem problem;
    set_value(problem, info.field, samples(info).back());
    for (const FieldInfo& other : fields())
      if (other.field != info.field) {
        EXPECT_EQ(value(other.field, problem, {}, {}), value(other.field, {}, {}, {}))
            << info.name << " " << other.name;
      }
  }
}

TEST(Fields, TextComesBack) {
  for (const FieldInfo& info : fields()) {
    for (const std::int64_t sample : samples(info)) {
      if (info.field == Field::sm || (info.type == FieldType::backends && sample == 0)) continue;  // below
      EXPECT_EQ(parse_value(info.field, value_text(info.field, sample)), sample) << info.name;
    }
  }
  EXPECT_EQ(value_text(Field::sm, 103), "10.3");
  EXPECT_EQ(parse_value(Field::sm, "103"), 103);
  EXPECT_EQ(value_text(Field::switched_off, 0), "none");
  EXPECT_EQ(parse_value(Field::switched_off, ""), 0);
  EXPECT_EQ(parse_value(Field::switched_off, " cpu , unfused"), BackendSet({Backend::cpu, Backend::unfused}).bits());
}

TEST(Fields, SettingsAreReadOnly) {
  const Settings settings = Settings()
                                .with_enabled(Backend::cudnn)
                                .with_contract(Contract::require, {Backend::cudnn})
                                .with_policy(Policy::te)
                                .with_deterministic(true)
                                .with_matmul_precision(MatmulPrecision::medium)
                                .with_switch(Settings::emulate_fp8, true)
                                .with_switch(Settings::onnx_export, true)
                                .with_switch(Settings::enforce, true);
  const auto read = [&](Field field) { return value(field, {}, {}, settings); };
  EXPECT_EQ(read(Field::switched_off), (BackendSet::all() - BackendSet(Backend::cudnn)).bits());
  EXPECT_EQ(read(Field::contract), 2);
  EXPECT_EQ(read(Field::policy), 1);
  EXPECT_EQ(read(Field::deterministic), 1);
  EXPECT_EQ(read(Field::matmul_precision), 2);
  EXPECT_EQ(read(Field::emulate_fp8) + read(Field::onnx_export) + read(Field::enforce), 3);
  for (const FieldInfo& info : fields()) {
    Problem problem;
    Device device;
    if (!of_problem(info)) {
      EXPECT_EQ(refusal([&] { set_value(problem, info.field, 0); }), info.name);
    }
    if (!of_device(info)) {
      EXPECT_EQ(refusal([&] { set_value(device, info.field, 0); }), info.name);
    }
  }
}

TEST(Fields, OutOfRangeNamesTheField) {
  for (const FieldInfo& info : fields()) {
    if (info.type == FieldType::version || info.type == FieldType::backends) continue;
    for (const std::int64_t bad : {info.min - 1, info.max + 1, std::int64_t{INT64_MIN}, std::int64_t{INT64_MAX}}) {
      Problem problem;
      Device device;
      if (of_problem(info)) {
        EXPECT_EQ(refusal([&] { set_value(problem, info.field, bad); }), info.name) << bad;
      }
      if (of_device(info)) {
        EXPECT_EQ(refusal([&] { set_value(device, info.field, bad); }), info.name) << bad;
      }
      EXPECT_EQ(problem, Problem());
    }
  }
}

TEST(Fields, BadTextNamesTheField) {
  for (const FieldInfo& info : fields()) {
    EXPECT_EQ(refusal([&] { static_cast<void>(parse_value(info.field, "no such value")); }), info.name);
    if (info.type == FieldType::integer) {
      for (const std::string_view text : {"", "1.5", "0x10", "1 ", "+1", "99999999999999999999", "one"})
        EXPECT_EQ(refusal([&] { static_cast<void>(parse_value(info.field, text)); }), info.name) << text;
    }
  }
}

TEST(Fields, ShortNamesAreAccepted) {
  EXPECT_EQ(parse_value(Field::layout, "bshd"), static_cast<std::int64_t>(Layout::bshd_bshd_bshd));
  EXPECT_EQ(parse_value(Field::layout, "thd"), static_cast<std::int64_t>(Layout::thd_thd_thd));
  EXPECT_EQ(parse_value(Field::dtype, "fp16"), static_cast<std::int64_t>(DType::float16));
  EXPECT_EQ(parse_value(Field::dtype, "float8_e4m3fn"), static_cast<std::int64_t>(DType::float8_e4m3));
  EXPECT_EQ(parse_value(Field::bias_type, "none"), 0);
  EXPECT_EQ(parse_value(Field::softmax, "off_by_one"), 1);
}

TEST(Validate, RefusesWhatNoBackendCouldMean) {
  const auto refused = [](auto edit, bool strict = true) {
    Problem problem;
    problem.features.heads = problem.features.kv_heads = 4;
    edit(problem.features);
    return refusal([&] { validate(problem, strict); });
  };
  EXPECT_EQ(refused([](Features&) {}), "accepted");
  EXPECT_EQ(refused([](Features& f) { f.heads = 7; }), "heads");
  EXPECT_EQ(refused([](Features& f) { f.heads = 7; }, false), "accepted") << "TransformerEngine answers this";
  EXPECT_EQ(refused([](Features& f) { f.heads = 0; }), "heads");
  EXPECT_EQ(refused([](Features& f) { f.causal = true, f.window_right = 1; }), "window_size");
  EXPECT_EQ(refused([](Features& f) { f.causal = true, f.window_right = 0; }), "accepted");
  EXPECT_EQ(refused([](Features& f) { f.lse_grad = true; }), "lse_grad");
  EXPECT_EQ(refused([](Features& f) { f.fp8 = true; }, false), "fp8_recipe");
  EXPECT_EQ(refused([](Features& f) { f.kv_cache = KvCache::paged, f.layout = Layout::bs3hd; }, false), "layout");
  EXPECT_EQ(refused([](Features& f) { f.window_left = -2; }, false), "window_left");
  EXPECT_EQ(refused([](Features& f) { f.dtype = static_cast<DType>(6); }, false), "dtype");
}

TEST(Validate, LengthsReachWhatKernelsTake) {
  constexpr std::int64_t longest = 2147483647;
  Problem problem;
  problem.lengths = {longest, longest, longest};
  EXPECT_NO_THROW(validate(problem));
  for (const Field field : {Field::batch, Field::seqlen_q, Field::seqlen_k}) {
    EXPECT_EQ(refusal([&] { set_value(problem, field, longest + 1); }), info(field).name);
    EXPECT_EQ(refusal([&] { set_value(problem, field, -1); }), info(field).name);
  }
}

TEST(Devices, TheCatalogueIsConsistent) {
  const std::string names = device_names();
  std::size_t count = 0;
  for (std::size_t start = 0; start < names.size(); ++count) {
    const std::size_t comma = std::min(names.find(", ", start), names.size());
    const std::string name = names.substr(start, comma - start);
    start = comma + 2;
    const std::optional<Device> device = named_device(name);
    ASSERT_TRUE(device) << name;
    EXPECT_EQ(device->kind == DeviceKind::cpu, name == "cpu");
    EXPECT_EQ(device->built_backends(), BackendSet::all()) << name;
    EXPECT_TRUE(device->torch.installed()) << name;
    if (name == "cpu") continue;
    EXPECT_TRUE(device->sm >= 70 && device->sm_count > 0 && device->cudnn.installed()) << name;
    EXPECT_EQ(device->flash3.installed(), device->sm == 90) << name;
    EXPECT_EQ(device->flash4.installed(), device->sm >= 90) << name;
  }
  EXPECT_EQ(count, 22U);
  EXPECT_EQ(named_device("h200")->sm, 90);
  EXPECT_EQ(named_device("b300")->sm, 103);
  EXPECT_EQ(named_device("rtx5090")->sm, 120);
  EXPECT_EQ(named_device("H200"), std::nullopt);
  EXPECT_EQ(named_device(""), std::nullopt);
}

}  // namespace
}  // namespace cynosure
