// Between the shim's types and torch's.
#pragma once

namespace kpipe_shim {
namespace {
// real(x): the torch object behind one of the shim's. A Tensor is laid out as the real one, so it is that one.
static_assert(sizeof(Tensor) == sizeof(at::Tensor) && sizeof(void*) == sizeof(at::Tensor));
#define KPIPE_SHIM_SAME(cpp, name) static_assert(static_cast<int>(ScalarType::name) == static_cast<int>(at::ScalarType::name));
KPIPE_SHIM_TYPES(KPIPE_SHIM_SAME)
static_assert(static_cast<int>(ScalarType::UInt64) == static_cast<int>(at::ScalarType::UInt64));
static_assert(static_cast<int>(DeviceType::Meta) == static_cast<int>(at::DeviceType::Meta));
static_assert(static_cast<int>(MemoryFormat::ChannelsLast3d) == static_cast<int>(at::MemoryFormat::ChannelsLast3d));
static_assert(static_cast<int>(Reduction::Sum) == static_cast<int>(at::Reduction::Sum));

const at::Tensor& real(const Tensor& t) { return reinterpret_cast<const at::Tensor&>(t); }
at::Tensor& real(Tensor& t) { return reinterpret_cast<at::Tensor&>(t); }
at::TensorList real(TensorList l) { return {reinterpret_cast<const at::Tensor*>(l.data()), l.size()}; }
at::IntArrayRef real(IntArrayRef a) { return {a.data(), a.size()}; }
at::OptionalIntArrayRef real(OptionalIntArrayRef a) { return a ? at::OptionalIntArrayRef(real(*a)) : std::nullopt; }
at::ScalarType real(ScalarType t) { return static_cast<at::ScalarType>(t); }
at::MemoryFormat real(MemoryFormat f) { return static_cast<at::MemoryFormat>(f); }
at::Device real(Device d) { return {static_cast<at::DeviceType>(d.type()), d.index()}; }
c10::string_view real(Text t) { return {t.data, t.size}; }
int64_t real(int64_t v) { return v; }
double real(double v) { return v; }
bool real(bool v) { return v; }
at::Scalar real(const Scalar& s) {
  return s.isFloatingPoint() ? at::Scalar(s.d) : s.isBoolean() ? at::Scalar(s.i != 0) : at::Scalar(s.i);
}
template <class T> auto real(const std::optional<T>& o) {
  using R = std::decay_t<decltype(real(*o))>;
  return o ? std::optional<R>(real(*o)) : std::nullopt;
}
at::TensorOptions real(TensorOptions o) {
  at::TensorOptions out;
  if (o.has_device()) out = out.device(real(o.device()));
  if (o.has_dtype()) out = out.dtype(real(o.dtype().type));
  if (o.has_layout()) out = out.layout(static_cast<at::Layout>(o.layout()));
  if (o.has_requires_grad()) out = out.requires_grad(o.requires_grad());
  if (o.has_pinned_memory()) out = out.pinned_memory(o.pinned_memory());
  if (o.has_memory_format()) out = out.memory_format(real(o.memory_format_given()));
  return out;
}

// shim(x): the other way.
Tensor shim(at::Tensor t) { return reinterpret_cast<Tensor&&>(t); }
ScalarType shim(at::ScalarType t) { return static_cast<ScalarType>(t); }
Device shim(at::Device d) { return {static_cast<DeviceType>(d.type()), d.index()}; }
int64_t shim(int64_t v) { return v; }
double shim(double v) { return v; }
bool shim(bool v) { return v; }
Scalar shim(const at::Scalar& s) {
  return s.isFloatingPoint() ? Scalar(s.toDouble()) : s.isBoolean() ? Scalar(s.toBool()) : Scalar(s.toLong());
}
template <class... T> auto shim(std::tuple<T...>&& t) {
  return std::apply([](auto&&... x) { return std::make_tuple(shim(std::move(x))...); }, std::move(t));
}
std::vector<Tensor> shim(std::vector<at::Tensor>&& l) {
  std::vector<Tensor> out;
  for (auto& t : l) out.push_back(shim(std::move(t)));
  return out;
}

template <class F> void for_dtype(ScalarType t, F&& f) {
  switch (t) {
#define KPIPE_SHIM_CASE(cpp, name) case ScalarType::name: f(cpp()); break;
    KPIPE_SHIM_TYPES(KPIPE_SHIM_CASE)
#undef KPIPE_SHIM_CASE
    default: TORCH_CHECK(false, "dtype ", real(t), " is not supported here");
  }
}
}  // namespace
}  // namespace kpipe_shim
