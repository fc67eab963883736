// Definitions for kpipe_shim_tensor.h; those of the operators are generated.
#pragma once

namespace kpipe_shim {
#include "kpipe_shim_definitions.inc"

#define KPIPE_SHIM_OPERATOR(op)                                                                           \
  Tensor operator op(const Tensor& a, const Tensor& b) { return shim(real(a) op real(b)); }               \
  Tensor operator op(const Tensor& a, const Scalar& b) { return shim(real(a) op real(b)); }               \
  Tensor operator op(const Scalar& a, const Tensor& b) { return shim(real(a) op real(b)); }
KPIPE_SHIM_OPERATORS(KPIPE_SHIM_OPERATOR)


Tensor& Tensor::operator=(const Tensor& o) & { real(*this) = real(o); return *this; }
Tensor& Tensor::operator=(Tensor&& o) & noexcept { real(*this) = std::move(real(o)); return *this; }
Tensor& Tensor::operator=(const Scalar& v) && { real(*this).fill_(real(v)); return *this; }
Tensor& Tensor::operator=(const Tensor& o) && { real(*this).copy_(real(o)); return *this; }
Tensor& Tensor::operator=(Tensor&& o) && { real(*this).copy_(real(o)); return *this; }
void Tensor::reset() { real(*this).reset(); }
int64_t Tensor::dim() const { return real(*this).dim(); }
int64_t Tensor::numel() const { return real(*this).numel(); }
int64_t Tensor::size(int64_t d) const { return real(*this).size(d); }
int64_t Tensor::stride(int64_t d) const { return real(*this).stride(d); }
int64_t Tensor::storage_offset() const { return real(*this).storage_offset(); }
IntArrayRef Tensor::sizes() const { auto s = real(*this).sizes(); return {s.data(), s.size()}; }
IntArrayRef Tensor::strides() const { auto s = real(*this).strides(); return {s.data(), s.size()}; }
size_t Tensor::nbytes() const { return real(*this).nbytes(); }
size_t Tensor::itemsize() const { return real(*this).itemsize(); }
int64_t Tensor::element_size() const { return real(*this).element_size(); }
TensorOptions Tensor::options() const { return TensorOptions().dtype(scalar_type()).device(device()).layout(layout()); }
TypeMeta Tensor::dtype() const { return TypeMeta(scalar_type()); }
ScalarType Tensor::scalar_type() const { return shim(real(*this).scalar_type()); }
Layout Tensor::layout() const { return static_cast<Layout>(real(*this).layout()); }
Device Tensor::device() const { return shim(real(*this).device()); }
DeviceIndex Tensor::get_device() const { return real(*this).get_device(); }
bool Tensor::is_cpu() const { return real(*this).is_cpu(); }
bool Tensor::is_cuda() const { return real(*this).is_cuda(); }
bool Tensor::is_contiguous(MemoryFormat f) const { return real(*this).is_contiguous(real(f)); }
bool Tensor::is_floating_point() const { return real(*this).is_floating_point(); }
bool Tensor::is_complex() const { return real(*this).is_complex(); }
bool Tensor::is_signed() const { return real(*this).is_signed(); }
bool Tensor::is_sparse() const { return real(*this).is_sparse(); }
bool Tensor::is_alias_of(const Tensor& o) const { return real(*this).is_alias_of(real(o)); }
bool Tensor::requires_grad() const { return real(*this).requires_grad(); }
MemoryFormat Tensor::suggest_memory_format() const {
  return static_cast<MemoryFormat>(real(*this).suggest_memory_format());
}
void* Tensor::data_ptr() const { return real(*this).data_ptr(); }
const void* Tensor::const_data_ptr() const { return real(*this).const_data_ptr(); }
void* Tensor::typed(ScalarType t, bool writable) const {
  void* out = nullptr;
  for_dtype(t, [&](auto v) {
    using T = decltype(v);
    out = writable ? real(*this).mutable_data_ptr<T>() : const_cast<T*>(real(*this).const_data_ptr<T>());
  });
  return out;
}
void Tensor::read(void* out, ScalarType t) const {
  for_dtype(t, [&](auto v) { *static_cast<decltype(v)*>(out) = real(*this).item<decltype(v)>(); });
}
Tensor Tensor::contiguous(MemoryFormat f) const { return shim(real(*this).contiguous(real(f))); }
Tensor Tensor::cpu() const { return shim(real(*this).cpu()); }
Tensor Tensor::cuda() const { return shim(real(*this).cuda()); }
const Tensor& Tensor::requires_grad_(bool on) const { real(*this).requires_grad_(on); return *this; }
Tensor Tensor::toType(ScalarType t) const { return shim(real(*this).toType(real(t))); }
Tensor Tensor::to(TypeMeta t, bool non_blocking, bool copy) const {
  return shim(real(*this).to(real(t.type), non_blocking, copy));
}
Tensor Tensor::operator~() const { return shim(~real(*this)); }
Tensor Tensor::operator-() const { return shim(-real(*this)); }
#define KPIPE_SHIM_ASSIGNMENT(op, type) \
  Tensor& Tensor::operator op(const type& o) { real(*this) op real(o); return *this; }
KPIPE_SHIM_ASSIGNMENTS(KPIPE_SHIM_ASSIGNMENT)
Tensor Tensor::operator[](int64_t i) const { return shim(real(*this)[i]); }
Tensor Tensor::operator[](const Scalar& i) const { return shim(real(*this)[real(i)]); }
Tensor Tensor::operator[](const Tensor& i) const { return shim(real(*this)[real(i)]); }
void Tensor::check_int32() const {
  TORCH_CHECK(numel() <= std::numeric_limits<int32_t>::max(),
              "numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
}

namespace factories {
Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& o) {
  return shim(torch::from_blob(data, real(sizes), real(o)));
}
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const TensorOptions& o) {
  return shim(torch::from_blob(data, real(sizes), real(strides), real(o)));
}
}  // namespace factories
Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& o) {
  return shim(at::from_blob(data, real(sizes), real(o)));
}

NoGradGuard::NoGradGuard() : before_(at::GradMode::is_enabled()) { at::GradMode::set_enabled(false); }
NoGradGuard::~NoGradGuard() { at::GradMode::set_enabled(before_); }
std::optional<Device> device_of(const Tensor& t) {
  return t.defined() ? std::optional<Device>(t.device()) : std::nullopt;
}
int get_num_threads() { return at::get_num_threads(); }

namespace internals {
using Pointer = c10::intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;
void* const undefined = c10::UndefinedTensorImpl::singleton();
void retain(void* p) { c10::raw::intrusive_ptr::incref(static_cast<at::TensorImpl*>(p)); }
void release(void* p) { Pointer::reclaim(static_cast<at::TensorImpl*>(p)); }
void wrong_dimensions(int64_t expected, int64_t got) {
  TORCH_CHECK(false, "TensorAccessor expected ", expected, " dims but tensor has ", got);
  std::abort();
}
void parallel_run(int64_t begin, int64_t end, int64_t grain, void (*body)(const void*, int64_t, int64_t), const void* f) {
  at::parallel_for(begin, end, grain, [=](int64_t a, int64_t b) { body(f, a, b); });
}
}  // namespace internals
}  // namespace kpipe_shim
