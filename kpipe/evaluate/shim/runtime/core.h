// Definitions for kpipe_shim_core.h.
#pragma once

namespace kpipe_shim {
namespace core {
const char* toString(ScalarType t) { return c10::toString(real(t)); }
size_t elementSize(ScalarType t) { return c10::elementSize(real(t)); }
bool isFloatingType(ScalarType t) { return c10::isFloatingType(real(t)); }
bool isIntegralType(ScalarType t, bool with_bool) { return c10::isIntegralType(real(t), with_bool); }
Device::Device(Text name) : Device(shim(at::Device(std::string(name.data, name.size)))) {}
float Scalar::toFloat() const { return real(*this).toFloat(); }
double Scalar::toDouble() const { return real(*this).toDouble(); }
int Scalar::toInt() const { return real(*this).toInt(); }
int64_t Scalar::toLong() const { return real(*this).toLong(); }
bool Scalar::toBool() const { return real(*this).toBool(); }

TypeMeta TensorOptions::dtype() const {
  return TypeMeta(has_dtype_ ? dtype_ : shim(c10::get_default_dtype_as_scalartype()));
}
void TensorOptions::set(Device d) { device_ = d; has_device_ = true; }
TensorOptions::TensorOptions(Layout l) : layout_(l), has_layout_(true) {}
TensorOptions::TensorOptions(TypeMeta t) : dtype_(t.type), has_dtype_(true) {}
TensorOptions::TensorOptions(ScalarType t) : dtype_(t), has_dtype_(true) {}
TensorOptions::TensorOptions(MemoryFormat f) : memory_format_(f), has_memory_format_(true) {}
#define KPIPE_SHIM_OPTION(name, type)                                  \
  TensorOptions TensorOptions::name(std::optional<type> given) const { \
    auto out = *this;                                                  \
    out.has_##name##_ = given.has_value();                             \
    out.name##_ = given ? *given : TensorOptions().name##_;            \
    return out;                                                        \
  }
KPIPE_SHIM_OPTION(device, Device)
KPIPE_SHIM_OPTION(dtype, ScalarType)
KPIPE_SHIM_OPTION(layout, Layout)
KPIPE_SHIM_OPTION(requires_grad, bool)
KPIPE_SHIM_OPTION(pinned_memory, bool)
KPIPE_SHIM_OPTION(memory_format, MemoryFormat)
TensorOptions TensorOptions::dtype(std::optional<TypeMeta> t) const {
  return dtype(t ? std::optional<ScalarType>(t->type) : std::nullopt);
}
TensorOptions TensorOptions::device_index(DeviceIndex i) const { return device(Device(kCUDA, i)); }
TensorOptions dtype(TypeMeta t) { return t; }
TensorOptions dtype(ScalarType t) { return t; }
TensorOptions device(Device d) { return d; }
TensorOptions layout(Layout l) { return l; }
TensorOptions requires_grad(bool b) { return TensorOptions().requires_grad(b); }
TensorOptions memory_format(MemoryFormat f) { return f; }
void Scalar::read(void* out, ScalarType t) const {
  for_dtype(t, [&](auto v) { *static_cast<decltype(v)*>(out) = real(*this).to<decltype(v)>(); });
}
void no_such_element(size_t i, size_t size) {
  TORCH_CHECK(false, "ArrayRef: invalid index Index = ", i, "; Length = ", size);
  std::abort();
}
void no_such_slice(size_t from, size_t n, size_t size) {
  TORCH_CHECK(false, "ArrayRef: invalid slice, N = ", from, "; M = ", n, "; size = ", size);
  std::abort();
}
}  // namespace core
}  // namespace kpipe_shim
